"""What NVRTC makes of the kernels: Hopper's instructions, as often as they should be, and nothing in local memory."""

import re
import subprocess
from collections import Counter
from dataclasses import replace
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest

from opmux_deepgemm.configs import Config, most_stages
from opmux_deepgemm.generation.source import Product
from opmux_deepgemm.launching import source
from opmux_deepgemm.space import ADDED_TILES, TRIED_ADDED_TILES
from opmux_jit import machine_code

OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.x]+)", re.MULTILINE)


def disassembler() -> Path:
    found = [file for file in files("nvidia-cuda-nvdisasm") or () if file.name == "nvdisasm"]
    assert len(found) == 1
    return Path(str(found[0].locate()))


def opcodes(product: Product, config: Config, folder: Path) -> Counter[str]:
    """How often the kernel has each instruction."""
    return Counter(listing(product, config, folder))


def listing(product: Product, config: Config, folder: Path) -> list[str]:
    """The kernel's instructions in order."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(machine_code(source(product, config)).code)
    done = subprocess.run([disassembler(), "-c", cubin], capture_output=True, text=True, check=True)
    return OPCODE.findall(done.stdout)


def count(found: Counter[str], begin: str) -> int:
    return sum(number for opcode, number in found.items() if opcode.startswith(begin))


def product(dtype: str, out: str = "bfloat16", bias: bool = False, groups: Any = "") -> Product:
    return Product(dtype, out, 2112, 7168, bias, groups)


BF16, FP8 = "bfloat16", "float8_e4m3fn"
ADDED = Product(FP8, "float32", 2112, 7168, accumulate=True)


@pytest.mark.parametrize(
    ("given", "config", "matrix"),
    [
        (product(BF16), Config("large", 128, 256, 4, 2, 1, 8), "HGMMA.64x256x16.F32.BF16"),
        (product(BF16, bias=True), Config("large", 128, 160, 5, 2, 2, 8), "HGMMA.64x160x16.F32.BF16"),
        (product(BF16, "float32"), Config("large", 256, 192, 3, 2, 2, 8), "HGMMA.64x192x16.F32.BF16"),
        (product(BF16), Config("large", 64, 128, 8, 1, 1, 8), "HGMMA.64x128x16.F32.BF16"),
        (product(FP8), Config("large", 128, 128, 6, 2, 1, 8), "QGMMA.64x128x32.F32.E4M3.E4M3"),
        (product(FP8, "float32", True), Config("large", 128, 192, 4, 2, 2, 8), "QGMMA.64x192x32.F32.E4M3.E4M3"),
        (product(FP8), Config("large", 256, 96, 4, 2, 1, 8), "QGMMA.64x96x32.F32.E4M3.E4M3"),
        (product(FP8), Config("large", 128, 192, 4, 2, 2, 8, 3), "QGMMA.64x192x32.F32.E4M3.E4M3"),
        (product(FP8), Config("large", 256, 96, 4, 2, 1, 8, 3), "QGMMA.64x96x32.F32.E4M3.E4M3"),
        (product(FP8, groups="masked"), Config("large", 128, 192, 4, 2, 1, 8, 3), "QGMMA.64x192x32.F32.E4M3.E4M3"),
        (product(FP8), Config("large", 128, 192, 4, 2, 1, 8, 0, 2), "QGMMA.64x96x32.F32.E4M3.E4M3"),
        (product(FP8), Config("large", 256, 96, 4, 2, 2, 8, 0, 1), "QGMMA.64x96x32.F32.E4M3.E4M3"),
        (product(FP8), Config("large", 128, 256, 4, 2, 1, 8, 0, 4), "QGMMA.64x64x32.F32.E4M3.E4M3"),
        (product(FP8), Config("large", 256, 128, 4, 2, 1, 8, 0, 1), "QGMMA.64x128x32.F32.E4M3.E4M3"),
        (product(FP8, groups="masked"), Config("large", 128, 192, 4, 2, 1, 8, 0, 2), "QGMMA.64x96x32.F32.E4M3.E4M3"),
        (product(FP8), Config("large", 128, 48, 8, 2, 4, 8, 0, 2, True), "QGMMA.64x24x32.F32.E4M3.E4M3"),
        (product(FP8), Config("large", 64, 64, 8, 1, 1, 8, 0, 1), "QGMMA.64x64x32.F32.E4M3.E4M3"),
        (ADDED, Config("large", 128, 128, 5, 2, 1, 8, 0, 2), "QGMMA.64x64x32.F32.E4M3.E4M3"),
        (product(FP8), Config("large", 64, 32, 16, 1, 1, 8), "QGMMA.64x32x32.F32.E4M3.E4M3"),
        (product(FP8), Config("small", 8, 64, 16, 1, 8), "QGMMA.64x8x32.F32.E4M3.E4M3"),
        (product(FP8), Config("small", 64, 64, 8, 1, 2), "QGMMA.64x64x32.F32.E4M3.E4M3"),
        (product(FP8), Config("small", 32, 128, 8, 2, 2), "QGMMA.64x32x32.F32.E4M3.E4M3"),
        (product(BF16), Config("small", 56, 64, 8, 1, 4), "HGMMA.64x56x16.F32.BF16"),
        (product(BF16, groups="ragged"), Config("large", 256, 192, 3, 2, 2, 8), "HGMMA.64x192x16.F32.BF16"),
        (product(BF16, groups="masked"), Config("large", 128, 256, 4, 2, 2, 8), "HGMMA.64x256x16.F32.BF16"),
        (product(FP8, groups="ragged"), Config("large", 128, 192, 4, 2, 2, 8), "QGMMA.64x192x32.F32.E4M3.E4M3"),
        (
            product(FP8, "float32", groups="masked"),
            Config("large", 128, 160, 5, 2, 1, 8),
            "QGMMA.64x160x32.F32.E4M3.E4M3",
        ),
        (ADDED, Config("large", 128, 128, 5, 2, 1, 8), "QGMMA.64x128x32.F32.E4M3.E4M3"),
        (ADDED, Config("large", 128, 192, 4, 2, 2, 8), "QGMMA.64x192x32.F32.E4M3.E4M3"),
        (product(BF16), Config("small", 8, 64, 16, 1, 4), "HGMMA.64x8x16.F32.BF16"),
        (product(BF16, "float32", True), Config("small", 128, 128, 5, 2, 1), "HGMMA.64x128x16.F32.BF16"),
        (product(FP8), Config("small", 64, 128, 7, 2, 8), "QGMMA.64x64x32.F32.E4M3.E4M3"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_family_has_the_instructions_it_is_made_for(given, config, matrix, tmp_path) -> None:
    found = opcodes(given, config, tmp_path)
    parts = config.block_m // config.consumers // 64 if config.kernel == "large" else 1
    runs = parts * max(config.pieces, 1)
    together = (8 if config.kernel == "small" else 4) if given.scaled and not given.accumulate else 1
    blocks = (4 if config.runs == 1 else 2) if config.overlaps else together
    assert found[matrix] == 4 * runs * blocks == count(found, "HGMMA") + count(found, "QGMMA")
    # One wait in the loop and one behind it, or one where sums are promoted: products are not made one by one.
    waits = blocks * (2 if config.alternate else runs if config.pieces else 1) + config.overlaps
    assert count(found, "WARPGROUP.DEPBAR") == (waits if given.scaled else 2)
    assert count(found, "UTMALDG") == 2
    assert (count(found, "UTMASTG") > 0) == (config.kernel == "large" and not given.accumulate)
    assert (count(found, "UTMAREDG") > 0) == given.accumulate
    assert (count(found, "UTMALDG.2D.MULTICAST") > 0) == (config.kernel == "large" and config.cluster > 1)
    assert count(found, "USETMAXREG") == (2 if config.kernel == "large" and config.consumers > 1 else 0)
    assert count(found, "STSM") == (config.values // 8 if config.kernel == "large" and given.out_bytes == 2 else 0)
    assert count(found, "LDL") == count(found, "STL") == 0
    assert count(found, "HMMA") == 0


HALVES = Config("large", 128, 256, 3, 2, 1, 8, 0, 2, staged=True, copied_scales=True)
TALL = Config("large", 256, 128, 3, 2, 1, 8, 0, 1, staged=True, copied_scales=True)
WIDE = Config("large", 128, 192, 4, 2, 2, 8, staged=True, copied_scales=True)
NARROW = Config("large", 128, 160, 5, 2, 1, 8, copied_scales=True)


@pytest.mark.parametrize(
    ("groups", "lie", "together", "config"),
    [
        ("", "rows", True, HALVES), ("", "rows", True, TALL), ("", "columns", True, TALL), ("", "columns", False, WIDE),
        ("", "rows", False, NARROW), ("ragged", "rows", True, HALVES), ("ragged", "columns", True, WIDE),
        ("ragged", "columns", False, HALVES), ("masked", "rows", True, WIDE), ("masked", "columns", True, HALVES),
        ("ragged", "rows", True, TALL), ("masked", "columns", True, TALL),
    ],
)  # fmt: skip
def test_scales_that_are_copied_are_read_from_shared_memory(groups, lie, together, config, tmp_path) -> None:
    given = replace(product(FP8, groups=groups), x_scales=lie, w_together=together)
    found, loaded = opcodes(given, config, tmp_path), opcodes(product(FP8, groups=groups), config, tmp_path)
    rows = 2 * config.block_m // config.consumers // 64  # of x, of a thread
    assert count(found, "QGMMA") == 4 * config.runs * 4 == count(loaded, "QGMMA")
    assert (
        count(found, "WARPGROUP.DEPBAR") == count(loaded, "WARPGROUP.DEPBAR") == 4 * max(config.pieces * rows // 2, 1)
    )
    assert count(found, "UTMALDG") == 3
    assert count(found, "UTMALDG.3D") == (groups == "masked")
    assert count(found, "LDS.128") == (rows if lie == "rows" else 0)
    assert count(found, "SHFL") < count(loaded, "SHFL") - 8
    assert count(found, "STSM") == config.values // 8
    assert count(found, "LDL") == count(found, "STL") == 0
    assert sum(found.values()) < sum(loaded.values()) or not together


@pytest.mark.parametrize("tile", ADDED_TILES + TRIED_ADDED_TILES)
@pytest.mark.parametrize(("x_lie", "w_lie"), [("rows", "columns"), ("columns", "columns")])
def test_what_is_added_by_copied_scales_reads_them_behind_the_products(tile, x_lie, w_lie, tmp_path) -> None:
    block_m, block_n, pieces = tile
    stages = most_stages("large", block_m, block_n, 2, row_scales=True, copied_scales=True)
    config = Config("large", block_m, block_n, stages, 2, 1, 8, 0, pieces, copied_scales=True)
    order = listing(replace(ADDED, x_scales=x_lie, w_scales=w_lie), config, tmp_path)
    together = 1 if block_n > 200 or block_m * block_n > 30000 else 4
    found, together = Counter(order), 8 if config.overlaps and config.runs == 1 else together
    assert count(found, "QGMMA") == 4 * config.runs * together
    assert count(found, "WARPGROUP.DEPBAR") == config.runs * together
    assert count(found, "UTMALDG") == 4
    assert count(found, "LDS.64") == config.values // 4 * together
    assert found["FMUL"] == found["FFMA"] == config.values * together
    assert count(found, "SHFL") == 1
    assert count(found, "UTMAREDG") > 0
    assert count(found, "LDL") == count(found, "STL") == 0
    # The four products of a run follow each other: nothing is read or scaled between them.
    first = [place for place, opcode in enumerate(order) if opcode.startswith("QGMMA")]
    for place in range(0, len(first), 4):
        between = order[first[place] : first[place + 3]]
        assert not any(opcode.startswith(("LDS", "FMUL", "FFMA")) for opcode in between)


def test_gradients_of_weights_are_multiplied_where_they_lie(tmp_path) -> None:
    given = Product(BF16, "float32", 4096, 7168, groups="ragged", accumulate=True)
    found = opcodes(given, Config("large", 128, 256, 4, 2), tmp_path)
    assert found["HGMMA.64x256x16.F32.BF16"] == 4 == count(found, "HGMMA")
    assert count(found, "WARPGROUP.DEPBAR") == 2
    assert count(found, "UTMALDG") == 2 + 4  # chunks of 64 columns
    assert count(found, "UTMAREDG") > 0
    assert count(found, "LDL") == count(found, "STL") == 0


@pytest.mark.parametrize("config", [Config("large", 128, 192, 4, 2, 2, 8, 3), Config("large", 256, 96, 4, 2, 1, 8)])
def test_gradients_from_codes_wait_once_for_each_block(config, tmp_path) -> None:
    given, parts = Product(FP8, "float32", 4096, 7168, groups="ragged", accumulate=True), config.block_m // 128
    found = opcodes(given, config, tmp_path)
    assert found[f"QGMMA.64x{config.block_n}x32.F32.E4M3.E4M3"] == 4 * parts == count(found, "QGMMA")
    assert count(found, "WARPGROUP.DEPBAR") == (2 if config.alternate else 1)
    assert count(found, "UTMALDG") == 2
    assert count(found, "UTMAREDG") == parts * config.block_n // 32
    assert count(found, "LDL") == count(found, "STL") == 0


@pytest.mark.parametrize(("x_across", "w_across"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("config", [Config("large", 128, 256, 4, 2, 1, 8), Config("large", 256, 128, 4, 2, 2, 8)])
def test_operands_across_k_are_transposed_by_the_matrix_unit(config, x_across, w_across, tmp_path) -> None:
    given = Product(BF16, BF16, 2112, 7168, x_across=x_across, w_across=w_across)
    found, parts = opcodes(given, config, tmp_path), config.block_m // 128
    assert found[f"HGMMA.64x{config.block_n}x16.F32.BF16"] == 4 * parts == count(found, "HGMMA")
    assert count(found, "WARPGROUP.DEPBAR") == 2
    chunks = config.block_m // 64 if x_across else 1, config.block_n // config.cluster // 64 if w_across else 1
    assert count(found, "UTMALDG") == sum(chunks)
    assert count(found, "LDL") == count(found, "STL") == 0


@pytest.mark.parametrize("groups", ["ragged", "masked"])
@pytest.mark.parametrize("config", [Config("large", 128, 256, 4, 2, 1, 8), Config("large", 256, 128, 4, 2, 2, 8)])
def test_weights_of_groups_across_k_are_transposed_by_the_matrix_unit(config, groups, tmp_path) -> None:
    given = Product(BF16, BF16, 2112, 7168, groups=groups, w_across=True)
    found, parts = opcodes(given, config, tmp_path), config.block_m // 128
    assert found[f"HGMMA.64x{config.block_n}x16.F32.BF16"] == 4 * parts == count(found, "HGMMA")
    assert count(found, "WARPGROUP.DEPBAR") == 2
    assert count(found, "UTMALDG") == 1 + config.block_n // config.cluster // 64
    assert count(found, "UTMALDG.3D") == config.block_n // config.cluster // 64
    assert count(found, "LDL") == count(found, "STL") == 0


@pytest.mark.parametrize("w_across", [False, True])
@pytest.mark.parametrize("groups", ["ragged", "masked"])
@pytest.mark.parametrize("config", [Config("large", 128, 256, 4, 2, 1, 8), Config("large", 256, 128, 4, 2, 2, 8)])
def test_rows_of_groups_across_k_are_transposed_by_the_matrix_unit(config, groups, w_across, tmp_path) -> None:
    given = Product(BF16, BF16, 2112, 7168, groups=groups, x_across=True, w_across=w_across)
    found, parts = opcodes(given, config, tmp_path), config.block_m // 128
    assert found[f"HGMMA.64x{config.block_n}x16.F32.BF16"] == 4 * parts == count(found, "HGMMA")
    assert count(found, "WARPGROUP.DEPBAR") == 2
    x_chunks, w_chunks = config.block_m // 64, config.block_n // config.cluster // 64 if w_across else 1
    assert count(found, "UTMALDG") == x_chunks + w_chunks
    assert count(found, "UTMALDG.3D") == x_chunks * (groups == "masked") + w_chunks * w_across
    assert count(found, "LDL") == count(found, "STL") == 0


@pytest.mark.parametrize(("dy_turned", "x_turned"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("config", [Config("large", 128, 256, 4, 2), Config("large", 256, 128, 4, 2)])
def test_turned_operands_of_gradients_are_multiplied_where_they_lie(config, dy_turned, x_turned, tmp_path) -> None:
    given = Product(
        BF16, "float32", 4096, 7168, groups="ragged", accumulate=True, dy_turned=dy_turned, x_turned=x_turned
    )
    found, parts = opcodes(given, config, tmp_path), config.block_m // 128
    assert found[f"HGMMA.64x{config.block_n}x16.F32.BF16"] == 4 * parts == count(found, "HGMMA")
    assert count(found, "WARPGROUP.DEPBAR") == 2
    chunks = 1 if dy_turned else config.block_m // 64, 1 if x_turned else config.block_n // 64
    assert count(found, "UTMALDG") == sum(chunks)
    assert count(found, "UTMAREDG") > 0
    assert count(found, "LDL") == count(found, "STL") == 0


def test_a_stage_that_two_blocks_share_needs_no_fence_of_the_whole_gpu(tmp_path) -> None:
    alone, shared = (opcodes(product(FP8), Config("large", 128, 128, 6, 2, cluster, 8), tmp_path) for cluster in (1, 2))
    for opcode in ("MEMBAR.ALL.GPU", "ERRBAR"):
        assert shared[opcode] <= alone[opcode]
    assert shared["CCTL.IVALL"] <= alone["CCTL.IVALL"] + 2  # at the two meetings of the cluster, not for each stage
