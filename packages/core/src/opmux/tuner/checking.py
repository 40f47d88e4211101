"""Checking candidates: by the conformance suite's bounds, and against each other where the oracle costs too much."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from opmux.bench.work import difference
from opmux.shapes.point import Point
from opmux.testing.bounds import Allowance, allowed_errors
from opmux.testing.comparison import Errors, compare
from opmux.testing.oracle import ROUNDED, expected_results, mutated, result_names
from opmux.testing.unwritten import settled
from opmux.tuner.calls import Budget, arguments_of, fitted

AGREES = 0.03
"""How far results of two candidates may be apart, as a fraction of the largest magnitude; of 8-bit floats which share
of them may differ, each by one step: half a unit of the quantised value's last place may round either way."""

_RETRIES = 2
"""How often a smaller call is tried where the device has no room for the oracle of one."""

Run = Callable[..., Any]
Expected = tuple[Sequence[Tensor], Sequence[Allowance], float]
"""The exact results, the error allowed in each, and the unit roundoff of the accumulation dtype."""


class Wrong(Exception):
    """A candidate's result is wrong; the message says how."""


class Prepared:
    """The arguments of one call, and how to run candidates on them."""

    def __init__(self, point: Point, device: torch.device, exact: bool) -> None:
        self.op = point.definition
        self.arguments = arguments_of(point, device, exact)
        self._mutated = [self.arguments.tensors[name] for name in mutated(self.op)]
        self._originals = [tensor.clone() for tensor in self._mutated if tensor is not None]

    @property
    def restore(self) -> Callable[[], None] | None:
        """What restores the tensors that the op mutates; None where there are none."""
        return self._restore if self._mutated else None

    def call(self, run: Run) -> Callable[[], Any]:
        """The call of a candidate."""
        tensors, options = tuple(self.arguments.tensors.values()), self.arguments.options
        return lambda: run(*tensors, **options)

    def results(self, run: Run) -> list[Tensor]:
        """A candidate's results, with 0 in what the op leaves unwritten, or copies of the tensors that it mutates."""
        self._restore()
        found = self.call(run)()
        if self._mutated:
            copies = [tensor.clone() for tensor in self._mutated if tensor is not None]
            self._restore()
            return copies
        outputs = found if isinstance(found, (tuple, list)) else (found,)
        return list(settled(self.op, self.arguments.tensors, outputs))

    def _restore(self) -> None:
        for tensor, original in zip(self._mutated, self._originals, strict=True):
            if tensor is not None:
                tensor.copy_(original)


class Oracle:
    """The exact results of a point's call, or of a smaller one like it, and the error that is allowed."""

    def __init__(self, point: Point, device: torch.device) -> None:
        budget = Budget.of_device(device)
        for _ in range(_RETRIES):
            try:
                self._prepare(fitted(point, budget), device)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                budget = Budget(budget.memory / 4, budget.flops / 4)
            else:
                return
        self._prepare(fitted(point, budget), device)

    def _prepare(self, point: Point, device: torch.device) -> None:
        self.point, self.prepared = point, Prepared(point, device, exact=True)
        op = self.prepared.op
        self._own = (op.in_place_of or op.name) in ROUNDED
        self._expected = None if self._own else self._exact(())

    def _exact(self, results: Sequence[Tensor]) -> Expected:
        op, arguments = self.prepared.op, self.prepared.arguments
        exact = expected_results(op, arguments, results)
        allowed, unit = allowed_errors(op, arguments, exact)
        return exact, allowed, unit

    def error(self, run: Run) -> float:
        """The largest error of a candidate, as a fraction of its bound.

        Raises:
            Wrong: where it exceeds its bound.
            Exception: whatever the target raises.
        """
        op, results = self.prepared.op, self.prepared.results(run)
        exact, allowed, unit = self._exact(results) if self._expected is None else self._expected
        errors = Errors()
        for name, got, right, allowance in zip(result_names(op), results, exact, allowed, strict=True):
            if got.shape != right.shape:
                raise Wrong(f"`{name}` has shape {tuple(got.shape)}, expected {tuple(right.shape)}")
            found, findings = compare(name, got, right, allowance, unit)
            if findings:
                raise Wrong(findings[0].message)
            errors.include(found)
        return max(errors.whole, errors.row, errors.element)


class Agreement:
    """Results of the whole call in groups that agree: the largest group is right."""

    def __init__(self) -> None:
        self._groups: list[tuple[list[Tensor], list[int]]] = []

    def enter(self, number: int, results: list[Tensor]) -> None:
        """Put a candidate's results into the first group that they agree with; NaN and infinities count as 0."""
        results = [
            r.nan_to_num(0.0, 0.0, 0.0) if r.dtype.is_floating_point and r.dtype.itemsize > 1 else r for r in results
        ]
        for representative, members in self._groups:
            if _agree(results, representative):
                members.append(number)
                return
        self._groups.append((results, [number]))

    def outside(self) -> set[int]:
        """The candidates that are not in the largest group; of equally large ones the first is right."""
        if not self._groups:
            return set()
        largest = max(self._groups, key=lambda group: len(group[1]))
        return {number for group in self._groups if group is not largest for number in group[1]}


def _agree(results: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether two candidates' results are those of one call."""
    pairs = list(zip(results, others, strict=True))
    plain = [pair for pair in pairs if not _is_code(pair[0].dtype)]
    if difference([mine for mine, _ in plain], [theirs for _, theirs in plain]) > AGREES:
        return False
    return all(_codes_agree(*pair) for pair in pairs if _is_code(pair[0].dtype))


def _is_code(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize == 1 and dtype != torch.float8_e8m0fnu


def _codes_agree(mine: Tensor, theirs: Tensor) -> bool:
    """Whether codes differ by one step at most, and few of them do."""
    info = torch.finfo(mine.dtype)
    a, b = mine.to(torch.float32).nan_to_num(0.0), theirs.to(torch.float32).nan_to_num(0.0)
    step = torch.maximum(a.abs(), b.abs()).mul_(info.eps).clamp_(min=info.tiny * info.eps)
    apart = (a - b).abs_()
    unlike = int(torch.count_nonzero(apart))
    return unlike <= max(AGREES * a.numel(), 1) and bool((apart <= step).all())
