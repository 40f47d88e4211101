"""Run-time compilation for backends: compilers, a verified cache, read-only bundles and a native launcher."""

from opmux_jit.__about__ import __version__ as __version__
from opmux_jit.ahead.prebuild import prebuild
from opmux_jit.ahead.warmup import warmup
from opmux_jit.cache.bundles import Bundle
from opmux_jit.cache.bundles import layers as named_bundles
from opmux_jit.cache.entry import Damaged, Entry
from opmux_jit.cache.layers import cache_root, compiling_forbidden, kept, kept_without_headers, machine_code
from opmux_jit.cache.shipped import add as add_shipped
from opmux_jit.compilers import Compiler, Source, choose, installed
from opmux_jit.errors import (
    CacheRefused,
    CompileFailed,
    CompilerMissing,
    KernelMissing,
    LaunchFailed,
    LoadFailed,
)
from opmux_jit.launching import Kernel, load, tensor_map

__all__ = [
    "Bundle",
    "CacheRefused",
    "CompileFailed",
    "Compiler",
    "CompilerMissing",
    "Damaged",
    "Entry",
    "Kernel",
    "KernelMissing",
    "LaunchFailed",
    "LoadFailed",
    "Source",
    "add_shipped",
    "cache_root",
    "choose",
    "compiling_forbidden",
    "installed",
    "kept",
    "kept_without_headers",
    "load",
    "machine_code",
    "named_bundles",
    "prebuild",
    "tensor_map",
    "warmup",
]
