"""The configs of gated activations that are worth measuring. Loads no Triton."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_triton.activation import configs
from opmux_triton.activation.configs import GatedConfig
from opmux_triton.variations import around, variations


def _tiles(function: Callable[[Arch, Mapping[str, Any]], GatedConfig]) -> Callable[..., Iterator[GatedConfig]]:
    def space(arch: Arch, features: Mapping[str, Any]) -> Iterator[GatedConfig]:
        """Wider and narrower tiles, by fewer and by more warps."""
        base = function(arch, features)
        yield from variations(
            base,
            block=around(base.block, 128, 8192),
            rows=around(base.rows, 1, 16),
            num_warps=around(base.num_warps, 1, 16),
        )

    return space


gated_space = _tiles(configs.gated_config)
gated_backward_space = _tiles(configs.gated_backward_config)
