"""The bound of an op without a derivation: how far its oracle moves when its inputs move by a few roundings."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from opmux.testing.bounds.model import Allowance, Given, roundings, row_means

_TRIALS = 4
_STEP = 2.0**-20


def by_perturbation(given: Given) -> list[Allowance]:
    """How far the exact results move when inputs are perturbed by a relative ``step``, in units of that step.

    Each element combines its own difference with the root mean square of its row, because a single difference may be
    small by chance.
    """
    generator = torch.Generator().manual_seed(0)
    found = [torch.zeros_like(e, dtype=torch.float64) for e in given.expected]

    def perturbed(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype != torch.float64:
            return value
        signs = torch.rand(value.shape, generator=generator, dtype=torch.float64).to(value.device) * 2 - 1
        return value * (1 + _STEP * signs)

    def results(tensors: Mapping[str, Any]) -> tuple[Tensor, ...]:
        arguments = [tensors[t.name] for t in given.op.signature.tensors]
        if given.op.signature.mutates:
            arguments = [a.clone() if isinstance(a, Tensor) else a for a in arguments]
            given.op.reference(*arguments, **given.options)
            named = given.op.names(tuple(arguments))
            return tuple(named[t.name] for t in given.op.signature.tensors if t.name in given.op.signature.mutates)
        made = given.op.reference(*arguments, **given.options)
        return made if isinstance(made, tuple) else (made,)

    exact = results(given.tensors)
    for _ in range(_TRIALS):
        moved = results({name: perturbed(value) for name, value in given.tensors.items()})
        for i, (a, b) in enumerate(zip(moved, exact, strict=True)):
            if a.dtype == torch.float64:
                found[i] = torch.maximum(found[i], ((a - b) / _STEP).nan_to_num(0.0, 0.0, 0.0).abs())
    longest = max((n for t in given.tensors.values() if isinstance(t, Tensor) for n in t.shape), default=1)
    rounds = 2 * roundings(longest)
    return [
        Allowance(rounds * (f + row_means(f.square()).sqrt() + e.to(torch.float64).abs()) if f.dim() else rounds * f)
        for f, e in zip(found, given.expected, strict=True)
    ]
