"""The arguments of a point's call, and the smaller call on which its results are compared with the oracle."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from opmux.shapes.point import Point
from opmux.signatures.validation import check_call
from opmux.testing.case import Case
from opmux.testing.contents import FULL
from opmux.testing.inputs import make_arguments
from opmux.testing.making import Arguments
from opmux.tuning.matching import matching_of

LEAST = 128
"""The size below which no dim of a call is reduced: kernels for prefill want as many."""

_TOTALS = frozenset({"tokens", "tokens_q", "tokens_k", "pages"})
"""Sums over a batch, for ops whose batch is a dim of its own."""

_FLOAT64 = 8
_TEMPORARIES = 6
"""Tensors of the results' size, and of the scores', that the oracle and its bounds hold at a time."""


@dataclass(frozen=True)
class Budget:
    """What the oracle of one call may cost.

    Attributes:
        memory: bytes.
        flops: floating-point operations in float64.
    """

    memory: float
    flops: float

    @classmethod
    def of_device(cls, device: torch.device) -> "Budget":
        """About a second on the device, and a tenth of its memory."""
        if device.type == "cpu":
            return cls(2.0**28, 4e9)
        return cls(min(2.0**33, torch.cuda.get_device_properties(device).total_memory / 10), 4e12)


def arguments_of(point: Point, device: torch.device, exact: bool) -> Arguments:
    """Arguments of a point's call: all sequences alike, and as long as its dims and options allow.

    Args:
        point: the call.
        device: the device of the tensors.
        exact: whether results of a forward that a backward takes are the reference's, or those of whatever is chosen.
    """
    case = Case(point.op, point.dtypes, point.shaped_dims, point.options, data=FULL)
    if exact:
        return make_arguments(case, device)
    return make_arguments(case, device, forward=lambda op: op.public)


def fitted(point: Point, budget: Budget) -> Point:
    """The same call, with fewer sequences and then fewer tokens until its oracle fits the budget."""
    while not _fits(point, budget):
        smaller = _halved(point)
        if smaller == point:
            break
        point = smaller
    return point


def _fits(point: Point, budget: Budget) -> bool:
    op, options = point.definition, point.all_options
    flops = op.count_flops({**options, **point.dims}) or 0
    tensors = point.tensors()
    dims, options = check_call(op.signature, tensors, options)
    operands = sum(t.numel() for t in tensors.values() if t is not None)
    results = sum(math.prod(shape) for shape in op.signature.output_shapes(dims, options))
    elements = operands + _TEMPORARIES * (results + _scores(point))
    return flops <= budget.flops and _FLOAT64 * elements <= budget.memory


def _scores(point: Point) -> int:
    """Elements of the scores of attention, 0 for other ops."""
    sizes = {**point.dims, **point.options}
    queries = sizes.get("seq_q", sizes.get("tokens_q", sizes.get("tokens", 0)))
    keys = sizes.get("seq_k", sizes.get("max_seqlen_k", 0))
    batch = sizes["batch"] if "seq_q" in sizes else 1
    return int(batch * sizes.get("heads", 0) * queries * keys)


def _blocks_of_fewer_rows(dims: Mapping[str, int], changed: Mapping[str, int]) -> dict[str, int]:
    """How many blocks of rows have a scale where the rows are changed: one a row, one for 128, or one for all."""
    rows = next((name for name in ("m", "max_m") if name in changed), None)
    if rows is None or dims.get("m_blocks", 1) == 1:
        return {}
    return {"m_blocks": changed[rows] if dims["m_blocks"] == dims[rows] else -(-changed[rows] // 128)}


def _halved(point: Point) -> Point:
    """Half the sequences, or if there is one only, half of every other size that changes from call to call."""
    near = set(matching_of(point.definition).nearest)
    sizes: dict[str, Any] = {n: v for n, v in {**point.dims, **point.options}.items() if n in near | _TOTALS}
    batch = sizes.get("batch", 1)
    if batch > 1:
        part = batch // 2
        changed = {n: max(part, v * part // batch) for n, v in sizes.items() if n in _TOTALS} | {"batch": part}
    else:
        changed = {n: max(LEAST, v // 2) if v and v > LEAST else v for n, v in sizes.items() if n in near}
    dims = {n: changed.get(n, v) for n, v in point.dims.items()} | _blocks_of_fewer_rows(point.dims, changed)
    return replace(point, dims=dims, options={n: changed.get(n, v) for n, v in point.options.items()})
