"""Projections that are one weight in a module and several in a state dict, or the other way round."""

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch


def fit_projections(
    state_dict: MutableMapping[str, Any], prefix: str, fused: bool, whole: str, parts: Mapping[str, int]
) -> None:
    """Rename what a module's state dict holds to what the module has: joined where it is fused, else apart.

    What does not fit stays as it is, and `load_state_dict` names it.

    Args:
        state_dict: Changed in place.
        prefix: The module's, with its dot.
        fused: Whether the module has the whole.
        whole: The name of the fused projection.
        parts: Those that it consists of, in its order -> their rows.
    """
    rows = list(parts.values())
    for kind in ("weight", "bias"):
        name, names = f"{prefix}{whole}.{kind}", [f"{prefix}{part}.{kind}" for part in parts]
        if fused and [len(state_dict.get(part, ())) for part in names] == rows:
            state_dict[name] = torch.cat([state_dict.pop(part) for part in names])
        elif not fused and len(state_dict.get(name, ())) == sum(rows):
            state_dict.update(zip(names, state_dict.pop(name).split(rows), strict=True))
