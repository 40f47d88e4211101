"""The tiles of attention over a paged cache where both operands of the matrix units come from registers.

With these, the compiler's code for `sm_80` and `sm_120` spills no registers; with 64 rows and 64 keys in a step that
for `sm_80` does. Where a call has fewer rows than a tile, `kernel_of_keys` gives a step 64 keys.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.paged.configs import PagedConfig

CHOSEN = PagedConfig(64, 32, 4)


def gathered_config(arch: Arch, features: Mapping[str, Any]) -> PagedConfig:
    """64 rows and a group of warps; 32 keys in a step, 64 where rows are fewer, as in decoding."""
    return CHOSEN


def gathered_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[PagedConfig]:
    """The choice, fewer rows, and steps of other sizes."""
    yield CHOSEN
    yield PagedConfig(16, 32, 4)
    yield PagedConfig(64, 16, 4)
    yield PagedConfig(64, 64, 4)
