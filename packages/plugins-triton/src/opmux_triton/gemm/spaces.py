"""The configs of linear layers and of their gradients that are worth measuring. Loads no Triton."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
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
from opmux_triton.gemm.vectors import vectors_of
from opmux_triton.variations import around, variations

Sizes = tuple[int, int, int]
Space = Callable[[Arch, Mapping[str, Any]], Iterator[Any]]
Backward = TypeVar("Backward", LinearBackwardConfig, HopperBackwardConfig)

SPINNING = 512
"""Rows up to which programs that begin elsewhere in k are tried: they share the large operand then."""
FEW = 3
"""The octave of tokens up to which products without matrix instructions are tried."""
_RESIDENT: tuple[dict[str, Any], ...] = (
    {"block_k": 256, "num_stages": 5, "per_unit": 1},
    {"block_k": 128, "num_stages": 4, "per_unit": 2},
    {"block_k": 128, "num_stages": 3, "per_unit": 3},
)
"""How many programs with tiles of 64 x 16 a multiprocessor holds."""
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
            if arch.name == "sm_90" and function is heuristics.linear:
                yield from _vectors(1, heuristics.halves(arch, 2, features["n"], features["k"]))
            return
        tiles = base.tiles
        if base.vectors is not None:
            yield base
            tiles = base.vectors.otherwise
        assert tiles is not None
        if arch.name == "sm_90" and function is heuristics.linear and features["bucket(tokens)"] <= FEW:
            yield from _vectors(1 << features["bucket(tokens)"], tiles)
            yield from (LinearConfig(tiles=replace(tiles, **of)) for of in _RESIDENT)
        yield from (LinearConfig(tiles=other) for other in _tiles(tiles))

    return space


def _portable_backward(function: Callable[[Arch, Mapping[str, Any]], LinearBackwardConfig]) -> Space:
    def space(arch: Arch, features: Mapping[str, Any]) -> Iterator[LinearBackwardConfig]:
        """Other tiles of either product, beside the heuristic's for the other."""
        base = function(arch, features)
        yield from _either(base, _few(_tiles(base.grad_x)), _few(_tiles(base.grad_w)))

    return space


def _vectors(m: int, otherwise: TilesConfig) -> Iterator[LinearConfig]:
    """Products without matrix instructions; 64 sums of a thread at most, and 64 elements of the weight under way."""
    for rows, blocks, warps in product((1, 2, 4), (1, 2, 4), (1, 2, 4)):
        if rows * m <= 8 and 2 <= rows * blocks <= 8:
            yield LinearConfig(vectors=vectors_of(rows, blocks, warps, otherwise))


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
