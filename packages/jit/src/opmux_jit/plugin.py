"""What the core loads of this package: its commands, and where to look for compilers. Loads no library."""

from collections.abc import Callable, Iterator

from opmux.plugin import Implementation, hookimpl
from opmux_jit.ahead.commands import prebuild, warmup
from opmux_jit.cache.command import cache
from opmux_jit.compilers.choice import toolchains

OPMUX_API_VERSION = 1


@hookimpl
def opmux_implementations() -> Iterator[Implementation]:
    """None: this package builds and launches kernels of others."""
    return iter(())


@hookimpl
def opmux_commands() -> list[tuple[str, Callable[..., None]]]:
    """``opmux cache``, ``opmux prebuild``, ``opmux warmup``."""
    return [("cache", cache), ("prebuild", prebuild), ("warmup", warmup)]


@hookimpl
def opmux_toolchains() -> list[Callable[[], Iterator[dict[str, str | None]]]]:
    """NVRTC, clang and Zig's clang; the core looks for nvcc and hipcc itself."""
    return [toolchains]
