"""Error bounds: how far a correct kernel may lie from the exact result. This is the only package that derives them.

**The model.** A correct kernel computes in the accumulation dtype, whose unit roundoff is ``u`` (2**-24 for float32,
2**-53 for float64), and rounds its result once to the output's dtype. So, with ``ulp(out)`` the spacing of the
output's dtype at the exact result,

    |error|  <=  1/2 ulp(out)  +  u * magnitude  +  2**-8 * noise

where *magnitude* is the family's formula evaluated with every operand (dequantised if 8-bit) replaced by its absolute
value, and each term multiplied by the number of roundings that it goes through. It is computed in float64 from the
operands of the call, for each element of each output: an element whose sum cancels may have a larger relative error
than one whose sum does not, which no constant tolerance can express.

**Sums.** A sum of n terms goes through n roundings in the worst order. Roundings go up as often as down: the error of
a sequential sum of terms of one sign has the standard deviation ``0.24 u sqrt(n) sum|t|``, of mixed signs ``0.4 u
sum|t|``. `roundings` therefore counts ``4 + sqrt(n)``: about four standard deviations of the worst order, which
admits every order, and half as many bits as a sum in bfloat16 would need. If the case repeats one entry along a summed
dim (the expanded view), all terms round the same way, and it counts ``4 + n``; if each number occurs ``m`` times, as
keys do in shared pages, ``4 + sqrt(n m)``.

**Probabilities in bfloat16.** Attention kernels multiply the probabilities P with V on matrix units that take 16-bit
operands, so for 16-bit inputs P (and in the backward dS) may be rounded to bfloat16. The roundings of the terms of one
sum are independent and each has a standard deviation of ``0.41 * 2**-8`` of its term: the sum's is ``0.41 * 2**-8 *
sqrt(P**2 @ V**2)``. For float16 inputs they may be float16, whose subnormals are coarser. *noise* is 2.5 of that root
(six standard deviations), plus the result itself once, for rows whose probabilities are all equal and round alike.
The terms of a key that occurs ``m`` times round alike too: they count ``m`` times in the sum under the root.

**Large scores.** The relative error of a probability is the error of its exponent, which grows with the scores. Where
it is no small number, the bound is the interval in which the probability may lie (`bounds.exponentials`).

**Three bounds.** For the worst element, as above. For the worst row (of the last dim) and for the whole output (in the
Frobenius norm) the norms of the three terms are added, the first and the third as averages: a rounding
error's mean square is 1/12 ulp**2 (1/8 where results lie on a grid of half an ulp), not 1/4, and noise averages out.
Rows and outputs that are rounded twice, or are off by a few codes everywhere, fail these two.

**Float64.** The oracle is no more accurate than the kernel, so both terms count twice.

**Quantised outputs** are compared by code: at most one code apart, on at most max(1, 0.1 %) of the elements; scales
within 2 ulp. If the exact quotient lies within its own roundings of a tie, both codes count as exact: 16-bit values lie
on ties too often for a fixed fraction.

**Ops that have no derivation here** (a plugin's own) are bounded by the perturbation of their oracle: a backward-stable
kernel gives the exact result of inputs that differ by a few u. A plugin can register a derivation with `derives`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from opmux.callpath.op import OPS, Op
from opmux.testing.bounds import (
    activations,
    attention,
    attention_backward,
    codes,
    grouped,
    losses,
    merging,
    model,
    norms,
    products,
)
from opmux.testing.bounds.model import (
    CODES_APART,
    CODES_FRACTION,
    DERIVATIONS,
    ROUNDED_PROBABILITIES,
    SCALE_ULPS,
    Allowance,
    Derivation,
    Given,
    derives,
    finite,
    roundings,
    unit_roundoff,
)
from opmux.testing.bounds.perturbation import by_perturbation
from opmux.testing.making import Arguments
from opmux.testing.oracle import upcast

FAMILIES = (activations, attention, attention_backward, codes, grouped, losses, merging, norms, products)
"""The modules that derive the bounds of the core's ops; importing them registers their derivations."""

__all__ = [
    "CODES_APART",
    "CODES_FRACTION",
    "DERIVATIONS",
    "FAMILIES",
    "ROUNDED_PROBABILITIES",
    "SCALE_ULPS",
    "Allowance",
    "Derivation",
    "Given",
    "allowances",
    "allowed_errors",
    "derives",
    "roundings",
    "unit_roundoff",
]


def allowances(
    op: Op,
    tensors: Mapping[str, Any],
    dtypes: Mapping[str, torch.dtype],
    options: Mapping[str, Any],
    expected: Sequence[Tensor],
    repeated: bool = False,
) -> tuple[Allowance, ...]:
    """Derive the allowance of each output of a call.

    Args:
        op: the op.
        tensors: the operands in float64, by name.
        dtypes: their dtypes before they were upcast.
        options: the options.
        expected: the exact results, in float64.
        repeated: whether tensors repeat one entry along their first dim.
    """
    meant = OPS[op.in_place_of] if op.in_place_of is not None else op
    statistics = {t.name for t in op.signature.tensors if t.group == "Statistic"}
    real = [d for name, d in dtypes.items() if d.is_floating_point and name not in statistics]
    real += [d for d in dtypes.values() if d.is_floating_point]
    sixteen = real[0].itemsize <= 2 if real else False
    clean = {name: finite(value) for name, value in tensors.items()}
    half = sixteen and real[0] == torch.float16
    wide = torch.float64 if torch.float64 in dtypes.values() else torch.float32
    smallest, unit = torch.finfo(wide).tiny, unit_roundoff(real)
    given = Given(meant, clean, options, tuple(map(finite, expected)), sixteen, tensors, half, smallest, unit)
    derive = DERIVATIONS.get(meant.name, by_perturbation)
    token = model.repeated.set(repeated)
    try:
        return tuple(derive(given))
    finally:
        model.repeated.reset(token)


def allowed_errors(
    op: Op, arguments: Arguments, exact: Sequence[Tensor], repeated: bool = False
) -> tuple[Sequence[Allowance], float]:
    """The allowance of each result of a call, and the unit roundoff of its accumulation dtype."""
    operands = {n: upcast(t) for n, t in arguments.tensors.items()}
    dtypes = {n: t.dtype for n, t in arguments.tensors.items() if t is not None}
    allowed = allowances(op, operands, dtypes, arguments.options, exact, repeated)
    return allowed, unit_roundoff(list(dtypes.values()))
