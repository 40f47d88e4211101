"""A covering part of the instances for gfx950: built, their machine code checked, run on the emulator."""

import pytest
import torch
from building import check_kernel, entry_of
from products_of_codes import check_product_of_codes

import opmux
from opmux_ck.attention.choice import FEW_QUERIES, MANY_QUERIES
from opmux_ck.attention.targets import Scoring, attention_instance, attention_lse
from opmux_ck.building.instances import Instance
from opmux_ck.gemm.choice import BLOCK_TILES, CODES_TILES, FEW_ROWS, FEW_ROWS_OF_CODES, TILES
from opmux_ck.gemm.targets import linear, product_of
from opmux_ck.norms import targets as norms
from opmux_ck.norms.configs import QUANTIZED_TILES
from opmux_ck.norms.configs import TILES as NORM_TILES
from opmux_ck.norms.instances import Norm
from opmux_emulator.codeobject.program import Program
from opmux_emulator.isa.matrix import shape_of
from opmux_emulator.jit_launches import on

ARCH = "gfx950"
BF16 = torch.bfloat16


def matrix_names(instance: Instance) -> set[str]:
    """The matrix instructions of an instance."""
    _, code = Program(entry_of(instance, ARCH).code).code
    return {line.name for line in code if shape_of(line.name)}


@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm", "layer_norm"])
def test_norms(op) -> None:
    """Of each norm, one tile that pads."""
    config = NORM_TILES[2]
    check_kernel(Norm(op, "bf16", "bf16", config), ARCH)
    columns = config.columns - 8
    x, residual = (torch.randn(3, columns).to(BF16) for _ in range(2))
    weight, bias = (torch.randn(columns).to(BF16) for _ in range(2))
    tensors = {"rms_norm": (x, weight), "add_rms_norm": (x, residual, weight), "layer_norm": (x, weight, bias)}[op]
    options = {} if op == "layer_norm" else {"weight_offset": 0.0}
    with on(ARCH):
        found = getattr(norms, op)(*tensors, eps=1e-5, config=config, **options)
    expected = getattr(opmux, op)(*tensors, eps=1e-5, backend="reference", **options)
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-3)


def test_a_norm_that_is_quantised() -> None:
    """To the flavour of fp8 that is OCP's."""
    config, code = QUANTIZED_TILES[1], torch.float8_e4m3fn
    check_kernel(norms.norm_of("rms_norm_quantize", BF16, BF16, config, code, 128), ARCH)
    x, weight = torch.randn(3, config.columns - 8).to(BF16), torch.randn(config.columns - 8).to(BF16)
    options = {"dtype": code, "block": (1, 128), "scale_major": "k", "eps": 1e-5, "weight_offset": 0.0}
    with on(ARCH):
        q, scale = norms.rms_norm_quantize(x, weight, **options, config=config)
    expected, wanted = opmux.rms_norm_quantize(x, weight, **options, backend="reference")
    assert int((q.float() != expected.float()).sum()) <= 1 + q.numel() // 1000
    torch.testing.assert_close(scale, wanted, rtol=2**-20, atol=0)  # squares are added in another order


@pytest.mark.parametrize(
    ("config", "bias", "product"),
    [
        (FEW_ROWS, True, "v_mfma_f32_16x16x32_bf16"),
        (TILES[0], False, "v_mfma_f32_32x32x16_bf16"),
        (TILES[1], False, "v_mfma_f32_32x32x16_bf16"),
        (TILES[2], False, "v_mfma_f32_16x16x32_bf16"),
    ],
)
def test_products(config, bias, product) -> None:
    """The instructions are those that gfx950 has and gfx942 lacks, of twice the length in k."""
    m, n, k = config.m + 5, 2 * config.n - 8, 3 * config.k - 8
    instance = product_of(BF16, bias, k, config)
    check_kernel(instance, ARCH)
    assert matrix_names(instance) == {product}
    x, w, added = torch.randn(m, k).to(BF16), torch.randn(n, k).to(BF16), torch.randn(n).to(BF16) if bias else None
    with on(ARCH):
        found = linear(x, w, added, config=config)
    torch.testing.assert_close(found, opmux.linear(x, w, added, backend="reference"), rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("config", [FEW_ROWS_OF_CODES, CODES_TILES[0], BLOCK_TILES[1]])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_products_of_codes(config, dtype) -> None:
    """The flavour of fp8 is OCP's here."""
    check_product_of_codes(ARCH, config, dtype)


@pytest.mark.parametrize(
    ("config", "product"),
    [(FEW_QUERIES[128], "v_mfma_f32_16x16x16_bf16"), (MANY_QUERIES[128], "v_mfma_f32_32x32x16_bf16")],
)
def test_attention(config, product) -> None:
    """Of the causal kind, with the lse."""
    instance = attention_instance(BF16, 128, 128, Scoring(None, 0.0, (-1, 0)), config, ragged=False, lse=True)
    check_kernel(instance, ARCH)
    assert matrix_names(instance) == {product}
    q, k, v = torch.randn(1, config.queries + 5, 2, 128), torch.randn(1, 150, 1, 128), torch.randn(1, 150, 1, 128)
    tensors = tuple(tensor.to(BF16) for tensor in (q, k, v))
    options = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0}
    with on(ARCH):
        found = attention_lse(*tensors, None, **options, config=config)
    for one, expected in zip(found, opmux.attention_lse(*tensors, **options, backend="reference"), strict=True):
        torch.testing.assert_close(one, expected, rtol=2**-6, atol=2e-2)
