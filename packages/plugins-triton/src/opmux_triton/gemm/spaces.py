"""The configs of linear layers and of their gradients that are worth measuring. Loads no Triton."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from opmux.plugin import Arch
from opmux_triton.gemm import heuristics, hopper_heuristics, hopper_model
from opmux_triton.gemm.configs import (
    HopperBackwardConfig,
    HopperConfig,
    LinearBackwardConfig,
    LinearConfig,
    TilesConfig,
)
from opmux_triton.variations import around, variations

Sizes = tuple[int, int, int]
Space = Callable[[Arch, Mapping[str, Any]], Iterator[Any]]
Backward = TypeVar("Backward", LinearBackwardConfig, HopperBackwardConfig)

SPINNING = 512
"""Rows up to which programs that begin elsewhere in k are tried: they share the large operand then."""
PRODUCTS = 12
"""Configs of each product of a gradient, those that are predicted to be the fastest."""


def hopper_linear(arch: Arch, features: Mapping[str, Any]) -> Iterator[HopperConfig]:
    """Every tile that is legal for a call, cut along k and swapped or not, by predicted time; small ones spin too."""
    yield from _gluon(*hopper_heuristics.sizes(features))


def hopper_linear_backward(arch: Arch, features: Mapping[str, Any]) -> Iterator[HopperBackwardConfig]:
    """The best tiles of either product by predicted time, beside the heuristic's choice for the other."""
    base = hopper_heuristics.linear_backward(arch, features)
    grad_x, grad_w = hopper_heuristics.backward_sizes(features)
    yield from _either(base, _few(_gluon(*grad_x)), _few(_gluon(*grad_w)))


def _gluon(m: int, n: int, k: int) -> Iterator[HopperConfig]:
    if hopper_heuristics.takes(m, n, k):
        for choice in sorted(hopper_model.choices(m, n, k)):
            made = hopper_model.config(choice, m, hopper_heuristics.portable(m, n, k))
            yield made
            if m <= SPINNING and made.cut == "none" and not made.alternate:
                yield replace(made, spin=True)


def _portable_linear(function: Callable[[Arch, Mapping[str, Any]], LinearConfig]) -> Space:
    def space(arch: Arch, features: Mapping[str, Any]) -> Iterator[LinearConfig]:
        """Larger and smaller tiles, warps and stages; for a single row, parts of the weight."""
        base = function(arch, features)
        if base.vector is not None:
            vectors = variations(
                base.vector,
                rows=around(base.vector.rows, 1, 16),
                block_k=around(base.vector.block_k, 256, 8192),
                num_warps=around(base.vector.num_warps, 1, 8),
            )
            yield from (replace(base, vector=vector) for vector in vectors)
        if base.tiles is not None:
            yield from (replace(base, tiles=tiles) for tiles in _tiles(base.tiles))

    return space


def _portable_backward(function: Callable[[Arch, Mapping[str, Any]], LinearBackwardConfig]) -> Space:
    def space(arch: Arch, features: Mapping[str, Any]) -> Iterator[LinearBackwardConfig]:
        """Other tiles of either product, beside the heuristic's for the other."""
        base = function(arch, features)
        yield from _either(base, _few(_tiles(base.grad_x)), _few(_tiles(base.grad_w)))

    return space


def _tiles(base: TilesConfig) -> Iterator[TilesConfig]:
    yield from variations(
        base,
        num_stages=sorted({max(1, base.num_stages - 1), base.num_stages}),
        num_warps=sorted({4, base.num_warps}),
        block_m=around(base.block_m, 16, 256),
        block_n=around(base.block_n, 16, 256),
    )


def _few(found: Iterator[Any]) -> list[Any]:
    return [config for config, _ in zip(found, range(PRODUCTS), strict=False)]


def _either(base: Backward, grad_x: list[Any], grad_w: list[Any]) -> Iterator[Backward]:
    """One product after the other: their times add up, so that the best of each are the best together."""
    yield from (replace(base, grad_x=config) for config in grad_x)
    yield from (replace(base, grad_w=config) for config in grad_w)
    yield from (replace(base, grad_x=x, grad_w=w) for x, w in zip(grad_x, grad_w, strict=False))


linear = _portable_linear(heuristics.linear)
linear_float32 = _portable_linear(heuristics.linear_float32)
linear_backward = _portable_backward(heuristics.linear_backward)
linear_backward_float32 = _portable_backward(heuristics.linear_backward_float32)
