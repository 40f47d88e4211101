"""Checks of measured rows: what a heading says is checked once, what a row says in each row, against what is possible.

A file may hold thousands of rows and is read when the plugins are loaded, so a row costs microseconds here: only the
first good row of a heading is checked as a whole call, the others by the expressions that depend on dims.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch

from opmux.callpath.op import Op
from opmux.declared.configs import check_config
from opmux.dtypes import short_name_of
from opmux.errors import InvalidArgument, TunedRecordError
from opmux.near import did_you_mean
from opmux.signatures.expressions import evaluate
from opmux.signatures.validation import check_call
from opmux.tuning import fields, peaks
from opmux.tuning.checks import ERROR_BOUND, LARGEST_DIM, check_arch, check_implementation
from opmux.tuning.matching import attended, matching_of, shrinks
from opmux.tuning.measured.row import FailedConfig, Machine, MeasuredRow
from opmux.tuning.record import known_op
from opmux.tuning.work import Work

_AGAIN = "measure again or drop the row"


class Heading:
    """What the rows below a heading share, checked once; `read` checks and makes one row."""

    def __init__(self, value: Mapping[str, Any], machine: Machine, configs: Mapping[str, Mapping[str, Any]]) -> None:
        """Read a heading.

        Args:
            value: its fields.
            machine: the machine that it names.
            configs: the configs that rows may name.

        Raises:
            TunedRecordError: if a name or a value in it is not known.
        """
        self.op = op = known_op(str(value.get("op", "")))
        self.machine = machine
        self.implementation = check_implementation(op, "implementation", value.get("implementation"))
        self.dtypes = _dtypes(op, value.get("dtypes"))
        self.options = op.signature.settled(_options(op, value.get("options", "")), self.dtypes)
        self.dims = _names(op, "dims", value.get("dims"))
        self.sizes = size_options(op)
        expected = [*op.signature.binders, *self.sizes]
        if sorted(self.dims) != sorted(expected):
            got = ", ".join(self.dims) or "none"
            raise fields.refused(op.name, "dims", ", ".join(expected), got, "name each once")
        self.compared = tuple(_names(op, "compared", value.get("compared", [self.implementation])))
        if self.implementation not in self.compared:
            got = ", ".join(self.compared) or "none"
            raise fields.refused(op.name, "compared", f"`{self.implementation}` among them", got, "name its own too")
        self.work = Work(op, self.dtypes, self.options)
        self._registered = next((i for i in op.implementations if i.full_name == self.implementation), None)
        self._configs = configs
        self._config_faults: dict[str, str | None] = {}
        self._whole_call_checked = False
        self._judged = not shrinks(self.work.options)
        self._rate = peaks.peak_tflops(machine.arch, self.dtypes.values())

    def read(self, value: list[Any], file: str, line: int) -> MeasuredRow | FailedConfig:
        """Make a row of an array.

        Raises:
            TunedRecordError: names the op, the field, what was expected, what was given and what to do.
        """
        op = self.op.name
        if len(value) not in (2, 3) or not isinstance(value[0], list) or len(value[0]) != len(self.dims):
            shape = f"[[{', '.join(self.dims)}], [time_us, spread, error]] and a config's name"
            raise fields.refused(op, "row", shape, _short(value), "write what the heading names")
        dims = dict(zip(self.dims, value[0], strict=True))
        for name, size in dims.items():
            if size.__class__ is not int or not 0 < size <= LARGEST_DIM:
                raise fields.refused(op, "dims", f"a positive size for `{name}`", repr(size), "measure a real call")
        self._check_dims(dims)
        options = {**self.options, **{name: dims.pop(name) for name in self.sizes}} if self.sizes else self.options
        config = self._config(value[2]) if len(value) == 3 else None
        if isinstance(value[1], str):
            return FailedConfig(
                op, self.dtypes, options, dims, self.implementation, self.machine, config, value[1], file, line
            )
        time_us, spread, error, flops, moved = self._figures(value[1])
        self._check_possible({**dims, **options} if self.sizes else dims, time_us, flops, moved)
        return MeasuredRow(
            op, self.dtypes, options, dims, self.implementation, self.machine, time_us, spread, error,
            self.compared, config, flops, moved, file, line,
        )  # fmt: skip

    def _check_dims(self, dims: dict[str, int]) -> None:
        """Hold the dims to the op's relations; the first row of a heading also to everything else of the signature."""
        signature, options = self.op.signature, self.work.options
        if not self._whole_call_checked:
            options = {**options, **{name: dims[name] for name in self.sizes}}
            sizes = {name: (size,) if name in signature.stars else size for name, size in dims.items()}
            try:
                tensors = {
                    t.name: torch.empty(t.shape.value(sizes, options), dtype=self.dtypes[t.name], device="meta")
                    if t.name in self.dtypes
                    else None
                    for t in signature.tensors
                }
                check_call(signature, tensors, options)
            except InvalidArgument as error:
                raise TunedRecordError(str(error)) from None
            except (RuntimeError, TypeError, OverflowError, ValueError) as error:
                text = str(error).partition("\n")[0]
                expected = "sizes of tensors that torch can hold"
                raise fields.refused(self.op.name, "dims", expected, text, "correct the row") from None
            self._whole_call_checked = True
            return
        given = {t.name: True if t.name in self.dtypes else None for t in signature.tensors}
        for requirement in signature.require:
            names = {**given, **options, **dims}
            if not evaluate(requirement.expression, names):
                got = ", ".join(f"{n}={dims[n]}" for n in requirement.names if n in dims)
                raise fields.refused(self.op.name, "dims", requirement.expression, got, requirement.text_for(names))

    def _config(self, label: Any) -> Mapping[str, Any]:
        """The config of this name, held to the schema of its implementation where that is installed."""
        config = self._configs.get(label) if isinstance(label, str) else None
        if config is None:
            expected = "the name of a config described above"
            raise fields.refused(self.op.name, "config", expected, repr(label), "write its line, or drop the row")
        if self._registered is not None:
            if label not in self._config_faults:
                self._config_faults[label] = check_config(self._registered, config)
            if (reason := self._config_faults[label]) is not None:
                expected, got = f"a config of {self.implementation}", f"{label}: {reason}"
                raise fields.refused(self.op.name, "config", expected, got, _AGAIN)
        return config

    def _figures(self, values: Any) -> tuple[float, float, float | None, float | None, float | None]:
        op = self.op.name
        if not isinstance(values, list) or len(values) not in (3, 5):
            expected = "[time_us, spread, error], or these and [flops, bytes], or why the config failed"
            raise fields.refused(op, "figures", expected, _short(values), "correct the row")
        time_us, spread, error = values[:3]
        if not _is_number(time_us) or time_us <= 0:
            raise fields.refused(op, "time_us", "a positive number of microseconds", repr(time_us), _AGAIN)
        if not _is_number(spread) or spread < 0:
            raise fields.refused(op, "spread", "a finite number, 0 or more", repr(spread), _AGAIN)
        if error is not None and (not _is_number(error) or error < 0):
            expected = "a finite number, 0 or more, or null where the reference was not computed"
            raise fields.refused(op, "error", expected, repr(error), _AGAIN)
        if error is not None and error > ERROR_BOUND:
            expected = f"at most {ERROR_BOUND}, the conformance bound"
            raise fields.refused(op, "error", expected, repr(error), "do not use that kernel: it is wrong")
        work = [*values[3:], None, None][:2]
        for name, number in zip(("flops", "bytes"), work, strict=True):
            if number is not None and (not _is_number(number) or number < 0):
                raise fields.refused(op, name, "a finite number, 0 or more", repr(number), _AGAIN)
        flops, moved = (None if number is None else float(number) for number in work)
        return float(time_us), float(spread), None if error is None else float(error), flops, moved

    def _check_possible(self, dims: dict[str, int], time_us: float, flops: float | None, moved: float | None) -> None:
        """Refuse a time that beats the arch's datasheet."""
        work, arch = self.work, self.machine.arch
        if not self._judged or (flops is None and moved is None and work.by_data):
            return
        least = 0.0
        if self._rate is not None:
            least = 1e-6 * (work.flops(dims) if flops is None else flops) / self._rate
        size = work.moved_bytes(dims) if moved is None else moved
        whole = not work.options.get("causal") or attended(dims, work.options) is not None
        least_memory = peaks.least_memory_us(arch, size) if whole else None
        if time_us < max(least, least_memory or 0.0):
            what = f"{arch} cannot do {_rates(self._rate, self.dtypes)}or move {size / 1e6:.4g} MB in less"
            expected = f"at least {max(least, least_memory or 0.0):.4g} ({what})"
            again = "the clock missed some of the work: measure again"
            raise fields.refused(self.op.name, "time_us", expected, f"{time_us:g}", again)


