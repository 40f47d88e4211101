"""The tiles of gradients of products of groups."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.grouped.configs import OUTSIDE, WIDE, WIDEST, grouped_config, grouped_space
from opmux_cutile.products.backward_configs import LinearBackwardConfig
from opmux_cutile.products.configs import FEW_ROWS, LinearConfig


def weight_grad_config(arch: Arch, features: Mapping[str, Any]) -> LinearConfig:
    """The widest tile that a weight fills."""
    if min(features["n"], features["k"]) <= 64:
        return FEW_ROWS[64]
    return WIDEST if arch.name in OUTSIDE and features["k"] > 128 else WIDE


def weight_grad_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[LinearConfig]:
    """Tiles that need no local memory, of 64 rows at least: weights have many."""
    yield from (tile for tile in grouped_space(arch, features) if tile.block_m >= 64)


def grouped_backward_config(arch: Arch, features: Mapping[str, Any]) -> LinearBackwardConfig:
    """The tile of a product of the same rows, and that of gradients of weights."""
    return LinearBackwardConfig(grouped_config(arch, features), weight_grad_config(arch, features))


def grouped_backward_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[LinearBackwardConfig]:
    """The choice, and other tiles of each product beside the choice for the other."""
    chosen = grouped_backward_config(arch, features)
    yield chosen
    for tile in grouped_space(arch, features):
        if tile != chosen.of_x:
            yield replace(chosen, of_x=tile)
    for tile in weight_grad_space(arch, features):
        if tile != chosen.of_w:
            yield replace(chosen, of_w=tile)
