"""A kernel's parameters, and what the compiler may assume about them: part of the kernel's source and its signature."""

import json
from dataclasses import dataclass
from typing import Any

import torch

ALIGNMENT_BYTES = 16
"""Of the widest access of a thread."""
LETTERS = {"float32": "f", "int32": "i"}
"""The launcher's letter for a scalar."""


@dataclass(frozen=True)
class Array:
    """A tensor: its address, shape and strides, in this order, are arguments of the compiled kernel.

    Attributes:
        dtype: torch's name.
        shape: the sizes that are constant; None for others.
        stride: the strides that are constant; None for others, which are not negative.
        aligned: whether the address, and in bytes every stride that is not constant, are multiples of 16.
        groups: tensors with a group in common may overlap; others do not.
        vector: the bytes that are stated in the place of these 16, to have narrower accesses.
    """

    dtype: str
    shape: tuple[int | None, ...]
    stride: tuple[int | None, ...]
    aligned: bool
    groups: tuple[str, ...] = ()
    vector: int = ALIGNMENT_BYTES

    @property
    def letters(self) -> str:
        """The launcher's signature."""
        return "p" + "i" * len(self.shape) * 2

    def stated(self) -> dict[str, Any]:
        """As the translation to Tile IR takes it."""
        size = getattr(torch, self.dtype).itemsize
        return {
            "kind": "array",
            "dtype": self.dtype,
            "rank": len(self.shape),
            "shape": self.shape,
            "stride": self.stride,
            "divides": self.vector // size if self.aligned else 1,
            "alignment": self.vector if self.aligned else size,
            "groups": self.groups,
        }


@dataclass(frozen=True)
class Scalar:
    """A number that each launch gives: ``float32`` or ``int32``."""

    dtype: str

    @property
    def letters(self) -> str:
        """The launcher's signature."""
        return LETTERS[self.dtype]

    def stated(self) -> dict[str, Any]:
        """As the translation to Tile IR takes it."""
        return {"kind": "scalar", "dtype": self.dtype}


@dataclass(frozen=True)
class Constant:
    """A value that is compiled in; a launch does not give it."""

    value: bool | int | float

    @property
    def letters(self) -> str:
        """The launcher's signature: none."""
        return ""

    def stated(self) -> dict[str, Any]:
        """As the translation to Tile IR takes it."""
        return {"kind": "constant", "value": self.value}


Parameter = Array | Scalar | Constant


def flag(parameter: Parameter) -> str:
    """The compiler's flag for a parameter."""
    return "--parameter=" + json.dumps(parameter.stated(), sort_keys=True)
