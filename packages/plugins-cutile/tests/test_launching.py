"""Launches, with the driver left out: which kernels, which grids, which arguments; what is refused."""

import threading
from collections.abc import Callable

import pytest
import torch

import opmux
from opmux.errors import InvalidArgument
from opmux_cutile import launching
from opmux_cutile.gates import targets as gates
from opmux_cutile.gates.configs import GatedConfig
from opmux_cutile.launching import recording
from opmux_cutile.norms import backward, targets
from opmux_cutile.norms.configs import NormConfig
from opmux_cutile.parameters import Array, Constant, Scalar
from opmux_cutile.products import targets as products
from opmux_cutile.products.configs import LinearConfig
from opmux_cutile.quantization import targets as quantization
from opmux_cutile.quantization.configs import NormedConfig
from opmux_cutile.scaled import targets as scaled
from opmux_cutile.scaled.configs import ScaledConfig

BF16 = torch.bfloat16


def test_a_launch_gives_addresses_shapes_strides_and_numbers() -> None:
    x, w = torch.zeros(3, 5, 1024, dtype=BF16), torch.zeros(1024, dtype=BF16)
    with recording() as launches:
        y = targets.rms_norm(x, w, eps=0.5, weight_offset=1.0, config=NormConfig(4, 2))
    ((kernel, grid, given),) = launches
    assert (y.shape, grid, kernel.letters) == (x.shape, (4, 1, 1), "piiiipiipiiiiff")
    assert [a if not isinstance(a, torch.Tensor) else a.data_ptr() for a in given] == [
        x.data_ptr(), 15, 1024, 1024, 1, w.data_ptr(), 1024, 1, y.data_ptr(), 15, 1024, 1024, 1, 0.5, 1.0,
    ]  # fmt: skip
    assert kernel.parameters == (
        Array("bfloat16", (None, 1024), (None, 1), True),
        Array("bfloat16", (1024,), (1,), True),
        Array("bfloat16", (None, 1024), (None, 1), True),
        Scalar("float32"), Scalar("float32"), Constant(4), Constant(1024),
    )  # fmt: skip
    assert kernel.hints == {"occupancy": 2}


def test_the_source_states_what_decides_the_code() -> None:
    x, w = torch.zeros(3, 7, dtype=BF16), torch.zeros(7)
    with recording() as launches:
        targets.rms_norm(x, w, eps=0.5, weight_offset=0.0, config=NormConfig())
        targets.rms_norm(x, w, eps=0.6, weight_offset=0.0, config=NormConfig())
        targets.rms_norm(x, w, eps=0.6, weight_offset=0.0, config=NormConfig(2))
    assert launches[0][0] is launches[1][0] is not launches[2][0]
    source = launches[0][0].source("sm_100")
    assert (source.language, source.arch, source.backend, source.op) == ("cutile", "sm_100", "cutile", "rms_norm")
    assert "def rms_norm(" in source.text
    assert source.flags[0] == "--kernel=rms_norm"
    assert '"alignment": 2, "divides": 1, "dtype": "bfloat16"' in source.flags[1]
    assert '"dtype": "float32"' in source.flags[2]


def test_what_is_changed_in_place_may_overlap_its_own_result_only() -> None:
    x, w = torch.zeros(3, 64, dtype=BF16), torch.zeros(64, dtype=BF16)
    with recording() as launches:
        targets.add_rms_norm_(x, x.clone(), w, eps=0.5, weight_offset=0.0, config=NormConfig())
    arrays = [p for p in launches[0][0].parameters if isinstance(p, Array)]
    assert [a.groups for a in arrays] == [("matrix 0",), ("matrix 1",), (), ("matrix 0",), ("matrix 1",)]
    assert launches[0][0].op == "add_rms_norm_"


def test_addresses_and_strides_decide_the_alignment() -> None:
    whole = torch.zeros(33, 72, dtype=BF16)
    assert launching.aligned(whole)
    assert launching.aligned(whole[:, :64])
    assert not launching.aligned(whole[:, 1:65])
    assert not launching.aligned(torch.zeros(33, 68, dtype=BF16)[:, :64])


def test_large_matrices_are_launched_in_parts() -> None:
    matrix = torch.empty(9, 1 << 28, dtype=BF16, device="meta")
    assert [len(part) for (part,) in launching.in_launches(matrix)] == [3, 3, 3]
    small = torch.zeros(9, 8)
    assert [parts[0] is small for parts in launching.in_launches(small)] == [True]
    far = torch.empty_strided((2, 8), (1 << 33, 1), device="meta")
    assert [part.stride() for (part,) in launching.in_launches(far)] == [(8, 1), (8, 1)]