def size_options(op: Op) -> tuple[str, ...]:
    """The options that are sizes: each row states them among its dims."""
    return tuple(name for name in matching_of(op).nearest if name not in op.signature.binders)


def check_machine(value: Mapping[str, Any]) -> Machine:
    """Make a machine of the fields of a line.

    Raises:
        TunedRecordError: if a field is missing or not what it should be.
    """
    texts = {name: value.get(name, "") for name in ("arch", "device", "driver", "date")}
    numbers = {name: value.get(name, 0) for name in ("multiprocessors", "clock_mhz", "memory_gbps")}
    for name, text in texts.items():
        if not isinstance(text, str) or (name in ("arch", "device") and not text):
            raise fields.refused("machine", name, "a text", repr(text), "write what `opmux doctor` shows")
    check_arch("machine", texts["arch"])
    for name, number in numbers.items():
        if not _is_number(number) or number < 0:
            raise fields.refused("machine", name, "a finite number, 0 or more", repr(number), "correct the line")
    maps = {}
    for name, kind in (("versions", str), ("clocks", (int, float))):
        given = value.get(name, {})
        if not isinstance(given, Mapping) or not all(isinstance(v, kind) for v in given.values()):
            raise fields.refused("machine", name, "an object of names and values", repr(given), "correct the line")
        maps[name] = dict(given)
    return Machine(
        texts["arch"], texts["device"], int(numbers["multiprocessors"]), float(numbers["clock_mhz"]),
        float(numbers["memory_gbps"]), texts["driver"], maps["versions"], maps["clocks"], texts["date"],
    )  # fmt: skip


