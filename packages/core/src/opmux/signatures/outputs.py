"""The rule for outputs, once: number, class, shape, dtype, device, strides, and memory of their own.

A target's results are held to it when a plan first runs, a caller's ``out=`` before anything is written, and every
result in the conformance suite.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opmux.dtypes import name_of
from opmux.signatures.signature import Signature
from opmux.signatures.validation import describe


@dataclass(frozen=True)
class Form:
    """What one output of a call must be.

    Attributes:
        strides: None where it must be contiguous.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    strides: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"{name_of(self.dtype)}[{', '.join(map(str, self.shape))}] on {self.device}"

    def fits(self, value: Any) -> bool:
        """Whether a value is a tensor of this shape and dtype on this device."""
        return isinstance(value, Tensor) and (tuple(value.shape), value.dtype, value.device) == (
            self.shape,
            self.dtype,
            self.device,
        )

    def strides_fit(self, value: Tensor) -> bool:
        """Whether a tensor of this shape has these strides; those of dims of size 1 do not matter."""
        if self.strides is None or not value.numel():
            return value.is_contiguous()
        return all(n <= 1 or a == b for a, b, n in zip(value.stride(), self.strides, self.shape, strict=True))


@dataclass(frozen=True)
class OutputFault:
    """What is wrong with results.

    Attributes:
        check: ``form``, ``strides`` or ``aliasing``.
        message: what was returned, then what was expected.
    """

    check: str
    message: str


def forms(
    signature: Signature, tensors: Mapping[str, Any], dims: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Form, ...]:
    """What each output of a call must be; one that ``output_mask`` does not want is empty, of shape (0,)."""
    device = tensors[signature.tensors[0].name].device
    shapes, dtypes = signature.output_shapes(dims, options), signature.output_dtypes(tensors, options)
    return tuple(
        Form(
            output.name,
            tuple(shape),
            dtype,
            device,
            None if output.strides is None or shape == (0,) else output.strides(shape, options),
        )
        for output, shape, dtype in zip(signature.outputs, shapes, dtypes, strict=True)
    )


def as_tuple(results: Any, expected: Sequence[Form]) -> tuple[Any, ...]:
    """What a target returned, one by one. A tuple of one is not the tensor that an op of one output returns."""
    if not isinstance(results, tuple) or (len(expected) == 1 and len(results) == 1):
        return (results,)
    return results


def first_fault(
    signature: Signature,
    tensors: Mapping[str, Any],
    dims: Mapping[str, Any],
    options: Mapping[str, Any],
    results: Any,
) -> OutputFault | None:
    """What is wrong with what a target returned for a call, or None: the first of `faults_of`."""
    expected = forms(signature, tensors, dims, options)
    return next(faults_of(expected, as_tuple(results, expected), tensors), None)


def faults_of(expected: Sequence[Form], given: Sequence[Any], tensors: Mapping[str, Any]) -> Iterator[OutputFault]:
    """Everything that is wrong with results.

    Args:
        expected: what each must be.
        given: the results.
        tensors: the call's arguments by name, whose memory no output may share; nor may two outputs share theirs.
    """
    if len(given) != len(expected):
        yield OutputFault("form", f"returned {len(given)} results, expected {len(expected)}")
        return
    taken = {name: tensor for name, tensor in tensors.items() if tensor is not None and tensor.numel()}
    for form, value in zip(expected, given, strict=True):
        if not form.fits(value):
            where = f" on {value.device}" if isinstance(value, Tensor) else ""
            yield OutputFault("form", f"returned {describe(value)}{where} as `{form.name}`, expected {form}")
            continue
        if not form.strides_fit(value):
            wanted = "a contiguous tensor" if form.strides is None else f"strides {list(form.strides)}"
            yield OutputFault(
                "strides", f"returned `{form.name}` with strides {list(value.stride())}, expected {wanted}"
            )
        if value.numel():
            source = next((name for name, tensor in taken.items() if shares_memory(value, tensor)), None)
            if source is not None:
                yield OutputFault(
                    "aliasing", f"returned `{form.name}` in the memory of `{source}`, expected a tensor of its own"
                )
            taken[form.name] = value


def several(out: Any) -> tuple[Any, ...]:
    """The tensors given as ``out=``, one by one; none where it is None."""
    if out is None:
        return ()
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def copy_into(out: Any, results: Any) -> None:
    """Copy what a target returned into the tensors that were given as ``out=``."""
    for target, result in zip(several(out), results if isinstance(results, tuple) else (results,), strict=True):
        target.copy_(result)


def shares_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors lie in one storage."""
    first, second = a.untyped_storage(), b.untyped_storage()
    if first._cdata == second._cdata:
        return True
    # Storage that came in by another library may have an object of its own; meta and fake storage has no address.
    return first.device == second.device and first.device.type != "meta" and first.data_ptr() == second.data_ptr()
