"""The tiles of the gradients of `linear`: which ones a call gets, and which ones the tuner tries."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.products.configs import LinearConfig, linear_config, linear_space


@dataclass(frozen=True)
class LinearBackwardConfig:
    """The tiles of both products.

    Attributes:
        of_x: of the gradient of x: ``block_m`` rows, ``block_n`` of its columns, ``block_k`` rows of w in a step.
        of_w: of the gradient of w: ``block_m`` rows, ``block_n`` of its columns, ``block_k`` rows of x in a step.
    """

    of_x: LinearConfig
    of_w: LinearConfig


def sizes_of_products(features: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """What the choice for `linear` goes by, for each of the products."""
    tokens, n, k = features["bucket(tokens, 8)"], features["n"], features["k"]
    return {"bucket(tokens, 8)": tokens, "n": k, "k": n}, {"bucket(tokens, 8)": n, "n": k, "k": tokens}


def linear_backward_config(arch: Arch, features: Mapping[str, Any]) -> LinearBackwardConfig:
    """For each product what `linear` of its sizes gets."""
    of_x, of_w = sizes_of_products(features)
    return LinearBackwardConfig(linear_config(arch, of_x), linear_config(arch, of_w))


def linear_backward_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[LinearBackwardConfig]:
    """The choice, and the tiles of each product that `linear` of its sizes may get beside the choice for the other."""
    chosen = linear_backward_config(arch, features)
    yield chosen
    of_x, of_w = sizes_of_products(features)
    for tile in linear_space(arch, of_x):
        if tile != chosen.of_x:
            yield LinearBackwardConfig(tile, chosen.of_w)
    for tile in linear_space(arch, of_w):
        if tile != chosen.of_w:
            yield LinearBackwardConfig(chosen.of_x, tile)
