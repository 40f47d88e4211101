"""Gradients of attention: built, their machine code checked, run on the emulator."""

import pytest
import torch
from building import check_kernel, entry_of

import opmux
from opmux_ck.attention.backward_choice import TILES
from opmux_ck.attention.backward_targets import attention_backward, attention_varlen_backward, backward_instances
from opmux_ck.attention.targets import scoring_of
from opmux_emulator.codeobject.program import Program
from opmux_emulator.isa.matrix import shape_of
from opmux_emulator.jit_launches import on

BF16, FP16 = torch.bfloat16, torch.float16
OPEN = (-1, -1)
DENSE = (
    (32, FP16, 2, False, (9, 4)),
    (64, BF16, 1, True, OPEN),
    (128, BF16, 2, True, OPEN),
    (256, BF16, 1, True, OPEN),
)
"""The size of heads, the dtype, heads that share keys, whether causal, and the window."""


def check(dim: int, dtype: torch.dtype, group: int, options: dict, *, ragged: bool, arch: str = "gfx942") -> None:
    """Besides what every kernel is checked for: matrix instructions for all five products."""
    config = TILES[dim]
    for instance in backward_instances(dtype, dim, group, scoring_of(**options), config, ragged=ragged):
        check_kernel(instance, arch)
        if instance.kernel == "attention_backward":
            _, code = Program(entry_of(instance, arch).code).code
            products = sum(shape.m**2 * shape.k for line in code if (shape := shape_of(line.name)))
            assert products >= 5 * config.queries * config.keys * dim // 4


def compare(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    """Each gradient with the reference's, as a part of its largest element."""
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2**-6, atol=2**-6 * float(other.abs().max()) if len(other) else 0)


@pytest.mark.parametrize(
    ("case", "arch"),
    [*((case, "gfx942") for case in DENSE), (DENSE[2], "gfx950")],
    ids=lambda one: one if isinstance(one, str) else "-".join(map(str, one[:3])).replace("torch.", ""),
)
def test_a_dense_batch(case, arch) -> None:
    """Queries and keys that end in a tile, more queries than keys too, and a gradient of the lse."""
    torch.manual_seed(0)
    dim, dtype, group, causal, window = case
    options = {"scale": None, "softcap": 0.0, "causal": causal, "window": window}
    check(dim, dtype, group, options, ragged=False, arch=arch)
    for queries, keys in ((21, TILES[dim].keys + 7), (40, 9)):
        q, k, v = (
            torch.randn(2, tokens, heads, dim).to(dtype)
            for tokens, heads in ((queries, 2),) + ((keys, 2 // group),) * 2
        )
        out, lse = opmux.attention_lse(q, k, v, **options, backend="reference")
        tensors = torch.randn_like(out), q, k, v, out, lse, None, torch.randn_like(lse)
        masked = {**options, "output_mask": (True, True, True, True)}
        with on(arch):
            found = attention_backward(*tensors, **masked, config=TILES[dim])
        compare(found, opmux.attention_backward(*tensors, **masked, backend="reference"))


def test_a_ragged_batch() -> None:
    """Sequences without queries and without keys, and tokens of no sequence; the gradient of keys is not wanted."""
    torch.manual_seed(0)
    options = {"scale": 0.1, "softcap": 0.0, "causal": True, "window": OPEN}
    check(64, BF16, 2, options, ragged=True)
    starts_q = torch.tensor([0, 3, 3, 50, 52], dtype=torch.int32)
    starts_k = torch.tensor([0, 40, 45, 190, 190], dtype=torch.int32)
    q, k, v = (torch.randn(tokens, heads, 64).to(BF16) for tokens, heads in ((55, 4), (200, 2), (200, 2)))
    longest = {"max_seqlen_q": 49, "max_seqlen_k": 145}
    out, lse = opmux.attention_varlen_lse(q, k, v, starts_q, starts_k, **longest, **options, backend="reference")
    tensors = torch.randn_like(out), q, k, v, out, lse, starts_q, starts_k, None, None
    masked = {**longest, **options, "output_mask": (True, False, True, True)}
    with on("gfx942"):
        found = attention_varlen_backward(*tensors, **masked, config=TILES[64])
    compare(found, opmux.attention_varlen_backward(*tensors, **masked, backend="reference"))
