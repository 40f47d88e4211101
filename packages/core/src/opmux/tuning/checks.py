"""Checks of a record: its names exist, its figures agree with each other, and the device could reach them."""

import datetime
import math
import re
from collections.abc import Mapping
from typing import Any

import torch

from opmux.arch import KNOWN, known_arch
from opmux.callpath.op import OPS, Op
from opmux.declared.configs import check_config
from opmux.dtypes import short_name_of
from opmux.errors import InvalidArgument, TunedRecordError
from opmux.near import did_you_mean
from opmux.signatures.validation import check_call
from opmux.tuning import fields, peaks
from opmux.tuning.matching import CAPACITY, attended, matching_of, shrinks
from opmux.tuning.record import TunedRecord, known_op

AGREEMENT = 0.02
"""How far a stated tflops or gbps may be from the one computed from the time."""

ERROR_BOUND = 1.0
"""The largest `error`: it is stated as a fraction of the conformance kit's bound."""

_FULL_NAME = re.compile(r"[A-Za-z_]\w*(:\w[\w.-]*)?")
"""The form of an implementation's full name."""

LARGEST_DIM = 2**40


def check_record(record: TunedRecord) -> None:
    """Check a record against the op's signature, its own figures and what its arch can do.

    Raises:
        TunedRecordError: names the op, the column, what was expected, what was given and what to do.
    """
    op = known_op(record.op)
    check_arch(op.name, record.arch)
    _check_names(op, record)
    check_implementation(op, "backend", record.backend)
    _check_config(op, record)
    _check_figures(op, record)
    tensors, options, dims = _as_call(op, record)
    try:
        check_call(op.signature, tensors, options)
    except InvalidArgument as error:
        raise TunedRecordError(str(error)) from None
    flops, size = op.count_flops({**record.options, **record.dims}), _bytes(op, tensors, options, dims, CAPACITY)
    _check_agreement(op, record, "tflops", flops and 1e-6 * flops, "op states no flops")
    whole = None if matching_of(op).capacity else 1e-3 * size
    _check_agreement(op, record, "gbps", whole, "call reads a part of its buffers only")
    _check_possible(op, record, flops, size, options)


def tflops_of(record: TunedRecord) -> float | None:
    """The ``tflops`` computed from a record's time; None if the op states no flops.

    Raises:
        TunedRecordError: if the op is unknown.
    """
    flops = known_op(record.op).count_flops({**record.options, **record.dims})
    return None if flops is None else 1e-6 * flops / record.time_us


def gbps_of(record: TunedRecord) -> float | None:
    """The ``gbps`` computed from a record's time; None if the op reads only a part of its buffers.

    All tensor arguments count once, those written in place twice, and all results once.

    Raises:
        TunedRecordError: if the op is unknown.
    """
    op = known_op(record.op)
    if matching_of(op).capacity:
        return None
    return 1e-3 * _bytes(op, *_as_call(op, record), frozenset()) / record.time_us


def check_arch(subject: str, name: str) -> None:
    """Refuse a name that is not one known arch; ``subject`` is what the error begins with.

    Raises:
        TunedRecordError: if it is a product's name, a pattern, or a compiler's feature set.
    """
    try:
        known = known_arch(name).name == name
    except InvalidArgument:
        known = False
    if not known:
        every = [arch for archs in KNOWN.values() for arch in archs]
        # No suggestion for a product's name, whose nearest match would be wrong: H100 is sm_90, not sm_100.
        meant = did_you_mean(name, every) if name.startswith(("sm", "gfx")) else ""
        remedy = f"{meant}use the name in `opmux doctor`"
        raise fields.refused(subject, "arch", "one known arch, as sm_90 or gfx942", repr(name), remedy)


def check_implementation(op: Op, column: str, name: Any) -> str:
    """Refuse what is no full name, and a name that an installed backend does not have for this op.

    Args:
        op: the op.
        column: what the error calls the name.
        name: as explain shows it; a backend that is not installed may have any.

    Returns:
        The name.

    Raises:
        TunedRecordError: if it is another.
    """
    if not isinstance(name, str) or not _FULL_NAME.fullmatch(name):
        raise fields.refused(op.name, column, "`backend` or `backend:name`", repr(name), "write it as explain does")
    backend = name.partition(":")[0]
    own = [i.full_name for i in op.implementations if i.backend == backend]
    installed = own or any(i.backend == backend for other in OPS.values() for i in other.implementations)
    if installed and name not in own:
        of = f"one of {backend}: {', '.join(own)}" if own else f"a backend with one, {backend} has none"
        raise fields.refused(op.name, column, of, repr(name), "measure again with what is installed")
    return name


def _check_names(op: Op, record: TunedRecord) -> None:
    """Check that every name is one of the op's, and that no required one is missing."""
    signature, matching = op.signature, matching_of(op)
    may = {t.name: "tensors" for t in signature.tensors}
    must = [t.name for t in signature.required]
    _compare(op, "dtypes", record.dtypes, may, must)
    _compare(op, "dims", record.dims, dict.fromkeys(signature.binders, "dims"), list(signature.binders))
    options = {o.name: o for o in signature.options}
    _compare(op, "options", record.options, options, list(matching.must_name(signature.options)))
    for name, size in record.dims.items():
        if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= LARGEST_DIM:
            raise fields.refused(op.name, "dims", f"a positive size for `{name}`", repr(size), "measure a real call")


