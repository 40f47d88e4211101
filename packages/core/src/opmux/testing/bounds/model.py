"""The interface of error bound derivations: the call that they receive, and the allowance that they return."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opmux.callpath.op import Op

ROUNDED_PROBABILITIES = 2.0**-8
"""Unit roundoff of bfloat16."""

OF_A_ROOT = 2.5
"""How much noise an element may have, in roots of the sum of the squares of what is rounded."""

CODES_APART = 1
CODES_FRACTION = 1e-3
SCALE_ULPS = 2.0


@dataclass(frozen=True)
class Allowance:
    """The error allowed in an output, besides the rounding to its own dtype.

    Attributes:
        magnitude: in units of the accumulation dtype's unit roundoff; float64, of the output's shape.
        noise: in units of bfloat16's unit roundoff; None where nothing may be rounded to it.
        ulps: in ulp of the output, besides its own rounding.
        added: the size of what an op adds to a tensor that it changes; where it is 0 nothing may change. None for an op
            that replaces what it changes.
        along_rows: by what the noise of each row, taken as a whole, exceeds that of independent errors; None for 1.
    """

    magnitude: Tensor | float = 0.0
    noise: Tensor | None = None
    ulps: float = 0.0
    added: Tensor | None = None
    along_rows: Tensor | None = None


Derivation = Callable[["Given"], Sequence[Allowance]]

DERIVATIONS: dict[str, Derivation] = {}
"""op -> the function that derives the allowance of each of its outputs."""


def derives(*ops: str) -> Callable[[Derivation], Derivation]:
    """Register the derivation of ops: a function from `Given` to an `Allowance` for each output, in order."""

    def register(function: Derivation) -> Derivation:
        DERIVATIONS.update(dict.fromkeys(ops, function))
        return function

    return register


@dataclass(frozen=True)
class Given:
    """A call as a derivation sees it.

    Attributes:
        tensors: the operands in float64, with 0 for NaN and Inf (results that depend on those are not finite either).
        options: the options.
        expected: the exact results, with 0 for NaN and Inf.
        sixteen: whether the inputs are 16-bit, so that probabilities may be kept in bfloat16.
        raw: the operands with their NaN and Inf.
        half: whether the 16-bit inputs are float16, so that probabilities may be kept in float16.
        smallest: the smallest normal number of the accumulation dtype; smaller values may be flushed to zero.
        unit: the unit roundoff of the accumulation dtype.
    """

    op: Op
    tensors: Mapping[str, Any]
    options: Mapping[str, Any]
    expected: tuple[Tensor, ...]
    sixteen: bool
    raw: Mapping[str, Any]
    half: bool = False
    smallest: float = torch.finfo(torch.float32).tiny
    unit: float = 2.0**-24

    def __getitem__(self, name: str) -> Tensor:
        value: Tensor = self.tensors[name]
        return value

    def wants(self, place: int) -> bool:
        """Whether the output is wanted."""
        mask = self.options.get("output_mask")
        return mask is None or mask[place]

    def kept(self, values: Tensor) -> Tensor:
        """Adjust magnitudes of values that may be kept in 16 bits.

        Below 2**-16 a float16 is off by more than bfloat16's half step: by half of its own subnormal step, 2**-25,
        which is bfloat16's half step at 2**-16. (0 is exact.)
        """
        sizes = values.abs()
        return torch.where(sizes > 0, sizes.clamp_min(2.0**-16), sizes) if self.half else sizes

    def noise(self, root: Tensor, result: Tensor) -> Tensor | None:
        """The noise of products with rounded probabilities, given the root of the sum of their squares."""
        return OF_A_ROOT * root + result.abs() if self.sixteen else None


repeated = ContextVar("repeated", default=False)
"""Whether the operands of the current call repeat one entry, so that all terms of a sum round the same way."""


def roundings(terms: int, alike: float = 1.0) -> float:
    """The error allowed for a sum of this many terms in any order, in unit roundoffs.

    Args:
        terms: how many terms.
        alike: how many of them are the same number, at most: these round the same way.
    """
    return 4.0 + (terms if repeated.get() else math.sqrt(terms * max(1.0, alike)))


def unit_roundoff(dtypes: Sequence[torch.dtype]) -> float:
    """The unit roundoff of the accumulation dtype for operands of these dtypes."""
    return 2.0**-53 if torch.float64 in dtypes else 2.0**-24


def finite(value: Any) -> Any:
    """A float64 tensor with 0 for NaN and Inf; anything else is unchanged."""
    if isinstance(value, Tensor) and value.dtype == torch.float64:
        return value.nan_to_num(0.0, 0.0, 0.0)
    return value


def averaged(count: int) -> float:
    """The share of the noise of a row of this many elements, with independent errors, that its norm may reach."""
    return min(1.0, 0.25 + 2 / math.sqrt(max(1, count)))


def row_sums(x: Tensor) -> Tensor:
    """Sums over the last dim, kept as a dim of one."""
    return x.sum(-1, keepdim=True)


def row_means(x: Tensor) -> Tensor:
    """Means over the last dim, kept as a dim of one."""
    return row_sums(x) / max(1, x.shape[-1])
