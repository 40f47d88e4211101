"""Results that an op leaves unwritten: rows of a grouped product that belong to no group.

What such rows hold is unspecified, so nothing compares them. They are left as they are, though: they may be a large
part of a padded layout, and a kernel that writes them has its groups wrong.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from opmux.callpath.op import Op


def groups_of(tensors: Mapping[str, Any]) -> list[slice]:
    """The rows of each group of a ragged call.

    Args:
        tensors: the arguments, by name: valid ``group_offsets``, and ``group_sizes`` if there are any.
    """
    offsets: list[int] = tensors["group_offsets"].tolist()
    sizes = tensors.get("group_sizes")
    lengths = tensors["group_offsets"].diff() if sizes is None else sizes
    return [slice(start, start + size) for start, size in zip(offsets, lengths.tolist(), strict=False)]


def unused_rows(tensors: Mapping[str, Any]) -> Tensor | None:
    """Which rows belong to no group: a mask over the leading dims of ``x`` and ``out``; None where an op has no groups.

    Args:
        tensors: the arguments of a call, by name.
    """
    offsets, counts = tensors.get("group_offsets"), tensors.get("masked_m")
    if offsets is not None:
        unused = torch.ones(tensors["x"].shape[0], dtype=torch.bool, device=offsets.device)
        for rows in groups_of(tensors):
            unused[rows] = False
        return unused
    if counts is not None:
        beyond: Tensor = torch.arange(tensors["x"].shape[1], device=counts.device) >= counts.unsqueeze(1)
        return beyond
    return None


def unwritten_results(op: Op, tensors: Mapping[str, Any]) -> tuple[Tensor | None, ...]:
    """For each output, which elements the op leaves unwritten: a mask that broadcasts, or None."""
    unused = unused_rows(tensors) if any(o.name == "out" for o in op.signature.outputs) else None
    if unused is None:
        return (None,) * len(op.signature.outputs)
    return tuple(unused.unsqueeze(-1) if o.name == "out" else None for o in op.signature.outputs)


def settled(op: Op, tensors: Mapping[str, Any], results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results with 0 in what the op leaves unwritten, so that the rest can be compared."""
    masks = unwritten_results(op, tensors) or (None,) * len(results)
    return tuple(
        r if mask is None or r.shape[:-1] != mask.shape[:-1] else r.masked_fill(mask, 0)
        for r, mask in zip(results, masks, strict=True)
    )
