"""The products: that launches cover the result whatever the operands are, and how tiles are cut along k."""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from opmux.arch import parse_arch
from opmux_triton.gemm import configs, targets
from opmux_triton.gemm.products import even_shares, rest_of, shares_of
from opmux_triton.launch import Launch, recording

SIZES = (
    (16, 8191, 4096),
    (4096, 8193, 512),
    (2048, 4096, 1024),
    (4096, 1536, 24576),
    (256, 8192, 8192),
    (300, 1000, 77),
)


def made(rows: int, columns: int, transposed: bool) -> torch.Tensor:
    if transposed:
        return torch.empty(columns, rows, dtype=torch.bfloat16, device="meta").t()
    return torch.empty(rows, columns, dtype=torch.bfloat16, device="meta")


def launches(arch: str, m: int, n: int, k: int, transposed: bool) -> dict[str, list[Launch]]:
    features: dict[str, Any] = {"n": n, "k": k, "bucket(tokens)": (m - 1).bit_length()}
    x, w, grad = made(m, k, transposed), made(n, k, transposed), made(m, n, transposed)
    found = {}
    with recording(arch) as recorded:
        targets.linear(x, w, None, config=configs.linear(parse_arch(arch), features))
    found["out"] = recorded.launches
    config = configs.linear_backward(parse_arch(arch), features)
    for index, name in enumerate(("grad_x", "grad_w")):
        mask = tuple(i == index for i in range(3))
        with recording(arch) as recorded:
            targets.linear_backward(grad, x, w, output_mask=mask, config=config)
        found[name] = recorded.launches
    return found


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "gfx942", "gfx1100"])
@pytest.mark.parametrize(("sizes", "transposed"), list(itertools.product(SIZES, (False, True))))
def test_launches_cover_the_result(arch: str, sizes: tuple[int, int, int], transposed: bool) -> None:
    m, n, k = sizes
    for name, made_ in launches(arch, m, n, k, transposed).items():
        height, width, depth = {"out": (m, n, k), "grad_x": (m, k, n), "grad_w": (n, k, m)}[name]
        covered = 0
        for launch in made_:
            meta, kernel = launch.meta, launch.kernel
            if kernel.__name__ == "shares":
                continue
            if meta["SWAPPED"]:
                height, width = width, height
            tiles = -(-height // meta["BLOCK_M"]) * -(-width // meta["BLOCK_N"])
            arguments = dict(zip(kernel.arg_names, launch.arguments, strict=False))
            covered += arguments["count"] if "count" in arguments else launch.grid[0]
            if kernel.__name__ == "sum_shares":
                assert arguments["first"] + launch.grid[0] == tiles
                share, length = arguments["share"], arguments["length"]
                [shares] = [other for other in made_ if other.kernel.__name__ == "shares"]
                assert length >= -(-depth // shares.meta["BLOCK_K"])
                assert shares.grid[0] * share >= launch.grid[0] * length
        assert covered == tiles, name


def test_tiles_are_cut_alike_where_that_keeps_programs_busy() -> None:
    assert shares_of(64, 128, 132) == (64, 128)
    assert shares_of(56, 256, 132) == (109, 256)
    assert shares_of(1056, 8, 264) == (32, 8)
    assert even_shares(60, 385, 132) == (193, 386)
    assert even_shares(3, 4, 132) == (1, 4)


def test_the_rest_is_cut_where_it_fills_half_a_round_at_most() -> None:
    assert rest_of(192, 384, 132) == 60
    assert rest_of(64, 128, 132) == 64
    assert rest_of(264, 384, 132) == 0
    assert rest_of(200, 384, 132) == 0


def test_interpreted_products_agree_with_float64() -> None:
    program = Path(__file__).with_name("interpreted_products.py")
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "all equal", done.stderr[-3000:]
