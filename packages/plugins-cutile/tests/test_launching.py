"""Launches, with the driver left out: which kernels, which grids, which arguments; what is refused."""

import pytest
import torch

import opmux
from opmux.errors import InvalidArgument
from opmux_cutile import launching
from opmux_cutile.launching import recording
from opmux_cutile.norms import targets
from opmux_cutile.norms.configs import NormConfig
from opmux_cutile.parameters import Array, Constant, Scalar

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
        Scalar("float32"), Scalar("float32"), Constant(1024), Constant(4), Constant(1024),
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
