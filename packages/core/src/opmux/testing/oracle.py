"""The oracle: what the results of a call are, in float64.

It is the op's own reference on operands upcast to float64, so that nothing is rounded on the way. Where a meaning
contains a rounding (a sum that is rounded before it is normed, codes that are rounded with the stored scale), the
rounded value is taken from the target's own results, which have been judged by themselves.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from opmux.callpath.op import OPS, Op
from opmux.testing.making import Arguments

Results = tuple[Tensor, ...]


def upcast(tensor: Tensor | None) -> Tensor | None:
    """A floating-point tensor in float64 (8-bit formats too); others as they are."""
    if tensor is None or not tensor.dtype.is_floating_point:
        return tensor
    return tensor.to(torch.float64)


def expected_results(op: Op, arguments: Arguments, results: Sequence[Tensor]) -> Results:
    """What a call gives, in float64: its outputs, or for a mutating op the mutated tensors afterwards.

    Args:
        op: the op.
        arguments: the arguments before the call.
        results: what the target gave; read only where a meaning contains a rounding.
    """
    tensors = {name: upcast(tensor) for name, tensor in arguments.tensors.items()}
    functional = OPS[op.in_place_of] if op.in_place_of is not None else op
    if functional.name in ROUNDED:
        return ROUNDED[functional.name](functional, arguments, tensors, results)
    return _results(op, tensors, arguments.options)


def reference_results(op: Op, arguments: Arguments) -> Results:
    """What the reference itself gives in the dtypes of the arguments, which are left as they are."""
    return _results(op, arguments.tensors, arguments.options)


def _results(op: Op, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> Results:
    """The reference's outputs, or for a mutating op the mutated tensors afterwards."""
    if op.in_place_of is not None:
        return run_reference(OPS[op.in_place_of], tensors, options)
    if not op.signature.mutates:
        return run_reference(op, tensors, options)
    copies = [_copy(tensors[t.name], t.name in op.signature.mutates) for t in op.signature.tensors]
    op.reference(*copies, **options)
    named = op.names(tuple(copies))
    return tuple(named[name] for name in mutated(op))


def mutated(op: Op) -> tuple[str, ...]:
    """What a mutating op writes, in order of its signature."""
    return tuple(t.name for t in op.signature.tensors if t.name in op.signature.mutates)


def result_names(op: Op) -> list[str]:
    """The names of an op's results; of a mutating op, those of the mutated tensors."""
    return list(mutated(op)) or [o.name for o in op.signature.outputs]


def run_reference(op: Op, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> Results:
    """The reference's results, always as a tuple."""
    found = op.reference(*(tensors[t.name] for t in op.signature.tensors), **options)
    return found if isinstance(found, tuple) else (found,)


def _copy(tensor: Any, mutated: bool) -> Any:
    return tensor.clone() if mutated and tensor is not None else tensor


Rounded = Callable[[Op, Arguments, Mapping[str, Any], Sequence[Tensor]], Results]

ROUNDED: dict[str, Rounded] = {}
"""op -> its oracle, where the meaning contains a rounding."""


def rounds(op: str) -> Callable[[Rounded], Rounded]:
    """Register the oracle of an op whose meaning contains a rounding.

    The function is given the op, the arguments, its tensors in float64 by name, and the target's results.
    """

    def register(function: Rounded) -> Rounded:
        ROUNDED[op] = function
        return function

    return register


@rounds("add_rms_norm")
@rounds("add_layer_norm")
def _normed_sum(op: Op, arguments: Arguments, tensors: Mapping[str, Any], results: Sequence[Tensor]) -> Results:
    """The norm is that of the rounded sum: of the target's own, which is itself held to the exact sum."""
    norm = OPS[op.name.removeprefix("add_")]
    exact = tensors["x"] + tensors["residual"]
    rest = {t.name: tensors[t.name] for t in norm.signature.tensors if t.name != "x"}
    (y,) = run_reference(norm, {"x": upcast(results[1]), **rest}, arguments.options)
    return y, exact


@rounds("quantize")
def _quotients(op: Op, arguments: Arguments, tensors: Mapping[str, Any], results: Sequence[Tensor]) -> Results:
    """What the codes are rounded from, not yet rounded, so that ties can be told from mistakes.

    Values are divided by the stored scale: by the target's own, which is itself held to two ulp of the exact one.
    """
    x, block = tensors["x"], arguments.options["block"]
    _, scale = run_reference(op, tensors, arguments.options)
    stored = results[1] if results[1].shape == scale.shape else scale
    divisors = stored.to(torch.float64)
    for dim, length in zip((-2, -1), block, strict=True):
        size = x.shape[dim]
        divisors = divisors.repeat_interleave(size if length == -1 else length, dim).narrow(dim, 0, size)
    return x / divisors, scale
