"""Rotary embedding and the cache write on the emulator, through the native launcher, against the references."""

import pytest
import torch

import opmux
from opmux_asm.kernels.rope import HALVES
from opmux_emulator.jit_launches import on

TOLERANCE = {torch.bfloat16: 2**-7, torch.float16: 2**-10}


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_every_half_of_a_head(arch: str, interleaved: bool) -> None:
    """Heads enough for several steps of a workgroup, with positions of both dtypes and without."""
    with on(arch):
        for number, half in enumerate(HALVES):
            dtype = (torch.bfloat16, torch.float16)[number % 2]
            q, k = torch.randn(2, 3, 40, 2 * half).to(dtype), torch.randn(2, 3, 5, 2 * half).to(dtype)
            angles = torch.randn(16, half)
            positions = (None, torch.randint(0, 16, (2, 3)), torch.randint(0, 16, (2, 3)).int())[number % 3]
            given = q, k, angles.cos(), angles.sin(), positions
            found = opmux.apply_rope(*given, interleaved=interleaved, backend="asm")
            expected = opmux.apply_rope(*given, interleaved=interleaved, backend="reference")
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=TOLERANCE[dtype], atol=2**-7)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_the_cache_is_a_slice_and_slots_are_skipped(arch: str) -> None:
    both = torch.zeros(4, 2, 16, 12, 128).bfloat16()
    k, v = torch.randn(6, 24, 128).bfloat16()[:, ::2], torch.randn(6, 12, 128).bfloat16()
    slots = torch.tensor([3, 63, -1, 16, 47, 0])
    with on(arch):
        opmux.write_kv_cache(k, v, both[:, 0], both[:, 1], slots, backend="asm")
    expected = torch.zeros_like(both)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[slot // 16, 0, slot % 16], expected[slot // 16, 1, slot % 16] = k[token], v[token]
    assert torch.equal(both, expected)
