"""Norms of rows that a program reads in passes."""

from collections.abc import Callable

import pytest
import torch
from gpu_calls import chosen

import opmux
from opmux.bench.data import Data
from opmux.callpath.op import OPS


@pytest.mark.long
def test_interpreted_norms_agree_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("norm/interpreted_norms.py")


def normed(x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    """torch's layer norm with a bias, its rms norm without."""
    if bias:
        return torch.nn.functional.layer_norm(x, weight.shape, weight, *bias, eps=1e-5)
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps=1e-5)


@pytest.mark.gpu
@pytest.mark.memcheck
@pytest.mark.parametrize("hidden", [8192, 20000, 40000])
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm"])
def test_rows_longer_than_a_program_holds(op: str, hidden: int) -> None:
    """They are read in passes: much data in rows of 8192, gradients from 16384 columns on, everything from 32768."""
    data = Data.seeded(torch.device("cuda"), torch.float32)
    rows = [data.normal(2100, hidden) + 30 for _ in range(2 if op.startswith("add") else 1)]
    leaves = [*rows, *(data.normal(hidden) for _ in range(2 if "layer" in op else 1))]
    due = [data.normal(2100, hidden) for _ in rows]

    def gradients(outs: tuple[torch.Tensor, ...], given: list[torch.Tensor]) -> list[torch.Tensor]:
        return [*outs, *torch.autograd.grad(outs, given, [d.to(outs[0].dtype) for d in due])]

    own = [leaf.clone().requires_grad_() for leaf in leaves]
    with opmux.trace() as traced:
        found = OPS[op].public(*own, eps=1e-5)
        found = gradients(found if isinstance(found, tuple) else (found,), own)
    assert {backend for _, backend in chosen(traced)} == {"triton"}
    wide = [leaf.double().requires_grad_() for leaf in leaves]
    total = wide[0] + wide[1] if len(rows) == 2 else wide[0]
    outs = (normed(total, *wide[len(rows) :]), *([total] if len(rows) == 2 else []))
    for one, right in zip(found, gradients(outs, wide), strict=True):
        assert (one - right).norm() < 1e-4 * right.norm()
