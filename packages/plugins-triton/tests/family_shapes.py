"""Archs and sizes that the configs of the memory-bound families are asked for."""

from collections.abc import Iterable
from typing import Any

from opmux.plugin import parse_arch

ARCHS = tuple(
    parse_arch(name) for name in ("sm_80", "sm_89", "sm_90", "sm_100", "gfx90a", "gfx942", "gfx950", "gfx1201")
)
WIDTHS = (1, 7, 64, 128, 1000, 2880, 4096, 5120, 8192, 14336, 28672, 100_000)
TOKENS = tuple(range(0, 24, 3))
"""Buckets of the number of tokens."""


def assert_launchable(configs: Iterable[Any], arch: Any) -> None:
    """A program has 1024 threads at most; that sizes are powers of two, the configs check themselves."""
    lanes = 64 if arch.name.startswith("gfx9") else 32
    assert max(config.num_warps for config in configs) * lanes <= 1024
