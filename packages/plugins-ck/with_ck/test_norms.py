"""Every tile of the norms: built from CK's own templates, its machine code checked, run on the emulator."""

import itertools

import pytest
import torch
from building import check_kernel

import opmux
from opmux_ck.dtypes import SHORT
from opmux_ck.norms import targets
from opmux_ck.norms.configs import QUANTIZED_TILES, TILES, NormConfig, QuantizedNormConfig
from opmux_ck.norms.instances import Norm
from opmux_ck.norms.targets import norm_of
from opmux_emulator.jit_launches import on

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
FNUZ = torch.float8_e4m3fnuz
DTYPES = ((BF16, BF16), (FP16, FP16), (BF16, FP32))
Case = tuple[str, NormConfig, tuple[torch.dtype, torch.dtype]]


def instance_of(case: Case) -> Norm:
    """The instance of an op, a tile, and the dtypes of x and the weight."""
    op, config, (x, weight) = case
    return Norm(op, SHORT[x], SHORT[weight], config)


OTHERS = (
    NormConfig(2, 128, 4, vector=4),
    NormConfig(1, 256, 2, pads=False),
    NormConfig(1, 256, 1, pads=False, two_passes=True),
)
CASES = [("rms_norm", tile, pair) for tile, pair in itertools.product(TILES, DTYPES[:2])]
CASES += [("rms_norm", tile, DTYPES[2]) for tile in (TILES[0], TILES[2], TILES[-1])]
CASES += [("rms_norm", tile, DTYPES[0]) for tile in OTHERS]
CASES += [("layer_norm", tile, pair) for tile, pair in zip(TILES, DTYPES * 2, strict=True)]
CASES += [("add_rms_norm", tile, pair) for tile, pair in zip(TILES[:-1], (DTYPES * 2)[:-1], strict=True)]
CASES += [("add_layer_norm", TILES[0], DTYPES[0]), ("add_layer_norm", TILES[4], DTYPES[2])]
EACH = pytest.mark.parametrize("case", CASES, ids=[instance_of(case).name for case in CASES])


@EACH
def test_its_machine_code(case) -> None:
    """No spilled registers, no scratch memory."""
    check_kernel(instance_of(case))


@EACH
def test_its_results(case) -> None:
    """Rows that fill the tile, that end in it where it pads, and longer ones where it reads twice.

    The last workgroup has rows to spare, and x has a stride of its own.
    """
    op, config, (dtype, gain) = case
    lengths = [config.columns]
    lengths += [config.columns - 8, 8] if config.pads else []
    lengths += [2 * config.columns + 8 * config.pads] if config.two_passes else []
    for columns in lengths:
        rows = 2 * config.rows + 1
        x, residual = (torch.randn(rows, columns + 16).to(dtype)[:, :columns] for _ in range(2))
        weight, bias = (torch.randn(columns).to(gain) for _ in range(2))
        tensors = {
            "rms_norm": (x, weight),
            "add_rms_norm": (x, residual, weight),
            "layer_norm": (x, weight, bias),
            "add_layer_norm": (x, residual, weight, bias),
        }[op]
        options = {} if op.endswith("layer_norm") else {"weight_offset": 0.0}
        with on("gfx942"):
            found = getattr(targets, op)(*tensors, eps=1e-5, config=config, **options)
        expected = getattr(opmux, op)(*tensors, eps=1e-5, backend="reference", **options)
        rtol = 2**-7 if dtype is BF16 else 2**-10
        torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-3 if op.endswith("layer_norm") else 1e-5)


QUANTIZED = (
    ("rms_norm_quantize", QUANTIZED_TILES[1], BF16, FNUZ, -1),
    ("rms_norm_quantize", QUANTIZED_TILES[3], FP16, FNUZ, 32),
    ("rms_norm_quantize", QuantizedNormConfig(2, 128, 3, vector=4, pads=False), BF16, torch.int8, 128),
    ("add_rms_norm_quantize", QUANTIZED_TILES[0], BF16, torch.int8, 128),
    ("add_rms_norm_quantize", QUANTIZED_TILES[2], BF16, FNUZ, 128),
    ("add_rms_norm_quantize", QUANTIZED_TILES[4], FP16, torch.int8, -1),
)
"""The op, a tile, the dtypes of x and of the codes, and how many columns share a scale."""


@pytest.mark.parametrize(
    ("op", "config", "dtype", "code", "block"),
    QUANTIZED,
    ids=[norm_of(op, x, x, config, code, block).name for op, config, x, code, block in QUANTIZED],
)
def test_what_is_quantised(op, config, dtype, code, block) -> None:
    """A row of zeros gets the scale 1; of a row with a NaN the other codes are right. Codes may differ in a tie."""
    check_kernel(norm_of(op, dtype, dtype, config, code, block))
    lengths = [config.columns, *([config.columns - 8, 8] if config.pads else [])]
    for columns in lengths:
        x, residual = (torch.randn(2 * config.rows + 1, columns + 16).to(dtype)[:, :columns] for _ in range(2))
        x[0], residual[0] = 0.0, 0.0
        weight = torch.randn(columns).to(dtype)
        weight[1] = torch.nan
        tensors = (x, residual, weight) if op.startswith("add") else (x, weight)
        options = {"dtype": code, "block": (1, block), "scale_major": "k", "eps": 1e-5, "weight_offset": 0.0}
        with on("gfx942"):
            found = getattr(targets, op)(*tensors, **options, config=config)
        expected = getattr(opmux, op)(*tensors, **options, backend="reference")
        q, wanted = found[0].float(), expected[0].float()
        assert torch.equal(q.isnan(), wanted.isnan())
        assert int(((q != wanted) & ~wanted.isnan()).sum()) <= 1 + q.numel() // 1000
        torch.testing.assert_close(found[1], expected[1], rtol=2**-20, atol=0)  # squares are added in another order
        torch.testing.assert_close(found[2:], expected[2:], rtol=0, atol=0)
