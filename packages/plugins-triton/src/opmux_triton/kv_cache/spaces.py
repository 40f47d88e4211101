"""The configs of the cache write that are worth measuring. Loads no Triton."""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_triton.kv_cache.configs import WriteConfig, write_config
from opmux_triton.variations import around, variations


def write_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[WriteConfig]:
    """Fewer and more tokens and warps to a program, and stores that leave the L2 cache first."""
    base = write_config(arch, features)
    yield from variations(
        base, tokens=around(base.tokens, 1, 32), num_warps=around(base.num_warps, 1, 8), stream=(False, True)
    )