def _compare(op: Op, column: str, given: Mapping[str, Any], may: Mapping[str, Any], must: list[str]) -> None:
    for name in given:
        if name not in may:
            remedy = f"{did_you_mean(name, may)}they are {', '.join(may) or 'none'}"
            raise fields.refused(op.name, column, f"{column} of {op.name}", f"`{name}`", remedy)
    for name in must:
        if name not in given:
            raise fields.refused(op.name, column, f"a value for `{name}`", "none", f"add {name}=...")


def _check_config(op: Op, record: TunedRecord) -> None:
    """Check a config against the schema of its implementation, if that is registered and declares one."""
    implementation = next((i for i in op.implementations if i.full_name == record.backend), None)
    if implementation is not None and record.config is not None:
        reason = check_config(implementation, record.config)
        if reason is not None:
            expected, got = f"a config of {record.backend}", fields.write_config(op.name, record.config)
            raise fields.refused(op.name, "config", expected, f"{got}: {reason}", "measure again or drop the row")


def _check_figures(op: Op, record: TunedRecord) -> None:
    again = "measure again or drop the row"
    if not (math.isfinite(record.time_us) and record.time_us > 0):
        raise fields.refused(op.name, "time_us", "a positive number of microseconds", f"{record.time_us!r}", again)
    if not (math.isfinite(record.error) and record.error >= 0):
        raise fields.refused(op.name, "error", "a finite error, 0 or more", f"{record.error!r}", again)
    if record.error > ERROR_BOUND:
        expected = f"at most {ERROR_BOUND}, the conformance bound"
        raise fields.refused(op.name, "error", expected, f"{record.error!r}", "do not use that kernel: it is wrong")
    if isinstance(record.compared, bool) or not isinstance(record.compared, int) or record.compared < 1:
        expected = "how many implementations were measured, 1 or more"
        raise fields.refused(op.name, "compared", expected, f"{record.compared!r}", "count the record's own")
    if record.date:
        try:
            datetime.datetime.fromisoformat(record.date)
        except ValueError:
            remedy = "correct the row or leave it empty"
            raise fields.refused(
                op.name, "date", "an ISO 8601 date, as 2026-01-31", repr(record.date), remedy
            ) from None


def _as_call(op: Op, record: TunedRecord) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The call that was measured: its tensors on the meta device, its options, its dims as the signature binds them."""
    dims = {name: (size,) if name in op.signature.stars else size for name, size in record.dims.items()}
    options = {o.name: record.options.get(o.name, o.default) for o in op.signature.options}
    try:
        tensors = {
            t.name: torch.empty(t.shape.value(dims, options), dtype=record.dtypes[t.name], device="meta")
            if t.name in record.dtypes
            else None
            for t in op.signature.tensors
        }
    except (RuntimeError, TypeError, OverflowError, ValueError) as error:
        text = str(error).partition("\n")[0]
        raise fields.refused(op.name, "dims", "sizes of tensors that torch can hold", text, "correct the row") from None
    return tensors, options, dims


def _bytes(
    op: Op, tensors: Mapping[str, Any], options: Mapping[str, Any], dims: Mapping[str, Any], without: frozenset[str]
) -> int:
    """Bytes of all arguments and results; tensors with a dim in ``without`` are not counted."""
    total = 0
    for argument in op.signature.tensors:
        tensor = tensors[argument.name]
        if tensor is not None and without.isdisjoint(argument.shape.names()):
            total += tensor.numel() * tensor.element_size() * (2 if argument.name in op.signature.mutates else 1)
    shapes, dtypes = op.signature.output_shapes(dims, options), op.signature.output_dtypes(tensors, options)
    results = zip(shapes, dtypes, strict=True)
    return int(total + sum(math.prod(shape) * dtype.itemsize for shape, dtype in results))


def _check_agreement(op: Op, record: TunedRecord, column: str, work: float | None, why_not: str) -> None:
    stated = getattr(record, column)
    if stated is None:
        return
    if work is None:
        raise fields.refused(op.name, column, f"nothing, since the {why_not}", f"{stated:g}", "leave it empty")
    real = work / record.time_us
    if not abs(stated - real) <= AGREEMENT * real:
        expected = f"{real:.4g} (from dims and time_us, within {AGREEMENT:.0%})"
        raise fields.refused(op.name, column, expected, f"{stated:g}", "one of the three is wrong: measure again")


def _check_possible(op: Op, record: TunedRecord, flops: float | None, size: int, options: Mapping[str, Any]) -> None:
    """Refuse a time that beats the arch's datasheet."""
    if shrinks(options):
        return
    again = "the clock missed some of the work: measure again"
    fraction = attended(record.dims, options)
    rate = peaks.peak_tflops(record.arch, record.dtypes.values())
    if flops is not None and fraction is not None and rate is not None:
        least = 1e-6 * flops * fraction / rate
        if record.time_us < least:
            widths = "/".join(sorted({short_name_of(d) for d in record.dtypes.values()}))
            expected = f"at least {least:.4g} ({record.arch} does at most {rate:.4g} tflops in {widths})"
            raise fields.refused(op.name, "time_us", expected, f"{record.time_us:g}", again)
    least_memory = peaks.least_memory_us(record.arch, size)
    if least_memory is not None and fraction is not None and record.time_us < least_memory:
        expected = f"at least {least_memory:.4g} ({record.arch} cannot move {size / 1e6:.4g} MB in less)"
        raise fields.refused(op.name, "time_us", expected, f"{record.time_us:g}", again)
