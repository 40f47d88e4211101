"""What may be quantised: names of codes and of blocks, weights, and scales of static activations."""

from typing import Any

import pytest
import torch
from nn.blocks import linear_of

import opmux
from opmux import nn
from opmux.errors import InvalidArgument
from opmux.nn.quantizable import CODES, codes_dtype, flaw_of


@pytest.mark.parametrize("codes", CODES, ids=str)
def test_a_dtype_of_codes_stands_for_itself(codes: torch.dtype) -> None:
    assert codes_dtype("here", codes, "cpu") is codes


def test_names_of_codes_stand_for_the_devices_dtypes() -> None:
    assert codes_dtype("here", "int8", "cpu") is torch.int8
    assert codes_dtype("here", "fp8", "cpu") is opmux.fp8_dtype(torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_finite_weights_have_no_flaw(dtype: torch.dtype) -> None:
    assert flaw_of(torch.full((2, 3), -2.0, dtype=dtype)) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_value_that_is_not_finite_is_a_flaw(value: float) -> None:
    weight = torch.zeros(3, 5)
    weight[2, 4] = value
    assert flaw_of(weight) == "NaN or infinity in it"


def test_a_weight_that_was_made_in_inference_mode_is_judged_outside_of_it() -> None:
    with torch.inference_mode():
        weight = torch.nn.Parameter(torch.ones(2, 2))
    assert flaw_of(weight) is None


def test_a_weight_without_elements_or_of_codes_has_a_flaw() -> None:
    assert flaw_of(torch.ones(0, 4)) == "a size of 0"
    assert flaw_of(torch.ones(2, 4, dtype=torch.int8)) == "dtype int8"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.QuantizedLinear(4, 4, codes="fp4"),
            "QuantizedLinear: `codes` expected 'fp8', 'int8', or one of float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, "
            "float8_e5m2fnuz, int8, got 'fp4'; 'fp8' is the device's own 8-bit float",
        ),
        (lambda: nn.QuantizedLinear(4, 4, codes=torch.int32), "got int32; 'fp8' is the device's own 8-bit float"),
        (
            lambda: nn.QuantizedLinear(4, 4, activations="row"),
            "QuantizedLinear: `activations` expected one of token, block, static, got 'row'",
        ),
        (
            lambda: nn.QuantizedLinear(4, 4, activations=["token"]),  # type: ignore[arg-type]
            "QuantizedLinear: `activations` expected one of token, block, static, got ['token']; see the blocks",
        ),
        (
            lambda: nn.QuantizedLinear.from_linear(torch.nn.Linear(4, 4, dtype=torch.complex64)),
            "float32 or float64, got dtype complex64; repair its weight",
        ),
        (
            lambda: nn.QuantizedLinear(4, 4, weights="row"),
            "QuantizedLinear: `weights` expected one of channel, block, tensor, got 'row'",
        ),
        (
            lambda: nn.QuantizedLinear.from_linear(linear_of(float("nan"))),
            "QuantizedLinear: `linear` expected a weight of finite numbers in bfloat16, float16, float32 or float64, "
            "got NaN or infinity in it; repair its weight",
        ),
        (
            lambda: nn.QuantizedLinear.from_linear(torch.nn.Linear(4, 4), activations="static"),
            "QuantizedLinear: `input_scale` expected a positive number with static activations, got None; "
            "opmux.nn.quantize_ finds it by a calibration",
        ),
        (
            lambda: nn.QuantizedLinear.from_linear(torch.nn.Linear(4, 4), activations="static", input_scale=-1.0),
            "QuantizedLinear: `input_scale` expected a positive number with static activations, got -1.0",
        ),
        (
            lambda: nn.QuantizedLinear.from_linear(torch.nn.Linear(4, 4), activations="static", input_scale="x"),
            "QuantizedLinear: `input_scale` expected a positive number with static activations, got 'x'",
        ),
        (
            lambda: nn.QuantizedLinear.from_linear(torch.nn.Linear(4, 4), activations="static", input_scale=True),
            "QuantizedLinear: `input_scale` expected a positive number with static activations, got True",
        ),
        (
            lambda: nn.QuantizedLinear.from_linear(torch.nn.Linear(4, 4), input_scale=1.0),
            "QuantizedLinear: `input_scale` expected None unless activations are static, got 1.0; pass",
        ),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert message in str(caught.value)
