"""Every kernel of `rms_norm` on the emulator, through the native launcher, against the reference."""

import pytest
import torch

import opmux
from opmux_asm.kernels.rms_norm import TILES
from opmux_asm.norm.configs import RowsConfig, rows_config
from opmux_asm.norm.targets import rms_norm
from opmux_emulator.asm_launches import on

PAIRS = (
    (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16), (torch.float32, torch.float32),
    (torch.bfloat16, torch.float32), (torch.float16, torch.float32),
)  # fmt: skip
TOLERANCE = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 2**-20}


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_kernel(arch: str, tile: tuple[int, int]) -> None:
    config = RowsConfig(*tile)
    with on(arch):
        for dtype, gain in PAIRS:
            hidden = config.bytes // dtype.itemsize - 8  # an access of the last lane lies past the row
            x, weight = torch.randn(2, hidden).to(dtype), torch.randn(hidden).to(gain)
            y = rms_norm(x, weight, eps=1e-5, weight_offset=0.5, config=config)
            expected = opmux.rms_norm(x, weight, eps=1e-5, weight_offset=0.5, backend="reference")
            torch.testing.assert_close(y, expected, rtol=TOLERANCE[dtype], atol=1e-6)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_tiny_rows_and_no_eps(arch: str) -> None:
    """The mean square is below what v_rsq_f32 takes without flushing it to zero."""
    x = torch.randn(3, 64) * 1e-19
    with on(arch):
        y = opmux.rms_norm(x, torch.ones(64), eps=0.0, backend="asm")
    double = x.double()
    torch.testing.assert_close(y.double(), double * double.square().mean(-1, keepdim=True).rsqrt(), rtol=1e-3, atol=0)


def test_rows_with_strides() -> None:
    x = torch.randn(4, 6, 64)
    weight = torch.randn(32)
    with on("gfx942"):
        for view in (x[:, :, :32], x[:, 2, 32:], x.transpose(0, 1)[..., :32], x[:1, :1, :32].expand(3, 2, 32)):
            y = opmux.rms_norm(view, weight, backend="asm")
            assert y.is_contiguous()
            torch.testing.assert_close(y, opmux.rms_norm(view, weight, backend="reference"))


def test_the_smallest_tile_that_holds_the_row_is_taken() -> None:
    from opmux.plugin import parse_arch

    arch = parse_arch("gfx942")
    chosen = [rows_config(arch, {"hidden": n}) for n in (8, 512, 520, 4096, 8192, 16384)]
    assert [(c.waves, c.chunks) for c in chosen] == [(1, 1), (1, 1), (4, 1), (4, 2), (4, 4), (16, 2)]


def test_a_config_that_no_kernel_has() -> None:
    with pytest.raises(ValueError, match=r"^waves and chunks expected one of .*, got \(3, 1\)$"):
        RowsConfig(3, 1)
