"""The work of a call by its dims alone: floating-point operations and bytes, written once for dtypes and options.

Where index data decides (the lengths of ragged sequences, the pages of a cache), this is the work of the longest call
with these dims: every sequence at its maximum. Rows and calls are counted alike, so a prediction needs no more.
"""

from collections.abc import Mapping
from typing import Any

import torch

from opmux.callpath.op import Op
from opmux.signatures.dims import Shape
from opmux.signatures.expressions import evaluate
from opmux.signatures.output_dtypes import output_dtype
from opmux.tuning.matching import attended, matching_of


class Work:
    """The work of the calls of one op with these dtypes and options.

    Attributes:
        options: every option that has a value, defaults filled in.
        by_data: the true count depends on index data; the counts here are those of the longest call.
    """

    def __init__(self, op: Op, dtypes: Mapping[str, torch.dtype | None], options: Mapping[str, Any]) -> None:
        """Write the counts, as `opmux.signatures.expressions` has them: their names are numbers.

        Args:
            op: the op.
            dtypes: dtype of every tensor argument that is given, by name.
            options: options that are not their defaults; those that are sizes may be given with each call's dims.
        """
        self.options = {o.name: o.default for o in op.signature.options if not o.required} | dict(options)
        self._causal = bool(self.options.get("causal"))
        self.by_data = callable(op.flops) or bool(matching_of(op).capacity)
        self._flops = op.flops if isinstance(op.flops, str) else op.flops_bound
        self._bytes = " + ".join(_bytes_terms(op, dtypes, self.options)) or "0"

    def flops(self, sizes: Mapping[str, Any]) -> float:
        """Floating-point operations of a call with these dims (and options that are sizes); 0 if the op states none."""
        if self._flops is None:
            return 0.0
        names = {**self.options, **sizes}
        fraction = attended(names, names) if self._causal else 1.0
        return float(evaluate(self._flops, names)) * (1.0 if fraction is None else fraction)

    def moved_bytes(self, sizes: Mapping[str, Any]) -> float:
        """Bytes read and written: every argument and result once, what is written in place twice."""
        return float(evaluate(self._bytes, {**self.options, **sizes}))


def _bytes_terms(op: Op, dtypes: Mapping[str, torch.dtype | None], options: Mapping[str, Any]) -> list[str]:
    signature, terms = op.signature, []
    for argument in signature.tensors:
        dtype = dtypes.get(argument.name)
        if dtype is not None:
            count = op.touched.get(argument.name) or _numel(argument.shape)
            terms.append(f"{dtype.itemsize * (2 if argument.name in signature.mutates else 1)} * ({count})")
    known = {argument.name: dtypes.get(argument.name) for argument in signature.tensors}
    mask = options.get("output_mask")
    for output in signature.outputs:
        if mask is None or output.mask_index is None or mask[output.mask_index]:
            count = "1" if output.is_reduced(options) else _numel(output.shape)
            terms.append(f"{output_dtype(output.dtype, known, options).itemsize} * ({count})")
    return terms


def _numel(shape: Shape) -> str:
    return " * ".join(([shape.star] if shape.star else []) + [f"({dim.source()})" for dim in shape.dims]) or "1"
