"""Comparing an output with the oracle, under the bounds that `opmux.testing.bounds` derives."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from opmux.dtypes import name_of
from opmux.testing.bounds import CODES_APART, CODES_FRACTION, ROUNDED_PROBABILITIES, Allowance
from opmux.testing.bounds.model import averaged

LARGEST_TOLD = 1e300
"""The value of an infinite error in a report, because JSON has no infinity."""


@dataclass
class Errors:
    """Errors divided by their bounds: above 1 is a failure.

    Attributes:
        whole: the error of the whole output, in the Frobenius norm (``global`` in reports).
        row: the error of the worst row of the last dim.
        element: the error of the worst element.
        compared: whether anything was compared.
    """

    whole: float = 0.0
    row: float = 0.0
    element: float = 0.0
    compared: bool = False

    def include(self, other: "Errors") -> None:
        """Keep the larger of each."""
        self.whole = max(self.whole, other.whole)
        self.row = max(self.row, other.row)
        self.element = max(self.element, other.element)
        self.compared = self.compared or other.compared

    def as_dict(self) -> dict[str, float | None]:
        """The form used in reports; None if nothing was compared."""
        found = {"global": self.whole, "row": self.row, "element": self.element}
        return {name: min(error, LARGEST_TOLD) if self.compared else None for name, error in found.items()}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        check: the check that found it.
        message: what it found.
        traceback: the traceback of the target, if it raised.
    """

    check: str
    message: str
    traceback: str = ""


def compare(name: str, got: Tensor, exact: Tensor, allowance: Allowance, unit: float) -> tuple[Errors, list[Finding]]:
    """Compare one output with the oracle.

    Args:
        name: the output's name, for messages.
        got: what the target returned.
        exact: the oracle's result, in float64; for codes, the values they are rounded from, or the codes themselves.
        allowance: the error allowed, besides the output's own rounding.
        unit: the unit roundoff of the accumulation dtype.
    """
    if got.numel() == 0:
        return Errors(), []
    if not got.dtype.is_floating_point and not is_code(got.dtype):
        return _compare_integers(name, got, exact)
    if is_code(got.dtype):
        return _compare_codes(name, got, exact, allowance, unit)
    target, exact = got.to(torch.float64), _overflown(exact.to(torch.float64), got.dtype)
    findings = _compare_nonfinite(name, target, exact)
    finite = exact.isfinite() & target.isfinite()
    error = torch.where(finite, target - exact, 0.0).abs()
    terms = _terms(torch.where(finite, exact, 0.0), allowance, unit, got.dtype)
    ratio = _ratio(error, terms.rounding + terms.soft + terms.noise)
    errors = Errors(element=float(ratio.max()), compared=True)
    errors.whole = float(_norm_ratio(error.reshape(1, -1), terms.flat()))
    errors.row = errors.whole
    rows = None
    if got.dim() > 1:
        rows = _norm_ratio(error, terms, allowance.along_rows)
        errors.row = float(rows.max())
    if errors.element > 1:
        findings.append(_element(name, got, exact, error, ratio))
    if errors.row > 1 and rows is not None:
        place = _where(rows, int(rows.argmax()))
        findings.append(Finding("row bound", f"`{name}`[{place}] errs by {errors.row:.4g} x its bound as a whole row"))
    if errors.whole > 1:
        relative = float(torch.linalg.vector_norm(error) / torch.linalg.vector_norm(exact[finite]).clamp_min(1e-300))
        findings.append(
            Finding(
                "global bound",
                f"`{name}` errs by {errors.whole:.4g} x its bound as a whole "
                f"(relative Frobenius error {relative:.3g}, allowed {relative / errors.whole:.3g})",
            )
        )
    return errors, findings


def is_code(dtype: torch.dtype) -> bool:
    """Whether values of this dtype are compared as codes: 8-bit floats and integers."""
    return dtype.itemsize == 1 and dtype != torch.bool


