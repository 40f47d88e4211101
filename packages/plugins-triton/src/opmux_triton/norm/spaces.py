"""The configs of norms that are worth measuring. Loads no Triton."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_triton.arithmetic import next_power_of_two
from opmux_triton.norm import configs
from opmux_triton.norm.configs import BackwardConfig, RowsConfig
from opmux_triton.variations import around, variations

_WIDEST = 32768
_ELEMENTS = 8192
"""Columns of all rows of a program where it has several."""


def _rows(function: Callable[[Arch, Mapping[str, Any]], RowsConfig]) -> Callable[..., Iterator[RowsConfig]]:
    def space(arch: Arch, features: Mapping[str, Any]) -> Iterator[RowsConfig]:
        """Rows held whole or read twice, by fewer and by more warps."""
        base = function(arch, features)
        whole = min(_WIDEST, max(64, next_power_of_two(features["hidden"])))
        for block in sorted({whole, base.block, *(size for size in (1024, 2048, 4096) if size < whole)}):
            held = block == whole
            rows = [n for n in (1, 2, 4, 8) if n == 1 or (held and n * block <= _ELEMENTS)]
            yield from variations(base, block=[block], rows=rows, num_warps=around(base.num_warps, 1, 16))

    return space


rms_space = _rows(configs.rms_config)
centred_space = _rows(configs.centred_config)
added_space = _rows(configs.added_config)


def backward_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[BackwardConfig]:
    """More and fewer warps and programs, and other depths of the ring of rows."""
    yield from _backward(configs.backward_config(arch, features))


def centred_backward_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[BackwardConfig]:
    """The same for norms that subtract the mean."""
    yield from _backward(configs.centred_backward_config(arch, features))


def _backward(base: BackwardConfig) -> Iterator[BackwardConfig]:
    stages = sorted({1, 2, base.stages})
    programs = sorted({max(1, base.programs - 1), base.programs, base.programs + 1})
    yield from variations(base, stages=stages, programs=programs, num_warps=around(base.num_warps, 1, 16))
