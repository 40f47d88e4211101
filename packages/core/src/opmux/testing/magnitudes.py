"""Large numbers: how far the elements of an argument may grow before the op's own reference overflows.

Up to this limit the reference stays finite and within its bounds, in the dtypes of the case, and some result is
determined. A kernel that overflows earlier, where the formula does not (``exp(g) / (1 + exp(g))`` for a sigmoid),
fails.

A result is determined if its bound, which is how far roundings can move it, is smaller than the result itself. The
backward of attention takes the probabilities from an lse in float32: with scores of 1e6 no digit of them is left, the
bound admits nearly everything, and a case there would prove less than one with smaller numbers.
"""

import torch
from torch import Tensor

from opmux.testing.bounds import Allowance, allowed_errors
from opmux.testing.case import Case
from opmux.testing.comparison import compare
from opmux.testing.inputs import make_arguments
from opmux.testing.making import Arguments
from opmux.testing.oracle import Results, expected_results, reference_results

PROBE = "magnitude"
"""The probe whose cases hold large numbers."""

STEPS = 16
"""The number of limits that are tried, evenly spread over the exponents of a dtype."""

KEPT = 0.9
"""The fraction of the exponent range that is used: a kernel may sum in another order and overflow a little earlier."""

_known: dict[tuple[str, str, torch.device], int] = {}


def doublings_of(case: Case, device: torch.device) -> int:
    """How often the elements of the argument that the case names may be doubled; 0 in cases of other probes."""
    if case.probe != PROBE or case.data not in case.dtypes:
        return 0
    key = (case.op, case.id, device)
    if key not in _known:
        _known[key] = _search(case, device)
    return _known[key]


def _search(case: Case, device: torch.device) -> int:
    dtype = case.dtypes[case.data]
    if not dtype.is_floating_point or dtype.itemsize == 1:
        return 0
    exponents = int(torch.frexp(torch.tensor(torch.finfo(dtype).max, dtype=torch.float64))[1])
    with torch.no_grad():
        finite = _finite(reference_results(case.definition, make_arguments(case, device)))
        for step in range(STEPS, 0, -1):
            tried = exponents * step // STEPS
            limits = (tried, int(KEPT * tried))
            if all(_holds(case, make_arguments(case, device, doublings=limit), finite) for limit in limits):
                return limits[-1]
    return 0


def _finite(results: Results) -> list[int]:
    return [int(r.to(torch.float64).isfinite().sum()) for r in results]


def _holds(case: Case, arguments: Arguments, finite: list[int]) -> bool:
    """Whether the reference is finite wherever it is for plain numbers and within its bounds, and what they allow."""
    op = case.definition
    results = reference_results(op, arguments)
    if _finite(results) != finite:
        return False
    exact = expected_results(op, arguments, results)
    allowed, unit = allowed_errors(op, arguments, exact)
    if not any(_determined(right, allowance, unit) for right, allowance in zip(exact, allowed, strict=True)):
        return False
    return not any(
        compare("", got, right, allowance, unit)[1]
        for got, right, allowance in zip(results, exact, allowed, strict=True)
        if got.shape == right.shape
    )


def _determined(exact: Tensor, allowance: Allowance, unit: float) -> bool:
    """Whether the accumulation's share of a bound is smaller than the result; both as a whole."""
    if not exact.dtype.is_floating_point:
        return True
    size = exact.to(torch.float64).nan_to_num(0.0, 0.0, 0.0)
    bound = unit * torch.as_tensor(allowance.magnitude, dtype=torch.float64, device=exact.device).expand_as(size)
    return bool(torch.linalg.vector_norm(bound) <= torch.linalg.vector_norm(size))
