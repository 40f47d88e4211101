"""Products: every instance that models' shapes get, and others of the space; built, checked, run on the emulator."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from building import check_kernel, entry_of

import opmux
from opmux.plugin import parse_arch
from opmux.testing.model_shapes import MODELS
from opmux_ck.gemm.choice import FEW_ROWS, TILES, gemm_config
from opmux_ck.gemm.configs import GemmConfig, loops
from opmux_ck.gemm.targets import linear, product_of
from opmux_emulator.codeobject.program import Program
from opmux_emulator.isa.matrix import shape_of
from opmux_emulator.jit_launches import on

BF16, FP16 = torch.bfloat16, torch.float16
ROWS = (1, 64, 512, 4096)
"""Tokens of the models' calls: decoding alone and together, a short and a long prompt."""
Case = tuple[GemmConfig, torch.dtype, bool, int]
"""A tile, the dtype, whether there is a bias, and the number of steps of k whose loop it has."""


def layers() -> Iterator[tuple[int, int]]:
    """n and k of the projections of each model's layer: qkv, output, gate with up, down."""
    for model in MODELS.values():
        heads = model.heads * model.head_dim
        yield heads + 2 * model.kv_heads * model.head_dim, model.hidden
        yield model.hidden, heads
        yield 2 * model.intermediate, model.hidden
        yield model.hidden, model.intermediate


def of_models() -> Iterator[Case]:
    """What the models' calls get, with at most two parts of k."""
    arch = parse_arch("gfx942")
    for n, k in layers():
        for rows in ROWS:
            config = gemm_config(arch, {"bucket(tokens)": (rows - 1).bit_length(), "n": n, "k": k})
            yield replace(config, split_k=min(config.split_k, 2)), BF16, False, loops(config, k)


OTHERS: tuple[Case, ...] = (
    (replace(TILES[0], store=4), FP16, True, 3),
    (TILES[1], FP16, False, 1),
    (replace(TILES[1], store=1), BF16, True, 2),
    (replace(FEW_ROWS, split_k=2, pads_k=False), FP16, True, 4),
    (GemmConfig(128, 128, 32, 2, 2, 32, 16, "v4"), BF16, False, 3),
    (GemmConfig(64, 64, 64, 2, 2, 32, 8, "v4"), FP16, False, 4),
    (GemmConfig(32, 32, 64, 2, 2, 16, 32, "mem"), BF16, False, 7),
    (GemmConfig(32, 128, 64, 1, 4, 32, 8, "mem"), FP16, False, 2),
)
CASES = tuple(dict.fromkeys((*of_models(), *OTHERS)))


def name_of(case: Case) -> str:
    """The instance's, with the parts of k."""
    config, dtype, bias, steps = case
    return product_of(dtype, bias, steps * config.k * config.split_k, config).name + f"_p{config.split_k}"


EACH = pytest.mark.parametrize("case", CASES, ids=name_of)


@EACH
def test_its_machine_code(case) -> None:
    """Besides what every kernel is checked for: LDS, and enough matrix instructions of the right size for a step."""
    config, dtype, bias, steps = case
    instance = product_of(dtype, bias, steps * config.k * config.split_k, config)
    kernel = check_kernel(instance)
    assert config.lds_bytes <= kernel[".group_segment_fixed_size"] <= 65536
    _, code = Program(entry_of(instance).code).code
    shapes = [shape for instruction in code if (shape := shape_of(instruction.name))]
    products = sum(shape.m**2 * shape.k for shape in shapes)
    assert {shape.m for shape in shapes} == {config.mfma}
    assert products >= config.m * config.n * config.k // (config.waves_m * config.waves_n)


@EACH
def test_its_results(case) -> None:
    """Rows and columns that end in a tile, more than one workgroup each way, and x with a stride of its own."""
    config, dtype, bias, steps = case
    k = steps * config.k * config.split_k - 8 * config.pads_k
    n = 2 * config.n - config.store * config.pads_n
    x = torch.randn(config.m + 5, k + 16).to(dtype)[:, :k]
    w, added = torch.randn(n, k).to(dtype), torch.randn(n).to(dtype) if bias else None
    with on("gfx942"):
        found = linear(x, w, added, config=config)
    expected = opmux.linear(x, w, added, backend="reference")
    torch.testing.assert_close(found, expected, rtol=2**-7 if dtype is BF16 else 2**-10, atol=1e-3)
