"""The oracle: the exact results of a call, in float64.

It is the op's own reference on operands upcast to float64, so that no intermediate result is rounded. If the op's
definition contains a rounding (a sum that is rounded before it is normed, codes that are rounded with the stored
scale), the rounded value is taken from the target's own results, which are checked separately.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from opmux.callpath.op import OPS, Op
from opmux.testing.making import Arguments
from opmux.testing.unwritten import settled

Results = tuple[Tensor, ...]


def upcast(tensor: Tensor | None) -> Tensor | None:
    """A floating-point tensor in float64 (8-bit formats too); others are unchanged."""
    if tensor is None or not tensor.dtype.is_floating_point:
        return tensor
    return tensor.to(torch.float64)


def expected_results(op: Op, arguments: Arguments, results: Sequence[Tensor]) -> Results:
    """The exact results of a call, in float64: its outputs, or the mutated tensors of a mutating op.

    Args:
        op: the op.
        arguments: the arguments before the call.
        results: what the target returned; read only if the op's definition contains a rounding.
    """
    tensors = {name: upcast(tensor) for name, tensor in arguments.tensors.items()}
    functional = OPS[op.in_place_of] if op.in_place_of is not None else op
    if functional.name in ROUNDED:
        return ROUNDED[functional.name](functional, arguments, tensors, results)
    return _results(op, tensors, arguments.options)


def reference_results(op: Op, arguments: Arguments) -> Results:
    """The results of the reference in the dtypes of the arguments, which are not modified."""
    return _results(op, arguments.tensors, arguments.options)


def _results(op: Op, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> Results:
    """The reference's outputs, or the mutated tensors of a mutating op."""
    if op.in_place_of is not None:
        return run_reference(OPS[op.in_place_of], tensors, options)
    if not op.signature.mutates:
        return run_reference(op, tensors, options)
    copies = [_copy(tensors[t.name], t.name in op.signature.mutates) for t in op.signature.tensors]
    op.reference(*copies, **options)
    named = op.names(tuple(copies))
    return tuple(named[name] for name in mutated(op))


def mutated(op: Op) -> tuple[str, ...]:
    """The tensors that a mutating op writes, in signature order."""
    return tuple(t.name for t in op.signature.tensors if t.name in op.signature.mutates)


def result_names(op: Op) -> list[str]:
    """The names of an op's results; for a mutating op, those of the mutated tensors."""
    return list(mutated(op)) or [o.name for o in op.signature.outputs]