def ulp(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The spacing of the dtype's numbers at each value, in float64."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(value)
    lowest = math.frexp(info.smallest_normal)[1]
    # frexp's mantissa is in [1/2, 1), so the leading bit is worth 2**(exponent - 1); the exponent of 0 is 0.
    exponent = torch.where(value == 0, lowest, exponent.clamp_min(lowest))
    return torch.ldexp(torch.ones_like(value), exponent - 1) * info.eps


@dataclass(frozen=True)
class _Terms:
    """The terms of a bound, in float64: rounding to the output, accumulation, probabilities in bfloat16.

    Attributes:
        rounded: the error of the exact result when rounded to the output's dtype.
    """

    rounding: Tensor
    soft: Tensor
    noise: Tensor
    rounded: Tensor

    def flat(self) -> "_Terms":
        """The same terms as one row."""
        return _Terms(*(t.reshape(1, -1) for t in (self.rounding, self.soft, self.noise, self.rounded)))


def _terms(exact: Tensor, allowance: Allowance, unit: float, dtype: torch.dtype) -> _Terms:
    soft = torch.as_tensor(allowance.magnitude, dtype=torch.float64, device=exact.device) * unit
    # Arithmetic may flush subnormal numbers to zero.
    soft = soft.expand_as(exact) + (soft > 0) * 8 * torch.finfo(torch.float32).tiny
    noise = torch.zeros_like(exact)
    if allowance.noise is not None:
        noise = allowance.noise * ROUNDED_PROBABILITIES
    spacing = ulp(exact.abs() + soft + noise, dtype)
    rounding, soft = 0.5 * spacing, soft + allowance.ulps * spacing
    if dtype == torch.float64:
        rounding, soft = 2 * rounding, 2 * soft
    return _Terms(rounding, soft, noise, exact.to(dtype).to(torch.float64) - exact)


def _norm_ratio(error: Tensor, terms: _Terms, along_rows: Tensor | None = None) -> Tensor:
    """The norm of each row of errors divided by its bound.

    Rounding errors average out unless results are alike and round alike; the norm of the correctly rounded row is
    always allowed. ``along_rows`` is as in `Allowance`.
    """
    count = error.shape[-1]
    # Large ulps dominate: a few of them average like a short row.
    weights = terms.rounding.square()
    alike = weights.sum(-1).square() / weights.square().sum(-1).clamp_min(1e-300)
    mean_square = torch.clamp(0.125 * (1 + 6 / alike.clamp_min(1.0).sqrt()), max=0.25)
    share: Tensor | float = averaged(count)
    if along_rows is not None:
        share = share * along_rows
    rounding, soft, noise, rounded, norm = (
        torch.linalg.vector_norm(t, dim=-1) for t in (terms.rounding, terms.soft, terms.noise, terms.rounded, error)
    )
    bound = torch.maximum(2 * mean_square.sqrt() * rounding, rounded) + soft + share * noise
    return _ratio(norm, bound)


def _ratio(error: Tensor, bound: Tensor) -> Tensor:
    """Errors divided by bounds; any error under a NaN bound fails."""
    return torch.where(error == 0, 0.0, error / bound).nan_to_num(nan=math.inf, posinf=math.inf)


def _overflown(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """The exact result, infinite where the output's dtype overflows."""
    rounded = exact.to(dtype)
    return torch.where(rounded.isinf(), rounded.to(torch.float64), exact)


def _compare_nonfinite(name: str, got: Tensor, exact: Tensor) -> list[Finding]:
    """Require NaN exactly where the oracle has NaN, and each infinity where it has the same one."""
    kinds = (
        ("NaN", torch.isnan),
        ("inf", torch.isposinf),
        ("-inf", torch.isneginf),
    )
    for kind, holds in kinds:
        wanted, found = holds(exact), holds(got)
        missing, surplus = wanted & ~found, found & ~wanted
        for wrong, says in ((missing, f"should be {kind}"), (surplus, f"must not be {kind}")):
            count = int(wrong.sum())
            if count:
                place = int(wrong.reshape(-1).int().argmax())
                value, right = got.reshape(-1)[place], exact.reshape(-1)[place]
                return [
                    Finding(
                        "NaN and Inf",
                        f"{count} elements of `{name}` {says}, the first at [{_where(got, place)}]: "
                        f"got {value:.6g}, exact {right:.6g}",
                    )
                ]
    return []


def _element(name: str, got: Tensor, exact: Tensor, error: Tensor, ratio: Tensor) -> Finding:
    place = int(ratio.reshape(-1).argmax())
    worst = float(ratio.reshape(-1)[place])
    off, value, right = (float(t.reshape(-1)[place]) for t in (error, got.to(torch.float64), exact))
    count = int((ratio > 1).sum())
    return Finding(
        "element bound",
        f"`{name}`[{_where(got, place)}] = {value:.9g}, exact {right:.9g}: the error {off:.3g} is {worst:.4g} x "
        f"its bound {off / worst:.3g}; {count} of {ratio.numel()} elements ({name_of(got.dtype)}) exceed theirs",
    )


def _where(tensor: Tensor, place: int) -> str:
    indices = []
    for size in reversed(tensor.shape):
        indices.append(place % size)
        place //= size
    return ", ".join(map(str, reversed(indices)))


def _compare_codes(
    name: str, got: Tensor, exact: Tensor, allowance: Allowance, unit: float
) -> tuple[Errors, list[Finding]]:
    """Compare codes of 8-bit formats: the same NaNs, and at most one code apart on a few elements.

    If the exact value is so near a tie that a correct kernel may round it either way, both codes are right.
    """
    lowest = highest = exact
    if exact.dtype == torch.float64:
        soft = torch.as_tensor(allowance.magnitude, dtype=torch.float64, device=exact.device) * unit
        lowest, highest = (requantised(exact + side * soft, got.dtype) for side in (-1, 1))
        exact = requantised(exact, got.dtype)
    findings = []
    if got.dtype.is_floating_point:
        findings = _compare_nonfinite(name, got.to(torch.float64), exact.to(torch.float64))
    code = _order(got)
    apart = torch.maximum(_order(lowest) - code, code - _order(highest)).clamp_min(0)
    if got.dtype.is_floating_point:
        apart = torch.where(got.to(torch.float32).isnan() | exact.to(torch.float32).isnan(), 0, apart)
    most, count = int(apart.max()), int((apart > 0).sum())
    allowed = max(1, int(CODES_FRACTION * apart.numel()))
    errors = Errors(count / allowed, count / allowed, most / CODES_APART, compared=True)
    if most > CODES_APART:
        place = int(apart.reshape(-1).argmax())
        values = [float(t.reshape(-1)[place].to(torch.float32)) for t in (got, exact)]
        findings.append(
            Finding(
                "codes",
                f"`{name}`[{_where(got, place)}] = {values[0]:g}, exact {values[1]:g}: {most} codes apart, "
                f"{CODES_APART} is allowed",
            )
        )
    if count > allowed:
        findings.append(
            Finding(
                "number of codes", f"{count} of {apart.numel()} codes of `{name}` are not the exact ones, {allowed} may"
            )
        )
    return errors, findings


def _compare_integers(name: str, got: Tensor, exact: Tensor) -> tuple[Errors, list[Finding]]:
    """Compare indices, counts and flags, which must be equal."""
    wrong = got != exact
    count = int(wrong.sum())
    if not count:
        return Errors(compared=True), []
    place = int(wrong.reshape(-1).int().argmax())
    value, right = got.reshape(-1)[place].item(), exact.reshape(-1)[place].item()
    return Errors(math.inf, math.inf, math.inf, compared=True), [
        Finding(
            "integers",
            f"`{name}`[{_where(got, place)}] = {value}, exact {right}; {count} of {got.numel()} elements are wrong",
        )
    ]


def requantised(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to an 8-bit dtype, ties to even, saturating; a NaN becomes 0 in an integer, which is symmetric."""
    if dtype == torch.int8:
        return values.nan_to_num(nan=0.0).round().clamp(-127, 127).to(dtype)
    largest = torch.finfo(dtype).max
    return values.clamp(-largest, largest).to(dtype)


def _order(codes: Tensor) -> Tensor:
    """Codes as integers in the order of their values, neighbours one apart."""
    if not codes.dtype.is_floating_point:
        return codes.to(torch.int32)
    raw = codes.view(torch.uint8).to(torch.int32)
    return torch.where(raw >= 128, -(raw - 128), raw)
