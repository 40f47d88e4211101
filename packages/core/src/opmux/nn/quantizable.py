"""What may be quantised, and how: the dtypes of codes, the names of blocks, and what a weight must not hold."""

from typing import Any

import torch
from torch import Tensor

import opmux
from opmux.dtypes import name_of
from opmux.errors import invalid
from opmux.nn.quantized_product import ACTIVATIONS, WEIGHTS

CODES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.int8)
"""The dtypes that a weight may be stored in."""

PLAIN_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
"""The dtypes of what may be quantised, and of what codes stand for."""

PLAIN_NAMES = "bfloat16, float16, float32 or float64"
"""`PLAIN_DTYPES` in the words of messages."""

PLAIN = f"a weight of finite numbers in {PLAIN_NAMES}"
"""The weights that may be quantised, in the words of messages."""


def codes_dtype(where: str, codes: torch.dtype | str, device: Any) -> torch.dtype:
    """The dtype of codes that a name stands for: ``"fp8"`` is the device's own 8-bit float.

    Raises:
        InvalidArgument: If it is none of `CODES`.
    """
    found = codes
    if isinstance(codes, str) and codes in ("fp8", "int8"):
        found = torch.int8 if codes == "int8" else opmux.fp8_dtype(torch.device(device))
    if isinstance(found, torch.dtype) and found in CODES:
        return found
    expected = f"'fp8', 'int8', or one of {', '.join(map(name_of, CODES))}"
    got = name_of(codes) if isinstance(codes, torch.dtype) else repr(codes)
    raise invalid(where, "codes", expected, got, "'fp8' is the device's own 8-bit float")


def check_blocks(where: str, activations: str, weights: str) -> None:
    """Reject names of blocks that are none of `ACTIVATIONS` and `WEIGHTS`."""
    for name, value, known in (("activations", activations, ACTIVATIONS), ("weights", weights, WEIGHTS)):
        if not isinstance(value, str) or value not in known:
            remedy = "see the blocks in the docs of QuantizedLinear"
            raise invalid(where, name, f"one of {', '.join(known)}", repr(value), remedy)


def flaw_of(weight: Tensor) -> str | None:
    """What a weight with values has that keeps it from being quantised; None if nothing."""
    if weight.dtype not in PLAIN_DTYPES:
        return f"dtype {name_of(weight.dtype)}"
    if not weight.numel():
        return "a size of 0"
    # detached: `isfinite` of an inference tensor that requires a gradient raises outside of inference mode
    return None if bool(torch.isfinite(weight.detach()).all()) else "NaN or infinity in it"


def check_input_scale(activations: str, input_scale: float | None) -> None:
    """Reject a missing or impossible scale of static activations, and a scale that nothing would use."""
    static = activations == "static"
    possible = input_scale is None or (
        isinstance(input_scale, int | float) and not isinstance(input_scale, bool) and 0 < input_scale < float("inf")
    )
    if static != (input_scale is not None) or not possible:
        expected = "a positive number with static activations" if static else "None unless activations are static"
        remedy = "opmux.nn.quantize_ finds it by a calibration" if static else "pass activations='static'"
        raise invalid("QuantizedLinear", "input_scale", expected, repr(input_scale), remedy)