def run_reference(op: Op, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> Results:
    """The reference's results, always as a tuple, with 0 in what the op leaves unwritten."""
    found = op.reference(*(tensors[t.name] for t in op.signature.tensors), **options)
    return settled(op, tensors, found if isinstance(found, tuple) else (found,))


def _copy(tensor: Any, mutated: bool) -> Any:
    return tensor.clone() if mutated and tensor is not None else tensor


Rounded = Callable[[Op, Arguments, Mapping[str, Any], Sequence[Tensor]], Results]

ROUNDED: dict[str, Rounded] = {}
"""op -> its oracle, for ops whose definition contains a rounding."""


def rounds(op: str) -> Callable[[Rounded], Rounded]:
    """Register the oracle of an op whose definition contains a rounding.

    The function receives the op, the arguments, its tensors in float64 by name, and the target's results.
    """

    def register(function: Rounded) -> Rounded:
        ROUNDED[op] = function
        return function

    return register


@rounds("add_rms_norm")
@rounds("add_layer_norm")
def _normed_sum(op: Op, arguments: Arguments, tensors: Mapping[str, Any], results: Sequence[Tensor]) -> Results:
    """The norm of the rounded sum: the target's own sum, which is itself checked against the exact one."""
    norm = OPS[op.name.removeprefix("add_")]
    exact = tensors["x"] + tensors["residual"]
    rest = {t.name: tensors[t.name] for t in norm.signature.tensors if t.name != "x"}
    (y,) = run_reference(norm, {"x": upcast(results[1]), **rest}, arguments.options)
    return y, exact


@rounds("quantize")
def _quotients(op: Op, arguments: Arguments, tensors: Mapping[str, Any], results: Sequence[Tensor]) -> Results:
    """The unrounded values of the codes, so that ties can be told from mistakes.

    Values are divided by the target's own stored scale, which is itself checked to two ulp of the exact one.
    """
    return _codes_of(tensors["x"], arguments.options, results)


def _codes_of(values: Tensor, options: Mapping[str, Any], results: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The unrounded values of the codes of exact values, and their exact scale."""
    names = ("dtype", "block", "scale_major")
    _, scale = run_reference(OPS["quantize"], {"x": values}, {name: options[name] for name in names})
    stored = results[1] if results and results[1].shape == scale.shape else scale
    divisors = stored.to(torch.float64)
    for dim, length in zip((-2, -1), options["block"], strict=True):
        size = values.shape[dim]
        divisors = divisors.repeat_interleave(size if length == -1 else length, dim).narrow(dim, 0, size)
    return values / divisors, scale


@rounds("rms_norm_quantize")
@rounds("silu_and_mul_quantize")
def _fused_codes(op: Op, arguments: Arguments, tensors: Mapping[str, Any], results: Sequence[Tensor]) -> Results:
    """The codes of the exact results of the op that is quantised."""
    before = OPS[op.name.removesuffix("_quantize")]
    (y,) = run_reference(before, tensors, _options_of(before, arguments.options))
    return _codes_of(y, arguments.options, results)


@rounds("add_rms_norm_quantize")
def _normed_sum_codes(op: Op, arguments: Arguments, tensors: Mapping[str, Any], results: Sequence[Tensor]) -> Results:
    """The codes of the norm of the target's own rounded sum, which is itself checked against the exact one."""
    norm, exact = OPS["rms_norm"], tensors["x"] + tensors["residual"]
    named = {"x": upcast(results[2]) if results else exact, "weight": tensors["weight"]}
    (y,) = run_reference(norm, named, _options_of(norm, arguments.options))
    return *_codes_of(y, arguments.options, results), exact


def _options_of(op: Op, options: Mapping[str, Any]) -> dict[str, Any]:
    return {o.name: options[o.name] for o in op.signature.options}


@rounds("static_quantize")
def _static_quotients(op: Op, arguments: Arguments, tensors: Mapping[str, Any], results: Sequence[Tensor]) -> Results:
    """The unrounded values of the codes."""
    x = tensors["x"]
    return (x / scale_of_elements(tensors["scale"], *x.shape[-2:]),)


def scale_of_elements(scale: Tensor, m: int, k: int) -> Tensor:
    """The scale of each element of matrices ``(m, k)``; the shape of the scales tells their block."""
    row, column = (torch.arange(size, device=scale.device) for size in (m, k))
    rows, columns = scale.shape[-2:]
    if rows == 1:
        row = torch.zeros_like(row)
    elif rows != m:
        row = row // 128
    width = k if columns == 1 else 128 if columns == -(-k // 128) else 32
    return scale[..., row[:, None], (column // width)[None, :]]


@rounds("dequantize")
@rounds("linear")
@rounds("scaled_linear")
@rounds("scaled_grouped_linear")
@rounds("scaled_masked_grouped_linear")
def _products(op: Op, arguments: Arguments, tensors: Mapping[str, Any], results: Sequence[Tensor]) -> Results:
    """The results before they are rounded to the dtype that an option asks for."""
    return run_reference(op, tensors, {**arguments.options, "out_dtype": torch.float64})


@rounds("write_kv_cache")
def _written(op: Op, arguments: Arguments, tensors: Mapping[str, Any], results: Sequence[Tensor]) -> Results:
    """The unrounded values of the codes, of integers too."""
    caches = {name: tensors[name].to(torch.float64) for name in mutated(op)}
    return _results(op, {**tensors, **caches}, arguments.options)


@rounds("convert_fp8")
def _converted(op: Op, arguments: Arguments, tensors: Mapping[str, Any], results: Sequence[Tensor]) -> Results:
    """The unrounded values; the flavour of q, which its values in float64 do not tell, decides about the scale."""
    q = arguments.tensors["q"]
    assert q is not None
    halved = (q.dtype, arguments.options["dtype"]) == (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
    factor = 2.0 if halved else 1.0
    return tensors["q"] / factor, tensors["scale"] * factor
