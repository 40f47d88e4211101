"""The environment variables that a compiler's process sees."""

import os

NOT_INHERITED = frozenset((
    "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "HIPCC_COMPILE_FLAGS_APPEND", "CCC_OVERRIDE_OPTIONS", "CPATH",
    "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
))  # fmt: skip
"""Variables that change what a compiler makes of a source. The cache key lacks them, so compilers do not see them."""


def environment() -> dict[str, str]:
    """The variables that a compiler sees."""
    return {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
