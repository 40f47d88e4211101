"""The calls of ops on 8-bit codes, and of grouped products: sizes, scales and groups that a model would give."""

import dataclasses

import pytest
import torch

from opmux.arch import fp8_dtype
from opmux.bench.data import Arguments, Data
from opmux.bench.quantised_cases import GROUPS, MAKERS
from opmux.bench.shapes import Shape
from opmux.callpath.op import OPS

CPU = torch.device("cpu")
SHAPE = Shape("prefill", 256, 384, 4, 2, 32, batch=2, new=24, context=24)


def made(op: str, shape: Shape = SHAPE, dtype: torch.dtype = torch.bfloat16) -> Arguments:
    return MAKERS[op](Data.seeded(CPU, dtype), shape)


def named(op: str, **other: int) -> dict[str, torch.Tensor]:
    arguments = made(op, dataclasses.replace(SHAPE, **other))
    return {name: t for name, t in OPS[op].names(arguments.tensors).items() if t is not None}


@pytest.mark.parametrize("op", ["scaled_linear", "scaled_grouped_linear", "scaled_masked_grouped_linear", "dequantize"])
def test_codes_fill_the_range_of_the_devices_own_dtype(op: str) -> None:
    found = [t for t in made(op).tensors if t is not None and t.dtype.itemsize == 1]
    assert {t.dtype for t in found} == {fp8_dtype(CPU)}
    for t in found:
        assert bool(t.float().isfinite().all())
        assert float(t.float().abs().max()) > 128


def test_scales_are_those_of_blocks() -> None:
    tensors = named("scaled_linear")
    assert tensors["x_scale"].shape == (48, 2)  # of 1 x 128
    assert tensors["w_scale"].shape == (3, 2)  # of 128 x 128
    assert bool((tensors["x_scale"] >= 2.0**-7).all())
    assert bool((tensors["x_scale"] <= 2.0**-6).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_results_have_the_runs_dtype_where_an_op_can_give_it(dtype: torch.dtype) -> None:
    wanted = torch.float32 if dtype == torch.float64 else dtype
    for op in ("scaled_linear", "scaled_grouped_linear", "scaled_masked_grouped_linear", "dequantize"):
        assert made(op, dtype=dtype).options["out_dtype"] == wanted


@pytest.mark.parametrize(("batch", "groups"), [(1, 1), (2, 2), (3, 1), (8, 4), (12, 4)])
def test_groups_are_of_one_size_and_cover_the_tokens(batch: int, groups: int) -> None:
    tensors = named("grouped_linear", batch=batch, new=1, context=9)
    offsets = tensors["group_offsets"]
    assert groups <= GROUPS
    assert offsets.diff().tolist() == [batch // groups] * groups
    assert int(offsets[-1]) == batch == tensors["x"].shape[0]
    assert tensors["w"].shape[0] == groups


@pytest.mark.parametrize("op", ["masked_grouped_linear", "scaled_masked_grouped_linear"])
def test_masked_groups_are_full_and_expected_so(op: str) -> None:
    arguments = made(op)
    rows, counts = arguments.tensors[0], arguments.tensors[2]
    assert rows is not None
    assert counts is not None
    assert counts.tolist() == [rows.shape[1]] * rows.shape[0]
    assert arguments.options["expected_m"] == rows.shape[1]


def test_a_backward_of_groups_does_twice_the_work() -> None:
    forward, backward = made("grouped_linear").flops, made("grouped_linear_backward").flops
    assert forward == 2 * 48 * 384 * 256
    assert backward == 2 * forward


def test_sums_start_at_zero_in_float32() -> None:
    for op in ("grouped_weight_grad", "scaled_grouped_weight_grad", "scaled_linear_accumulate"):
        total = made(op).tensors[0]
        assert total is not None
        assert total.dtype == torch.float32
        assert not bool(total.any())
