"""Run by `rope/test_targets` under TRITON_INTERPRET=1: what the interpreter's conformance cases do not reach."""

import sys

import torch
from interpreted_results import same, scattered

import opmux
from opmux_triton.rope import targets as ropes
from opmux_triton.rope.configs import RopeConfig

torch.manual_seed(0)


def check_rope() -> None:
    """Batches whose dims do not fold, with and without positions, in place too."""
    shape = (2, 2, 5)
    q, k = scattered(*shape, 3, 16), scattered(*shape, 1, 16)
    cos, sin = torch.randn(2, 9, 6)
    config = RopeConfig(block_heads=2, tokens=2, num_warps=4)
    for positions in (None, torch.randint(0, 9, (*shape, 2))[..., 0]):
        for interleaved in (False, True):
            o = {"interleaved": interleaved}
            expected = opmux.apply_rope.reference(q, k, cos, sin, positions, **o)
            same(ropes.apply_rope(q, k, cos, sin, positions, **o, config=config), expected, f"rope {o}")
            q_copy, k_copy = scattered(*q.shape).copy_(q), scattered(*k.shape).copy_(k)
            ropes.apply_rope_(q_copy, k_copy, cos, sin, positions, **o, config=config)
            same((q_copy.contiguous(), k_copy.contiguous()), expected, f"rope_ {o}")
            for mask in ((True, True), (False, True), (True, False)):
                found = ropes.apply_rope_backward(q, k, cos, sin, positions, **o, output_mask=mask, config=config)
                wanted = opmux.apply_rope_backward.reference(q, k, cos, sin, positions, **o, output_mask=mask)
                same(found, wanted, f"apply_rope_backward {o} {mask}")


check_rope()
sys.stdout.write("all equal\n")
