"""Kernels of products on the emulator, through the native launcher, against the references."""

import pytest
import torch

import opmux
from opmux.plugin import parse_arch
from opmux_asm.kernels.block_products import TILES as BLOCK_TILES
from opmux_asm.kernels.products import TILES
from opmux_asm.products import targets
from opmux_asm.products.configs import TileConfig, tile_config
from opmux_emulator.jit_launches import on

FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}
HALVES = (torch.bfloat16, torch.float16)
RESULTS = (*HALVES, torch.float32)
TOLERANCE = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 2**-18}


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_tile_of_linear(arch: str, dtype: torch.dtype) -> None:
    """Tiles that are full, and tiles of which a few rows and columns are left."""
    with on(arch):
        for rows, columns in TILES:
            x, w, bias = torch.randn(rows + 3, 192).to(dtype), torch.randn(columns + 8, 192).to(dtype), None
            if rows != columns:
                bias = torch.randn(columns + 8).to(dtype)
            y = targets.linear(x, w, bias, config=TileConfig(rows, columns))
            expected = opmux.linear(
                x.double(), w.double(), None if bias is None else bias.double(), backend="reference"
            )
            torch.testing.assert_close(y.double(), expected, rtol=TOLERANCE[dtype], atol=1e-3)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("codes", ["fp8", "int8"])
def test_every_tile_of_scaled_linear(arch: str, codes: str) -> None:
    """One dtype of the result after the other; the codes are small, so that sums are exact."""
    with on(arch):
        for number, (rows, columns) in enumerate(TILES):
            for result in RESULTS[number % 3 : number % 3 + 1]:
                x, w = (torch.randint(-8, 9, (size, 256)) for size in (rows + 1, columns + 8))
                dtype = torch.int8 if codes == "int8" else FP8[arch]
                x_scale, w_scale = torch.rand(rows + 1, 1) + 0.1, torch.rand(columns + 8, 1) + 0.1
                bias = torch.randn(columns + 8).to(result) if number % 2 else None
                given = x.float().to(dtype), w.float().to(dtype), x_scale, w_scale, bias
                y = targets.scaled_linear(*given, out_dtype=result, config=TileConfig(rows, columns))
                expected = (x.double() @ w.double().T) * x_scale * w_scale.T
                expected = expected if bias is None else expected + bias.double()
                torch.testing.assert_close(y.double(), expected, rtol=TOLERANCE[result], atol=1e-4)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("tile", BLOCK_TILES, ids=str)
def test_every_tile_with_scales_of_blocks(arch: str, tile: tuple[int, int]) -> None:
    """Scales that differ a lot from block to block, in both orders; two blocks of w's rows, the second one short."""
    rows, columns = tile
    m, n, k = rows + 3, columns + 136, 384
    result = RESULTS[BLOCK_TILES.index(tile)]
    x, w = (torch.randint(-8, 9, (size, k)).float() for size in (m, n))
    x_scale, w_scale = (torch.randn(3, m) - 2).exp().T, torch.randn(-(-n // 128), 3).exp()
    bias = torch.randn(n).to(result)
    blocks = (x.view(m, 3, 128), w.view(n, 3, 128), w_scale.repeat_interleave(128, 0)[:n])
    expected = torch.einsum("mbk,nbk,mb,nb->mn", *(t.double() for t in (*blocks[:2], x_scale, blocks[2]))) + bias
    with on(arch):
        for scales in (x_scale, x_scale.contiguous()):
            given = x.to(FP8[arch]), w.to(FP8[arch]), scales, w_scale, bias
            y = targets.scaled_linear_blocks(*given, out_dtype=result, config=TileConfig(*tile))
            torch.testing.assert_close(y.double(), expected, rtol=TOLERANCE[result], atol=2e-2)


def test_strides_and_batches() -> None:
    x, w = torch.randn(2, 5, 256).bfloat16()[..., 64:192], torch.randn(16, 256).bfloat16()[:, :128]
    with on("gfx942"):
        y = opmux.linear(x, w, backend="asm")
        assert (y.shape, y.is_contiguous()) == ((2, 5, 16), True)
        torch.testing.assert_close(y, opmux.linear(x, w, backend="reference"))


def test_rows_too_far_apart_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "LONGEST_STRIDE", 256)
    x, w = torch.randn(5, 256).bfloat16()[:, :64], torch.randn(16, 64).bfloat16()
    with on("gfx942"):
        torch.testing.assert_close(opmux.linear(x, w, backend="asm"), opmux.linear(x, w, backend="reference"))


@pytest.mark.parametrize(
    ("tokens", "n", "k", "expected"),
    [(14, 8192, 8192, (256, 256)), (12, 4096, 4096, (256, 256)), (10, 1024, 4096, (64, 64)), (4, 4096, 4096, (64, 64))],
)
def test_the_tile_fits_the_shape(tokens: int, n: int, k: int, expected: tuple[int, int]) -> None:
    chosen = tile_config(parse_arch("gfx942"), {"bucket(tokens)": tokens, "n": n, "k": k})
    assert (chosen.rows, chosen.columns) == expected


def test_a_config_that_no_kernel_has() -> None:
    with pytest.raises(ValueError, match=r"^rows and columns expected one of .*, got \(32, 32\)$"):
        TileConfig(32, 32)