def test_nothing_is_launched_for_no_rows() -> None:
    with recording() as launches:
        found = targets.rms_norm(torch.zeros(0, 8), torch.zeros(8), eps=0.5, weight_offset=0.0, config=NormConfig())
    assert (found.shape, launches) == ((0, 8), [])


def test_tensors_on_the_cpu_are_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        targets.rms_norm(torch.zeros(1, 8), torch.zeros(8), eps=0.5, weight_offset=0.0, config=NormConfig())
    assert str(caught.value) == ("cutile: rms_norm: `arguments` expected tensors on a GPU, got one on cpu; move it")
    with pytest.raises(opmux.errors.UnsupportedCall, match=r"archs: sm_80\+, this is cpu"):
        opmux.rms_norm(torch.zeros(1, 8), torch.zeros(8), backend="cutile")


def test_rows_that_do_not_fit_vectors_share_a_kernel() -> None:
    config = NormConfig(8)
    with recording() as launches:
        for width in (65, 77, 100, 128):
            x = torch.zeros(3, width, dtype=BF16)
            targets.rms_norm(x, x[0], eps=0.5, weight_offset=0.0, config=config)
    first, second, third, whole = (kernel for kernel, *_ in launches)
    assert first is second is third is not whole
    assert first.parameters[0] == Array("bfloat16", (None, None), (None, 1), False)


def test_a_gate_reads_the_halves_of_one_tensor() -> None:
    x = torch.zeros(5, 4096, dtype=BF16)
    with recording() as launches:
        y = gates.silu_and_mul(x, config=GatedConfig(2, 512))
        gates.gelu_and_mul(x, approximate="tanh", config=GatedConfig(2, 512))
    (kernel, grid, given), (other, *_) = launches
    assert (y.shape, grid, kernel.op, kernel.name, other.name) == (
        (5, 2048), (12, 1, 1), "silu_and_mul", "silu_mul", "gelu_tanh_mul",  # blocks of a row follow each other
    )  # fmt: skip
    assert (given[5].data_ptr() - given[0].data_ptr(), given[1:5]) == (4096, (5, 2048, 4096, 1))
    assert kernel.parameters[0] == Array("bfloat16", (None, 2048), (None, 1), True)


@pytest.mark.parametrize(
    ("rows", "columns", "group", "grid"),
    [(2, 512, 128, (12, 1, 1)), (1, 2048, 128, (5, 1, 1)), (2, 2048, -1, (3, 1, 1)), (2, 512, 512, (3, 4, 1))],
)  # fmt: skip
def test_blocks_of_several_groups_follow_each_other_along_a_row(rows: int, columns: int, group: int, grid) -> None:
    options = {"dtype": torch.int8, "block": (1, group), "scale_major": "k", "config": GatedConfig(rows, columns)}
    with recording() as launches:
        quantization.quantize(torch.zeros(5, 2048, dtype=BF16), **options)
        quantization.silu_and_mul_quantize(torch.zeros(5, 4096, dtype=BF16), **options)
    assert [found for _, found, _ in launches] == [grid] * 2


def test_normed_rows_are_read_ahead_by_as_many_blocks_as_fit() -> None:
    """In 16 bits and whole vectors; others get a block each, with room for half as many, or their registers spill."""
    ahead = NormedConfig(1, 4, 8, True)
    options = {"dtype": torch.int8, "block": (1, 128), "scale_major": "k", "eps": 0.0, "weight_offset": 0.0}
    w = torch.zeros(4096, dtype=BF16)
    with recording() as launches:
        for rows, x in ((2, w), (70, w), (70, w[:4095]), (70, w.float())):
            quantization.rms_norm_quantize(x.expand(rows, -1).contiguous(), w[: len(x)], config=ahead, **options)
    assert [grid for _, grid, _ in launches] == [(2, 1, 1), (4, 1, 1), (70, 1, 1), (70, 1, 1)]  # of one multiprocessor
    assert [k.parameters[-1].value for k, *_ in launches] == [True, True, False, False]
    assert [k.hints["occupancy"] for k, *_ in launches] == [4, 4, 2, 2]


