"""Projections that are one weight in a module and several in a state dict, or vice versa."""

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch


def fit_projections(
    state_dict: MutableMapping[str, Any], prefix: str, fused: bool, whole: str, parts: Mapping[str, int]
) -> None:
    """Convert a state dict to the form of the module: projections joined if the module is fused, else separate.

    Entries that do not fit are left unchanged, and `load_state_dict` reports them.

    Args:
        state_dict: Changed in place.
        prefix: The module's prefix, including the dot.
        fused: Whether the module has the fused projection.
        whole: The name of the fused projection.
        parts: The names of its parts, in row order -> their numbers of rows.
    """
    rows = list(parts.values())
    for kind in ("weight", "bias"):
        name, names = f"{prefix}{whole}.{kind}", [f"{prefix}{part}.{kind}" for part in parts]
        if fused and [len(state_dict.get(part, ())) for part in names] == rows:
            state_dict[name] = torch.cat([state_dict.pop(part) for part in names])
        elif not fused and len(state_dict.get(name, ())) == sum(rows):
            state_dict.update(zip(names, state_dict.pop(name).split(rows), strict=True))
