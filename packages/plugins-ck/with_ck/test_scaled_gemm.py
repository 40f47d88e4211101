"""Products of codes: built, their machine code checked, run on the emulator."""

import itertools

import pytest
import torch
from products_of_codes import FP8, check_product_of_codes

from opmux_ck.gemm.choice import BLOCK_TILES, CODES_TILES, FEW_ROWS_OF_BLOCKS, FEW_ROWS_OF_CODES

TILES = (FEW_ROWS_OF_CODES, *CODES_TILES, FEW_ROWS_OF_BLOCKS, *BLOCK_TILES)
CASES = [("gfx942", *pair) for pair in itertools.product(TILES, ("fp8", "int8"))]
EACH = pytest.mark.parametrize(
    ("arch", "config", "kind"),
    CASES,
    ids=[f"{arch}-{c.kernel}-{c.m}x{c.n}x{c.k}-{kind}" for arch, c, kind in CASES],
)


@EACH
def test_its_machine_code_and_results(arch, config, kind) -> None:
    """Of every tile that a call gets without a tuned record."""
    check_product_of_codes(arch, config, FP8[arch] if kind == "fp8" else torch.int8)