def _dtypes(op: Op, text: Any) -> dict[str, torch.dtype]:
    if not isinstance(text, str):
        raise fields.refused(op.name, "dtypes", "a text, as x=bf16;w=bf16", repr(text), "correct the heading")
    words = fields.read_pairs(op.name, "dtypes", text, "x=bf16;w=bf16")
    tensors = [t.name for t in op.signature.tensors]
    for name in words:
        if name not in tensors:
            remedy = f"{did_you_mean(name, tensors)}they are {', '.join(tensors)}"
            raise fields.refused(op.name, "dtypes", f"tensors of {op.name}", f"`{name}`", remedy)
    for tensor in op.signature.required:
        if tensor.name not in words:
            raise fields.refused(op.name, "dtypes", f"a dtype for `{tensor.name}`", "none", f"add {tensor.name}=...")
    return {name: fields.read_dtype(op.name, "dtypes", name, word) for name, word in words.items()}


def _options(op: Op, text: Any) -> dict[str, Any]:
    if not isinstance(text, str):
        raise fields.refused(op.name, "options", "a text, as causal=true", repr(text), "correct the heading")
    known = {o.name: o for o in op.signature.options if o.name not in size_options(op)}
    words = fields.read_pairs(op.name, "options", text, "causal=true")
    for name in words:
        if name not in known:
            remedy = f"{did_you_mean(name, known)}its options are {', '.join(known) or 'none'}"
            raise fields.refused(op.name, "options", f"options of {op.name}", f"`{name}`", remedy)
    for option in op.signature.options:
        name = option.name
        if option.required and name not in words and name not in size_options(op):
            raise fields.refused(op.name, "options", f"a value for `{name}`", "none", f"add {name}=...")
    return {name: fields.read_option(op.name, known[name], word) for name, word in words.items()}


def _names(op: Op, field: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise fields.refused(op.name, field, "a list of names", repr(value), "correct the heading")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: Any) -> str:
    return re.sub(r"\s+", " ", repr(value))[:80]


def _rates(rate: float | None, dtypes: Mapping[str, torch.dtype]) -> str:
    if rate is None:
        return ""
    return f"more than {rate:.4g} tflops in {'/'.join(sorted({short_name_of(d) for d in dtypes.values()}))} "
