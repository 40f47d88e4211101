"""Run by `test_memory_families` under TRITON_INTERPRET=1: what the interpreter's conformance cases do not reach."""

import itertools
import sys
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

import opmux
from opmux_triton.activation import backward_targets as gate_backward
from opmux_triton.activation import targets as gates
from opmux_triton.activation.configs import GatedConfig
from opmux_triton.norm import backward_targets as norm_backward
from opmux_triton.norm import targets as norms
from opmux_triton.norm.configs import BackwardConfig, RowsConfig
from opmux_triton.rope import targets as ropes
from opmux_triton.rope.configs import RopeConfig

torch.manual_seed(0)
EPS = 1e-5
ROWS = RowsConfig(block=16, rows=2, num_warps=4)
BACK = BackwardConfig(
    block=16, tail=0, rows=1, stages=1, again="", num_warps=4, programs=1, sum_columns=16, sum_rows=4, sum_warps=1
)


def scattered(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor whose leading dims do not fold: every one of them is a slice."""
    whole = torch.randn([2 * n for n in shape[:-1]] + [shape[-1] + 8], dtype=dtype)
    return whole[tuple(slice(0, n) for n in shape)]


def same(found: object, expected: object, what: str) -> None:
    """Compare results of targets and references."""
    for a, b in zip(_several(found), _several(expected), strict=True):
        assert a.shape == b.shape, what
        assert a.is_contiguous(), what
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5, equal_nan=True, msg=lambda m: f"{what}: {m}")


def _several(value: object) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)  # type: ignore[return-value]


def check_norms(shape: tuple[int, ...], block: int, tail: int = 0, again: Literal["", "weight", "all"] = "") -> None:
    """All norms with rows that are longer than a block, or not, in unfoldable strides."""
    config = replace(ROWS, block=block, rows=1 if shape[-1] % block == 0 else 2)
    back = replace(BACK, block=block, tail=tail, again=again, rows=2 if block + tail >= shape[-1] else 1)
    x, r, g, h = (scattered(*shape) for _ in range(4))
    w, b = torch.randn(shape[-1]), torch.randn(shape[-1])
    rms = {"eps": EPS, "weight_offset": 1.0}
    same(norms.rms_norm(x, w, **rms, config=config), opmux.rms_norm.reference(x, w, **rms), "rms_norm")
    same(norms.layer_norm(x, w, b, eps=EPS, config=config), opmux.layer_norm.reference(x, w, b, eps=EPS), "layer_norm")
    same(norms.layer_norm(x, w, None, eps=EPS, config=config), opmux.layer_norm.reference(x, w, eps=EPS), "no bias")
    added = opmux.add_rms_norm.reference(x, r, w, **rms)
    same(norms.add_rms_norm(x, r, w, **rms, config=config), added, "add_rms_norm")
    found = norms.add_layer_norm(x, r, w, b, eps=EPS, config=config)
    same(found, opmux.add_layer_norm.reference(x, r, w, b, eps=EPS), "add_layer_norm")
    y, total = scattered(*shape).copy_(x), scattered(*shape).copy_(r)
    norms.add_rms_norm_(y, total, w, **rms, config=config)
    same((y.contiguous(), total.contiguous()), added, "add_rms_norm_")
    for mask in itertools.product((True, False), repeat=2):
        found = norm_backward.rms_norm_backward(g, x, w, **rms, output_mask=mask, config=back)
        same(found, opmux.rms_norm_backward.reference(g, x, w, **rms, output_mask=mask), f"rms_norm_backward {mask}")
    for mask in itertools.product((True, False), repeat=4):
        options = {"eps": EPS, "output_mask": mask}
        found = norm_backward.add_layer_norm_backward(g, h, x, w, **options, config=back)
        same(found, opmux.add_layer_norm_backward.reference(g, h, x, w, **options), f"add_layer_norm_backward {mask}")


def check_rows_past_the_end() -> None:
    """With eps = 0 the rows that only fill a tile up must not reach the weight's gradient."""
    g, x, w = torch.randn(5, 24), torch.randn(5, 24), torch.randn(24)
    options = {"eps": 0.0, "weight_offset": 0.0, "output_mask": (True, True)}
    found = norm_backward.rms_norm_backward(g, x, w, **options, config=replace(BACK, block=32, rows=4))
    same(found, opmux.rms_norm_backward.reference(g, x, w, **options), "eps = 0")


def check_gates() -> None:
    """Tiles that end inside a row, in unfoldable strides."""
    gate, up, grad, x = (scattered(2, 3, 2, n) for n in (40, 40, 40, 80))
    config = GatedConfig(block=16, rows=2, num_warps=4)
    same(gates.silu_and_mul(x, config=config), opmux.silu_and_mul.reference(x), "silu_and_mul")
    for approximate in ("none", "tanh"):
        o = {"approximate": approximate}
        same(gates.gelu_mul(gate, up, **o, config=config), opmux.gelu_mul.reference(gate, up, **o), "gelu_mul")
        for mask in ((True, True), (True, False), (False, True)):
            found = gate_backward.gelu_mul_backward(grad, gate, up, **o, output_mask=mask, config=config)
            same(found, opmux.gelu_mul_backward.reference(grad, gate, up, **o, output_mask=mask), f"gelu {mask}")
    found = gate_backward.silu_and_mul_backward(grad, x, output_mask=(True,), config=config)
    same(found, opmux.silu_and_mul_backward.reference(grad, x), "silu_and_mul_backward")


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


def check_large_mean(columns: int, block: int, rows: int) -> None:
    """Rows longer than a block whose mean is a thousand times their spread, held to float64."""
    x, w, b = 1e3 + torch.randn(5, columns), torch.randn(columns), torch.randn(columns)
    config = RowsConfig(block=block, rows=rows, num_warps=1)
    wide = torch.nn.functional.layer_norm(x.double(), (columns,), w.double(), b.double(), EPS)
    found = norms.layer_norm(x, w, b, eps=EPS, config=config)
    torch.testing.assert_close(found.double(), wide, rtol=1e-3, atol=1e-3)


check_norms((2, 3, 2, 24), 32)
check_norms((2, 3, 2, 40), 16)
check_norms((2, 3, 2, 32), 16)
check_norms((5, 33), 16)
check_norms((2, 3, 2, 24), 16, tail=8)
check_norms((5, 21), 16, tail=8)
check_norms((5, 21), 32, again="weight")
check_norms((5, 21), 32, again="all")
check_large_mean(96, 32, 1)
check_large_mean(90, 32, 2)
check_rows_past_the_end()
check_gates()
check_rope()
sys.stdout.write("all equal\n")
