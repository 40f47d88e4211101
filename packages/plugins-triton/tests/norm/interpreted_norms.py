"""Run by `norm/test_targets` under TRITON_INTERPRET=1: what the interpreter's conformance cases do not reach."""

import itertools
import sys
from dataclasses import replace
from typing import Literal

import torch
from interpreted_results import same, scattered

import opmux
from opmux_triton.norm import backward_targets as norm_backward
from opmux_triton.norm import targets as norms
from opmux_triton.norm.configs import BackwardConfig, RowsConfig

torch.manual_seed(0)
EPS = 1e-5
ROWS = RowsConfig(block=16, rows=2, num_warps=4)
BACK = BackwardConfig(
    block=16, tail=0, rows=1, stages=1, again="", num_warps=4, programs=1, sum_columns=16, sum_rows=4, sum_warps=1
)


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
sys.stdout.write("all equal\n")
