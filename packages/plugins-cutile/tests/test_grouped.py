"""Products of groups and their gradients: tables of tiles, launches, and what the compiler makes of the kernels."""

import pytest
import torch
from cubins import compiled, kernels, layout, meta
from played.launches import on

from opmux.plugin import parse_arch
from opmux_cutile.grouped.backward_configs import grouped_backward_config, grouped_backward_space
from opmux_cutile.grouped.configs import grouped_config, grouped_space
from opmux_cutile.grouped.scaled_configs import scaled_grouped_config, scaled_grouped_space
from opmux_cutile.grouped.tables import tiles_of
from opmux_cutile.quantization.square_configs import quantize_config, quantize_space

INT32, FP8, FP32 = torch.int32, torch.float8_e4m3fn, torch.float32


@pytest.mark.parametrize("sizes", [None, [3, 0, 40]])
def test_the_table_names_each_tile_of_each_group(sizes) -> None:
    offsets = torch.tensor([0, 5, 5, 75], dtype=INT32)
    with on("sm_90"):
        table = tiles_of("grouped_linear", 80, 32, offsets, None if sizes is None else torch.tensor(sizes, dtype=INT32))
    last = 75 if sizes is None else 45
    tiles = [(0, 0, 0, 5 if sizes is None else 3), (2, 0, 5, last), (2, 1, 5, last)]
    tiles += [(2, 2, 5, last)] if sizes is None else []
    assert table.shape == (4, 5)
    assert [tuple(column) for column in table.T.tolist()[: len(tiles)]] == tiles
    assert table[0, len(tiles) :].eq(3).all()  # no group


@pytest.mark.parametrize("arch", ["sm_90", "sm_120"])
@pytest.mark.parametrize("rows", [8, 64, 100, 4096])
def test_the_spaces_have_the_choices(arch, rows) -> None:
    features = {"bucket(m, 8)": 8 * rows, "bucket(m)": (8 * rows - 1).bit_length(), "groups": 8, "n": 512, "k": 512}
    for config, space in (
        (grouped_config, grouped_space),
        (scaled_grouped_config, scaled_grouped_space),
        (grouped_backward_config, grouped_backward_space),
    ):
        found = list(space(parse_arch(arch), features))
        assert config(parse_arch(arch), features) in found
        assert len(set(found)) == len(found)


@pytest.mark.parametrize("block", [(1, 128), (128, 128), (-1, -1)])
def test_the_space_of_quantisation_has_the_choice(block) -> None:
    features = {"k": 4096, "block": block}
    assert quantize_config(parse_arch("sm_90"), features) in list(quantize_space(parse_arch("sm_90"), features))


def _compiles(op, tensors, arch, instruction, tmp_path, **options) -> None:
    for wanted in kernels(op, *tensors, arch=arch, **options):
        found = compiled(wanted, arch, tmp_path)
        assert found.parameters == layout(wanted.letters)
        assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0), wanted
        if wanted.name != "find_tiles":
            assert found.count(instruction) > 0


@pytest.mark.parametrize(
    ("arch", "instruction"), [("sm_90", "HGMMA"), ("sm_100", "UTCHMMA"), ("sm_120", "HMMA.16816.F32.BF16")]
)
def test_gradients_use_the_matrix_units_and_no_local_memory(arch, instruction, tmp_path) -> None:
    grad, x, w, offsets = meta(4096, 512), meta(4096, 1024), meta(8, 512, 1024), meta(9, dtype=INT32)
    _compiles("grouped_linear_backward", (grad, x, w, offsets), arch, instruction, tmp_path)
    _compiles("grouped_weight_grad", (w.float(), grad, x, offsets), arch, instruction, tmp_path)


@pytest.mark.parametrize("kind", ["rows", "blocks"])
@pytest.mark.parametrize(("arch", "instruction"), [("sm_90", "QGMMA"), ("sm_100", "UTCQMMA"), ("sm_120", "QMMA")])
@pytest.mark.parametrize("rows", [64, 512])
def test_products_of_codes_use_the_matrix_units_and_no_local_memory(rows, arch, instruction, kind, tmp_path) -> None:
    blocks = 1 if kind == "rows" else 8
    w, of_w = meta(4, 512, 1024, dtype=FP8), meta(4, 512 if kind == "rows" else 4, blocks, dtype=FP32)
    x, of_x, offsets = meta(4 * rows, 1024, dtype=FP8), meta(4 * rows, blocks, dtype=FP32), meta(5, dtype=INT32)
    options = {"out_dtype": torch.bfloat16}
    _compiles("scaled_grouped_linear", (x, w, offsets, of_x, of_w), arch, instruction, tmp_path, **options)
    x, of_x, counts = meta(4, rows, 1024, dtype=FP8), meta(4, rows, blocks, dtype=FP32), meta(4, dtype=INT32)
    options["expected_m"] = rows
    _compiles("scaled_masked_grouped_linear", (x, w, counts, of_x, of_w), arch, instruction, tmp_path, **options)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("block", [(128, 128), (-1, -1)])
def test_quantisation_of_squares_uses_no_local_memory(block, arch, tmp_path) -> None:
    for dtype, k in ((FP8, 4096), (torch.int8, 4099)):
        for wanted in kernels("quantize", meta(4096, k), arch=arch, dtype=dtype, block=block):
            found = compiled(wanted, arch, tmp_path)
            assert found.parameters == layout(wanted.letters)
            assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0), wanted
