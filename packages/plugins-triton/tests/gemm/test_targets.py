"""What is launched for a linear layer: the launches cover the result whatever the operands are."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from opmux.arch import parse_arch
from opmux_triton.gemm import heuristics, hopper_heuristics, hopper_targets, targets
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
    features: dict[str, Any] = {"n": n, "k": k, "bucket(tokens)": (m - 1).bit_length(), "bucket(tokens, 8)": m}
    x, w, grad = made(m, k, transposed), made(n, k, transposed), made(m, n, transposed)
    found = {}
    where = parse_arch(arch)
    with recording(arch) as recorded:
        if arch == "sm_90" and hopper_heuristics.why_not_linear(features) is None:
            hopper_targets.linear(x, w, None, config=hopper_heuristics.linear(where, features))
        else:
            targets.linear(x, w, None, config=heuristics.linear(where, features))
    found["out"] = recorded.launches
    backward: Any = hopper_targets if arch == "sm_90" else targets
    chosen: Any = hopper_heuristics if arch == "sm_90" else heuristics
    config = chosen.linear_backward(where, features)
    for index, name in enumerate(("grad_x", "grad_w")):
        mask = tuple(i == index for i in range(3))
        with recording(arch) as recorded:
            backward.linear_backward(grad, x, w, output_mask=mask, config=config)
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
            tiles = -(-height // meta["BLOCK_M"]) * -(-width // (meta["BLOCK_N"] + meta.get("REST_N", 0)))
            arguments = dict(zip(kernel.arg_names, launch.arguments, strict=False))
            covered += arguments.get("count", arguments.get("whole", launch.grid[0]))
            if kernel.__name__ == "sum_shares":
                assert arguments["first"] + launch.grid[0] == tiles
                share, length = arguments["share"], arguments["length"]
                [shares] = [other for other in made_ if other.kernel.__name__ in ("shares", "products")]
                assert length >= -(-depth // shares.meta["BLOCK_K"])
                assert shares.grid[0] * share >= launch.grid[0] * length
        assert covered == tiles, name


@pytest.mark.parametrize("form", ["as they are", "x by columns", "w by columns", "rows of two strides"])
def test_a_few_rows_are_multiplied_without_matrix_instructions_where_columns_are_unit(form: str) -> None:
    x, w = made(2, 4096, form == "x by columns"), made(4096, 4096, form == "w by columns")
    if form == "rows of two strides":
        x = torch.empty(2, 3, 4096, dtype=torch.bfloat16, device="meta")[:, :2]
    config = heuristics.linear(parse_arch("sm_90"), {"n": 4096, "k": 4096, "bucket(tokens)": 1})
    with recording("sm_90") as recorded:
        targets.linear(x, w, None, config=config)
    [launch] = recorded.launches
    if form == "as they are":
        assert launch.kernel.__name__ == "vector_products"
        assert (launch.grid, launch.meta["VECTORS"], launch.meta["EVEN"]) == ((4096,), 2, True)
    else:
        assert launch.kernel.__name__ in ("tiles", "shares")


def test_a_row_by_a_transposed_weight_is_multiplied_by_tiles() -> None:
    config = heuristics.linear(parse_arch("sm_90"), {"n": 4096, "k": 4096, "bucket(tokens)": 0})
    for transposed, kernel in ((False, "vector_product"), (True, "tiles")):
        with recording("sm_90") as recorded:
            targets.linear(made(1, 4096, False), made(4096, 4096, transposed), None, config=config)
        assert [launch.kernel.__name__ for launch in recorded.launches] == [kernel]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
def test_a_transposed_weight_is_read_along_memory(arch: str) -> None:
    [launch, *_] = launches(arch, 512, 2048, 128256, True)["out"]
    assert (launch.meta["A_ROWS_ARE_K"], launch.meta["B_ROWS_ARE_K"]) == (True, True)
    assert arch != "sm_90" or launch.kernel.__name__ == "products"  # the Gluon kernel, which reads descriptors


@pytest.mark.long
def test_interpreted_vectors_agree_with_float64(interpret: Callable[[str], None]) -> None:
    interpret("gemm/interpreted_vectors.py")
