"""A point: one call of an op as data: its dtypes, dims and options, and how often it was made."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opmux.callpath.op import OPS, Op
from opmux.dtypes import short_name_of
from opmux.signatures.validation import check_call


@dataclass(frozen=True)
class Point:
    """One call of an op.

    Attributes:
        op: the op's name.
        dtypes: the dtype of every tensor argument that is given, by name.
        dims: the size of every dim of the signature, a star dim by its product.
        options: the options that are not their defaults, and all that have none.
        count: how often the call was made.
    """

    op: str
    dtypes: Mapping[str, torch.dtype]
    dims: Mapping[str, int]
    options: Mapping[str, Any] = field(default_factory=dict)
    count: int = 1

    @classmethod
    def of_call(
        cls, op: Op, tensors: Mapping[str, Any], dims: Mapping[str, Any], options: Mapping[str, Any], count: int = 1
    ) -> "Point":
        """The point of a call that was checked.

        Args:
            op: the op.
            tensors: its tensors by name, None for an absent one.
            dims: its dims, as `check_call` binds them.
            options: every option, normalised.
            count: how often it was made.
        """
        sizes = {name: math.prod(size) if isinstance(size, tuple) else int(size) for name, size in dims.items()}
        given = {o.name: options[o.name] for o in op.signature.options if o.required or options[o.name] != o.default}
        return cls(op.name, {n: t.dtype for n, t in tensors.items() if t is not None}, sizes, given, count)

    @property
    def definition(self) -> Op:
        """The op itself."""
        return OPS[self.op]

    @property
    def key(self) -> str:
        """One line that says the call and nothing else: equal for equal calls, however often they were made."""
        words = [f"{name}={short_name_of(dtype)}" for name, dtype in self.dtypes.items()]
        words += [f"{name}={size}" for name, size in self.dims.items()]
        words += [f"{name}={_text(value)}" for name, value in sorted(self.options.items())]
        return " ".join([self.op, *words])

    @property
    def shaped_dims(self) -> dict[str, Any]:
        """The dims as the signature binds them: a star dim is a tuple."""
        stars = self.definition.signature.stars
        return {name: (size,) if name in stars else size for name, size in self.dims.items()}

    @property
    def all_options(self) -> dict[str, Any]:
        """Every option, defaults filled in."""
        return {o.name: self.options.get(o.name, o.default) for o in self.definition.signature.options}

    def tensors(self) -> dict[str, Tensor | None]:
        """Tensors of this call on the meta device, None for an absent one.

        Raises:
            RuntimeError, TypeError, OverflowError, ValueError: where torch cannot hold such sizes.
        """
        dims, options = self.shaped_dims, self.all_options
        return {
            t.name: torch.empty(t.shape.value(dims, options), dtype=self.dtypes[t.name], device="meta")
            if t.name in self.dtypes
            else None
            for t in self.definition.signature.tensors
        }

    def check(self) -> None:
        """Check the call against the op's signature.

        Raises:
            InvalidArgument: where the op would refuse the call.
            RuntimeError, TypeError, OverflowError, ValueError: where torch cannot hold such sizes.
        """
        check_call(self.definition.signature, self.tensors(), self.all_options)

    def as_dict(self) -> dict[str, Any]:
        """The point as JSON can hold it; `opmux.shapes.files` reads it back."""
        return {
            "op": self.op,
            "dtypes": {name: short_name_of(dtype) for name, dtype in self.dtypes.items()},
            "dims": dict(self.dims),
            "options": {name: _plain(value) for name, value in self.options.items()},
            "count": self.count,
        }


def _plain(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return short_name_of(value)
    return list(value) if isinstance(value, tuple) else value


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(_text(item) for item in value)
    return str(_plain(value)).lower() if isinstance(value, bool) or value is None else str(_plain(value))
