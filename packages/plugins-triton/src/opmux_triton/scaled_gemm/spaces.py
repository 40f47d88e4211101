"""The configs of scaled products that are worth measuring. Loads no Triton."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from opmux.plugin import Arch
from opmux_triton.scaled_gemm import heuristics, hopper_heuristics
from opmux_triton.scaled_gemm.configs import ScaledConfig
from opmux_triton.scaled_gemm.hopper_configs import HopperScaledConfig
from opmux_triton.variations import around, variations

Space = Callable[[Arch, Mapping[str, Any]], Iterator[ScaledConfig]]


def _portable(function: Callable[[Arch, Mapping[str, Any]], ScaledConfig]) -> Space:
    def space(arch: Arch, features: Mapping[str, Any]) -> Iterator[ScaledConfig]:
        """Larger and smaller tiles, more and fewer stages; for few rows, more and fewer parts of k."""
        base = function(arch, features)
        few = heuristics.sizes(features)[0] <= 64
        yield from variations(
            base,
            num_stages=sorted({max(1, base.num_stages - 1), base.num_stages}),
            num_warps=sorted({4, base.num_warps}),
            block_m=[base.block_m] if few else around(base.block_m, 64, 256),
            block_n=around(base.block_n, 32, 256),
            parts=sorted({max(1, base.parts // 2), base.parts, base.parts * 2}) if few else [base.parts],
        )

    return space


def hopper_scaled_linear(arch: Arch, features: Mapping[str, Any]) -> Iterator[HopperScaledConfig]:
    """Every tile that is legal for a call, cut along k and swapped or not, by predicted time."""
    yield from _gluon(hopper_heuristics.sizes(features))


def hopper_scaled_linear_accumulate(arch: Arch, features: Mapping[str, Any]) -> Iterator[HopperScaledConfig]:
    """The same for a product that is added."""
    yield from _gluon(hopper_heuristics.sizes(features)._replace(added=True))


def _gluon(product: hopper_heuristics.Sizes) -> Iterator[HopperScaledConfig]:
    for choice in sorted(hopper_heuristics.choices(product)):
        config = hopper_heuristics.config(choice, product)
        yield config
        if product.blockwise and config.warpgroups < 3:
            yield replace(config, ahead=not config.ahead)


scaled_linear = _portable(heuristics.scaled_linear)
scaled_linear_fnuz = _portable(heuristics.scaled_linear_fnuz)
scaled_linear_int8 = _portable(heuristics.scaled_linear_int8)