def test_a_product_is_one_kernel_for_all_sizes() -> None:
    config = LinearConfig(128, 256, 64, warps=8, ctas=2)
    x, w, bias = torch.zeros(2, 300, 512, dtype=BF16), torch.zeros(1000, 512, dtype=BF16), torch.zeros(1000, dtype=BF16)
    with recording() as launches:
        y = products.linear(x, w, bias, config=config)
        products.linear(x[0, :, :256], w[:72, :256], bias[:72], config=config)
        products.linear(x, w, None, config=config)
    (kernel, grid, given), (same, *_), (without, *_) = launches
    assert (y.shape, grid, kernel.letters) == ((2, 300, 1000), (1, 1, 1), "piiiipiiiipiipiiii")
    assert kernel is same is not without
    assert given[1:5] == (600, 512, 512, 1)
    assert kernel.hints == {"num_worker_warps": 8, "num_ctas": 2}


def test_rows_of_a_product_that_overlap_are_copied() -> None:
    w = torch.zeros(64, 16, dtype=BF16)
    with recording() as launches:
        products.linear(torch.zeros(16, dtype=BF16).expand(4, 16), w, None, config=LinearConfig(16, 64, 128))
    assert launches[0][2][1:5] == (4, 16, 16, 1)


def test_weights_too_far_apart_for_a_launch_are_copied() -> None:
    w = torch.empty_strided((8, 16), (1 << 27, 1), dtype=BF16, device="meta")
    with recording() as launches:
        products.linear(torch.zeros(4, 16, dtype=BF16), w, None, config=LinearConfig(16, 64, 128))
    assert launches[0][2][6:10] == (8, 16, 16, 1)


@pytest.mark.parametrize("shape", [(5, 300), (2, 6, 300), (2, 1, 4, 300)])
def test_codes_and_scales_are_made_as_the_op_has_them(shape) -> None:
    x = torch.zeros(shape, dtype=BF16)
    for major in ("k", "m"):
        wanted = opmux.quantize(x, dtype=torch.int8, scale_major=major, backend="reference")
        with recording() as launches:
            found = quantization.quantize(
                x, dtype=torch.int8, block=(1, 128), scale_major=major, config=GatedConfig(2, 512)
            )
        assert [(t.shape, t.stride()) for t in found] == [(t.shape, t.stride()) for t in wanted]
        batches = x.numel() // (300 * shape[-2]) if major == "m" and len(shape) > 2 and shape[-2] > 1 else 1
        assert len(launches) == batches


def test_scales_of_one_and_of_rows_share_a_kernel() -> None:
    codes, ones = torch.zeros(8, 32).to(torch.float8_e4m3fn), torch.ones(1, 1)
    config = ScaledConfig(16, 64, 128)
    with recording() as launches:
        for scale in (ones, ones.expand(8, 1).contiguous()):
            scaled.scaled_linear(codes, codes, scale, scale, None, out_dtype=BF16, config=config)
    (first, _, of_one), (second, _, of_rows) = launches
    assert first is second
    place = first.letters.index("p", 10)
    assert of_one[place + 3] == 0  # the stride between rows of the one scale
    assert of_rows[place + 3] == 1


def test_gradients_that_nobody_wants_are_empty() -> None:
    x, w = torch.zeros(3, 64, dtype=BF16), torch.zeros(64, dtype=BF16)
    with recording() as launches:
        found = backward.layer_norm_backward(x, x, w, eps=0.1, output_mask=(False, True, False), config=NormConfig())
    assert [tuple(t.shape) for t in found] == [(0,), (64,), (0,)]
    assert [kernel.name for kernel, *_ in launches] == ["norm_backward", "column_sums"]
    with recording() as launches:
        backward.layer_norm_backward(x, x, w, eps=0.1, output_mask=(True, False, False), config=NormConfig())
    assert [kernel.name for kernel, *_ in launches] == ["norm_backward"]
    with recording() as launches:
        backward.rms_norm_backward(x, x, w, eps=0.1, weight_offset=0.0, output_mask=(False, False), config=NormConfig())
    assert not launches


@pytest.mark.parametrize("noting", [launching.noting, launching.recording, launching.naming_others])
def test_what_is_noted_is_the_threads_own_and_ends(noting: Callable) -> None:
    """Of two threads the one that began first ends first."""
    began, began_too, ended = threading.Event(), threading.Event(), threading.Event()
    found: list[dict[str, object]] = []

    def first() -> None:
        with noting():
            began.set()
            assert began_too.wait(60)
        found.append(dict(vars(launching._here)))
        ended.set()

    def second() -> None:
        assert began.wait(60)
        found.append(dict(vars(launching._here)))
        with noting():
            began_too.set()
            assert ended.wait(60)
        found.append(dict(vars(launching._here)))

    threads = [threading.Thread(target=one) for one in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [any(value is not None for value in one.values()) for one in found] == [False] * 3
