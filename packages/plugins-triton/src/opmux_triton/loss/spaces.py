"""The configs of losses that are worth measuring. Loads no Triton."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from opmux.plugin import Arch
from opmux_triton.loss import configs
from opmux_triton.loss.configs import FusedConfig, RowsConfig
from opmux_triton.variations import around, variations


def _rows(base: RowsConfig) -> Iterator[RowsConfig]:
    return variations(base, block=around(base.block, 64, 16384), num_warps=around(base.num_warps, 1, 16))


def _of_rows(function: Callable[[Arch, Mapping[str, Any]], RowsConfig]) -> Callable[..., Iterator[RowsConfig]]:
    def space(arch: Arch, features: Mapping[str, Any]) -> Iterator[RowsConfig]:
        """Longer and shorter blocks, by fewer and by more warps."""
        return _rows(function(arch, features))

    return space


rows_space = _of_rows(configs.rows_config)
gradient_space = _of_rows(configs.gradient_config)


def _of_chunks(function: Callable[[Arch, Mapping[str, Any]], FusedConfig]) -> Callable[..., Iterator[FusedConfig]]:
    def space(arch: Arch, features: Mapping[str, Any]) -> Iterator[FusedConfig]:
        """Other blocks, other tiles and cuBLAS, each by itself; chunks stay, as they decide about memory."""
        base = function(arch, features)
        yield from (replace(base, rows=rows) for rows in _rows(base.rows))
        tiles = variations(
            base.product,
            block_m=around(base.product.block_m, 64, 256),
            block_n=around(base.product.block_n, 64, 256),
            num_stages=(2, 3, 4),
        )
        yield from (replace(base, product=tile) for tile in tiles if tile != base.product)
        yield from (replace(base, product=tile) for tile in variations(base.product, group=(4,), num_stages=(3, 4)))
        if arch.vendor == "nvidia":
            yield replace(base, by_blas=not base.by_blas)

    return space


fused_space = _of_chunks(configs.fused_config)
fused_float32_space = _of_chunks(configs.fused_float32_config)
