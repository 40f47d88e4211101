"""Grouped products: interpreted on a CPU, as launches, and on a GPU, in graphs whose counts change too."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

import opmux
from opmux.arch import parse_arch
from opmux_triton.aot import checks
from opmux_triton.aot.build import build
from opmux_triton.grouped_gemm import heuristics, targets
from opmux_triton.launch import recording

ARCHS = ("sm_80", "sm_89", "sm_90", "gfx942", "gfx1100")


@pytest.mark.long
def test_interpreted_groups_agree_with_float64(interpret: Callable[[str], None]) -> None:
    interpret("grouped_gemm/interpreted_groups.py")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("groups", "rows"), [(1, 1), (8, 4096), (32, 20), (128, 8), (200, 1)])
def test_the_grid_depends_on_shapes_alone_and_covers_the_largest_groups(arch: str, groups: int, rows: int) -> None:
    n, k, m = 4096, 7168, groups * rows
    x, w = (torch.empty(*s, dtype=torch.bfloat16, device="meta") for s in ((m, k), (groups, n, k)))
    offsets = torch.empty(groups + 1, dtype=torch.int32, device="meta")
    features = {"bucket(m)": (m - 1).bit_length(), "groups": groups, "n": n, "k": k}
    with recording(arch) as recorded:
        targets.grouped_linear(x, w, offsets, None, config=heuristics.grouped(parse_arch(arch), features))
    (launch,) = recorded.launches
    assert launch.meta["GROUPS"] >= groups
    tiles = -(-n // launch.meta["BLOCK_N"]) * (-(-m // launch.meta["BLOCK_M"]) + groups - 1)
    assert 1 <= launch.grid[0] <= tiles


def test_gradients_by_descriptors_multiply_from_shared_memory_and_spill_nothing() -> None:
    groups, m, n, k = 8, 32768, 4096, 7168
    grad, x, w = (torch.empty(*s, dtype=torch.bfloat16, device="meta") for s in ((m, n), (m, k), (groups, n, k)))
    offsets = torch.empty(groups + 1, dtype=torch.int32, device="meta")
    features = {"bucket(m)": 15, "groups": groups, "n": n, "k": k}
    config = heuristics.backward(parse_arch("sm_90"), features)
    with recording("sm_90") as recorded:
        targets.grouped_linear_backward(grad, x, w, offsets, None, output_mask=(True, True), config=config)
    product, sums = recorded.launches[1:]
    assert isinstance(product.arguments[1], TensorDescriptor)
    assert isinstance(sums.arguments[2], TensorDescriptor)
    for launch in (product, sums):
        _spills_nothing(launch)


def test_gradients_whose_operands_have_no_descriptors_take_narrow_tiles_that_spill_nothing() -> None:
    groups, m, n, k = 8, 32768, 4096, 7170
    grad, x, w = (torch.empty(*s, dtype=torch.bfloat16, device="meta") for s in ((m, n), (m, k), (groups, n, k)))
    offsets = torch.empty(groups + 1, dtype=torch.int32, device="meta")
    config = heuristics.backward(parse_arch("sm_90"), {"bucket(m)": 15, "groups": groups, "n": n, "k": k})
    with recording("sm_90") as recorded:
        targets.grouped_linear_backward(grad, x, w, offsets, None, output_mask=(True, True), config=config)
    for launch in recorded.launches[1:]:
        assert (launch.meta["BLOCK_N"], launch.meta["num_warps"]) == (128, 8)
        _spills_nothing(launch)


def test_descriptors_for_gradients_where_they_were_faster() -> None:
    def choice(groups: int, rows: int, n: int = 4096, arch: str = "sm_90") -> tuple[bool, bool]:
        features = {"bucket(m)": (groups * rows - 1).bit_length(), "groups": groups, "n": n, "k": 7168}
        config = heuristics.backward(parse_arch(arch), features)
        assert not heuristics.weight_grad(parse_arch(arch), features).tma
        return config.grad_x.along, config.grad_w.tma

    assert choice(8, 4096) == choice(16, 3763) == (True, True)
    assert choice(128, 65) == choice(64, 8) == choice(32, 475) == (True, False)
    assert choice(8, 4096, n=4104) == (False, True), "no whole blocks of n"
    assert choice(8, 4096, arch="sm_100") == choice(8, 4096, arch="gfx942") == (False, False)


def _spills_nothing(launch: Any) -> None:
    facts = checks.read(build(launch, "sm_90"))
    assert (facts.spills, facts.scratch) == (0, 0)
    assert set(facts.matrix) == {"HGMMA.64"}


def test_a_group_that_the_average_hides_gets_the_tile_of_the_average() -> None:
    arch = parse_arch("sm_90")
    few = heuristics.grouped(arch, {"bucket(m)": 10, "groups": 32, "n": 4096, "k": 7168})
    many = heuristics.grouped(arch, {"bucket(m)": 15, "groups": 8, "n": 4096, "k": 7168})
    assert (few.block_m, many.block_m) == (32, 128)
    assert heuristics.rows_of({"bucket(expected_m)": 5}) == 32
    assert heuristics.rows_of({"bucket(m)": 1, "groups": 300}) == 1


def test_wide_tiles_of_codes_where_their_rounds_read_the_weights_sooner() -> None:
    def tile(groups: int, rows: int, n: int = 4096, k: int = 7168, arch: str = "sm_90") -> tuple[int, int, int]:
        features = {"bucket(m)": (groups * rows - 1).bit_length(), "groups": groups, "n": n, "k": k}
        config = heuristics.scaled(parse_arch(arch), features)
        return config.block_m, config.block_n, config.per_unit

    assert tile(32, 20) == (32, 128, 2), "1024 tiles are four rounds of 264, 2048 narrow ones six of 396"
    assert tile(128, 8) == (16, 64, 3), "16 rounds of wide tiles, 21 of narrow ones"
    assert tile(6, 20) == (32, 64, 3), "one round of either"
    assert tile(32, 20, k=7184) == tile(32, 20, arch="sm_100") == (32, 64, 3)


def test_tall_tiles_where_they_hold_fewer_rows_in_vain() -> None:
    def tile(rows: int, groups: int | None = None, k: int = 7168) -> tuple[int, int, bool]:
        size, name = (rows, "expected_m") if groups is None else (rows * groups, "m")
        features = {f"bucket({name})": (size - 1).bit_length(), f"bucket({name}, 8)": size}
        config = heuristics.hopper_scaled(parse_arch("sm_90"), {**features, "groups": groups or 32, "n": 4096, "k": k})
        return config.block_m, config.warpgroups, config.few

    assert tile(192) == tile(192, groups=32) == (192, 3, False)
    assert tile(1024) == (128, 2, False), "1152 rows of tall tiles"
    assert tile(4096, groups=8) == (192, 3, False)
    assert tile(192, k=1536) == (128, 2, False)
    assert tile(20) == (128, 2, True)


# On a GPU


def ragged(sizes: tuple[int, ...], n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    m = sum(sizes)
    x = torch.randn(m + 3, k, generator=generator, device="cuda").to(dtype)
    w = (k**-0.5 * torch.randn(len(sizes), n, k, generator=generator, device="cuda")).to(dtype)
    return x, w, offsets_of(sizes)


def offsets_of(sizes: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32, device="cuda")


def assert_close(got: Tensor, expected: Tensor, tolerance: float = 6e-3) -> None:
    error = (got.double() - expected.double()).norm()
    assert error <= tolerance * expected.double().norm() + 1e-12, float(error / expected.double().norm())


SIZES = [(300, 0, 129, 1, 700), (20,) * 32, (8,) * 128, (1,), (0, 0, 5), (2048, 1500)]


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{len(sizes)} groups, {sum(sizes)} rows")
@pytest.mark.parametrize(("n", "k"), [(512, 1024), (200, 264), (77, 130)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_groups_on_a_gpu(sizes: tuple[int, ...], n: int, k: int, dtype: torch.dtype) -> None:
    x, w, offsets = ragged(sizes, n, k, dtype)
    x[sum(sizes) :] = float("nan")
    out = opmux.grouped_linear(x, w, offsets, backend="triton")
    exact = opmux.grouped_linear.reference(x.double(), w.double(), offsets)
    assert_close(out[: sum(sizes)], exact[: sum(sizes)], 1e-5 if dtype == torch.float32 else 6e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{len(sizes)} groups, {sum(sizes)} rows")
def test_padding_is_not_read(sizes: tuple[int, ...]) -> None:
    x, w, offsets = ragged(sizes, 512, 1024, torch.bfloat16)
    counts = (offsets.diff() - offsets.diff().clamp(max=2)).to(torch.int32)
    used = torch.zeros(len(x), dtype=torch.bool)
    for start, count in zip(offsets.tolist(), counts.tolist(), strict=False):
        used[start : start + count] = True
    used = used.cuda()
    exact = opmux.grouped_linear.reference(x.double(), w.double(), offsets, counts)
    x[~used] = float("nan")
    assert_close(opmux.grouped_linear(x, w, offsets, counts, backend="triton")[used], exact[used])


@pytest.mark.gpu
def test_a_call_like_others_writes_into_the_rows_it_is_given() -> None:
    """What is kept of earlier calls holds for results of their strides alone."""
    x, w, offsets = ragged((5, 100), 512, 1024, torch.bfloat16)
    exact = opmux.grouped_linear(x, w, offsets, backend="triton")
    wide = torch.full((len(x), 768), 7.0, dtype=torch.bfloat16, device="cuda")
    outs = [torch.empty_like(exact), torch.empty_like(exact), wide[:, :512], wide[:, 128:640], torch.empty_like(exact)]
    for out in outs:
        out.fill_(7)
        for _ in range(3):
            opmux.grouped_linear(x, w, offsets, backend="triton", out=out)
        assert torch.equal(out[:105], exact[:105])
    assert bool((wide[:, 640:] == 7).all())


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{len(sizes)} groups, {sum(sizes)} rows")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_on_a_gpu(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    x, w, offsets = ragged(sizes, 200, 264, dtype)
    grad = torch.randn(len(x), 200, device="cuda").to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 6e-3
    found = opmux.grouped_linear_backward(grad, x, w, offsets, backend="triton")
    exact = opmux.grouped_linear_backward.reference(grad.double(), x.double(), w.double(), offsets)
    for one, other in zip(found, exact, strict=True):
        assert_close(one, other, tolerance)
    out = torch.ones(w.shape, device="cuda")
    opmux.grouped_weight_grad(out, grad, x, offsets, backend="triton")
    assert_close(out, 1 + exact[1], 1e-5)


def quantised(shape: tuple[int, ...], block: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    values = torch.randn(shape, device="cuda")
    return opmux.quantize(values, dtype=dtype, block=block)


BLOCKS = [((1, 128), (128, 128)), ((1, 128), (1, 128)), ((1, -1), (1, -1))]


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", SIZES[:3], ids=lambda sizes: f"{len(sizes)} groups, {sum(sizes)} rows")
@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_groups_of_codes_on_a_gpu(sizes: tuple[int, ...], blocks: Any, dtype: torch.dtype) -> None:
    n, k, m = 320, 640, sum(sizes)
    (x, x_scale), (w, w_scale) = quantised((m, k), blocks[0], dtype), quantised((len(sizes), n, k), blocks[1], dtype)
    given = (x, w, offsets_of(sizes), x_scale, w_scale)
    out = opmux.scaled_grouped_linear(*given, out_dtype=torch.bfloat16, backend="triton")
    exact = opmux.scaled_grouped_linear.reference(*given, out_dtype=torch.float64)
    assert_close(out, exact)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{len(sizes)} groups, {sum(sizes)} rows")
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("across", [True, False])
def test_gradients_of_codes_on_a_gpu(sizes: tuple[int, ...], dtype: torch.dtype, across: bool) -> None:
    made = [quantised((width, sum(sizes)), (1, 128), dtype) for width in (200, 264)]
    (dy, dy_scale), (x, x_scale) = ((codes.T, scale.T) for codes, scale in made)
    if not across:
        dy, x = dy.contiguous(), x.contiguous()
    out = torch.ones(len(sizes), 200, 264, device="cuda")
    exact = out.double()
    opmux.scaled_grouped_weight_grad(out, dy, x, offsets_of(sizes), dy_scale, x_scale, backend="triton")
    values = [c.double() * s.double().repeat_interleave(128, 0)[: len(c)] for c, s in ((dy, dy_scale), (x, x_scale))]
    opmux.grouped_weight_grad.reference(exact, *values, offsets_of(sizes), None)
    assert_close(out, exact, 1e-3)


@pytest.mark.gpu
def test_a_captured_graph_serves_other_offsets() -> None:
    x, w, offsets = ragged((300, 0, 129, 1, 700), 512, 1024, torch.bfloat16)

    def run() -> Tensor:
        return opmux.grouped_linear(x, w, offsets, backend="triton")

    replay, out = captured(run)
    for sizes in [(0, 0, 0, 0, 0), (1130, 0, 0, 0, 0), (1, 2, 3, 4, 5), (226,) * 5]:
        offsets.copy_(offsets_of(sizes))
        replay()
        m = sum(sizes)
        exact = opmux.grouped_linear.reference(x.double(), w.double(), offsets)
        assert_close(out[:m], exact[:m])


@pytest.mark.gpu
@pytest.mark.parametrize("scaled", [False, True], ids=["bfloat16", "float8"])
def test_a_captured_graph_serves_other_counts(scaled: bool) -> None:
    groups, most, n, k = 6, 200, 512, 1024
    counts = torch.tensor([20, 0, 200, 1, 64, 65], dtype=torch.int32, device="cuda")
    if scaled:
        x, x_scale = quantised((groups, most, k), (1, 128), torch.float8_e4m3fn)
        w, w_scale = quantised((groups, n, k), (128, 128), torch.float8_e4m3fn)
        given: tuple[Tensor, ...] = (x, w, counts, x_scale, w_scale)
        op: Any = opmux.scaled_masked_grouped_linear
        options: dict[str, Any] = {"expected_m": 58, "out_dtype": torch.bfloat16}
        exact = op.reference(
            x, w, torch.full_like(counts, most), x_scale, w_scale, expected_m=1, out_dtype=torch.float64
        )
    else:
        x = torch.randn(groups, most, k, device="cuda").to(torch.bfloat16)
        w = torch.randn(groups, n, k, device="cuda").to(torch.bfloat16)
        given, op, options = (x, w, counts), opmux.masked_grouped_linear, {"expected_m": 58}
        exact = x.double() @ w.double().mT

    replay, out = captured(lambda: op(*given, **options, backend="triton"))
    for counted in [(20, 0, 200, 1, 64, 65), (0,) * 6, (200,) * 6, (1, 2, 3, 4, 5, 6), (0, 0, 0, 0, 0, 130)]:
        counts.copy_(torch.tensor(counted, dtype=torch.int32))
        out.fill_(7)
        replay()
        for group, count in enumerate(counted):
            if count:
                assert_close(out[group, :count], exact[group, :count])
            assert bool((out[group, count:] == 7).all())


def captured(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """A captured call, and the tensor that a replay writes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return graph.replay, out
