"""The configs of grouped products that are worth measuring. Loads no Triton."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from opmux.plugin import Arch
from opmux_triton.grouped_gemm import heuristics
from opmux_triton.grouped_gemm.configs import GroupedBackwardConfig, GroupedConfig
from opmux_triton.grouped_gemm.hopper_configs import HopperGroupedConfig
from opmux_triton.variations import around, variations

Config = TypeVar("Config", bound=GroupedConfig)


def _tiles(base: Config) -> Iterator[Config]:
    """Larger and smaller tiles, fewer and more stages, and one program on a multiprocessor or several."""
    yield from variations(
        base,
        block_m=around(base.block_m, 16, 128),
        block_n=around(base.block_n, 32, 256),
        block_k=around(base.block_k, 32, 128),
        num_stages=sorted({max(1, base.num_stages - 1), base.num_stages}),
        num_warps=sorted({4, base.num_warps}),
    )


def _other_sums(base: GroupedConfig) -> Iterator[GroupedConfig]:
    """For groups of many rows: operands by descriptors, in tiles that leave registers for the results; by pointers."""
    if base.tma:
        yield replace(base, tma=False, num_warps=4).for_pointers()
    if base.block_m == 128:
        described = replace(base, block_k=64, num_warps=8, tma=True, early=False)
        for block_n, stages in ((128, 3), (128, 4), (256, 3)):
            yield replace(described, block_n=block_n, num_stages=stages)


def _few(configs: Iterator[GroupedConfig], count: int = 12) -> list[GroupedConfig]:
    return [config for _, config in zip(range(count), configs, strict=False)]


def _of(function: Callable[[Arch, Mapping[str, Any]], Config]) -> Callable[[Arch, Mapping[str, Any]], Iterator[Config]]:
    def space(arch: Arch, features: Mapping[str, Any]) -> Iterator[Config]:
        """The tiles around those of the heuristic."""
        yield from _tiles(function(arch, features))

    return space


def _of_both(
    function: Callable[[Arch, Mapping[str, Any]], GroupedBackwardConfig],
) -> Callable[[Arch, Mapping[str, Any]], Iterator[GroupedBackwardConfig]]:
    def space(arch: Arch, features: Mapping[str, Any]) -> Iterator[GroupedBackwardConfig]:
        """Operands otherwise, other tiles of either product, beside the heuristic's for the other."""
        base = function(arch, features)
        if arch.name == "sm_90" and function is heuristics.backward:
            yield from (replace(base, grad_w=one) for one in _other_sums(base.grad_w))
            if base.grad_x.along:
                yield replace(base, grad_x=replace(base.grad_x, tma=False, along=False).for_pointers())
        yield from (replace(base, grad_x=tiles) for tiles in _few(_tiles(base.grad_x)))
        yield from (replace(base, grad_w=tiles) for tiles in _few(_tiles(base.grad_w)))

    return space


def hopper_scaled(arch: Arch, features: Mapping[str, Any]) -> Iterator[HopperGroupedConfig]:
    """The portable kernel's tiles in its place, tiles of fewer rows and columns, and one of three warpgroups."""
    base = heuristics.hopper_scaled(arch, features)
    yield base
    yield replace(base, few=not base.few)
    for block_m, block_n, stages in ((64, 128, 8), (128, 64, 8), (192, 128, 5)):
        yield replace(base, block_m=block_m, block_n=block_n, stages=stages, warpgroups=block_m // 64, few=False)


grouped = _of(heuristics.grouped)
grouped_float32 = _of(heuristics.grouped_float32)
scaled = _of(heuristics.scaled)


def weight_grad(arch: Arch, features: Mapping[str, Any]) -> Iterator[GroupedConfig]:
    """The tiles around those of the heuristic; some of them load what they are added to before the products."""
    base = heuristics.weight_grad(arch, features)
    if arch.name == "sm_90":
        yield from _other_sums(base)
    yield from _tiles(base)
    early = replace(base, early=True)
    yield from variations(early, block_m=(32, 64, 128), block_n=(64, 128, 256), block_k=(16, 32), num_warps=(4, 8))


scaled_weight_grad = _of(heuristics.scaled_weight_grad)
weight_grad_float32 = _of(heuristics.weight_grad_float32)
backward = _of_both(heuristics.backward)
backward_float32 = _of_both(heuristics.backward_float32)
