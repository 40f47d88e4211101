"""The tiles of quantisation: those of blocks of rows, and with one scale for blocks of 128 x 128 or for a matrix."""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.gates.configs import GatedConfig
from opmux_cutile.quantization.configs import groups_config, groups_space


def quantize_config(arch: Arch, features: Mapping[str, Any]) -> GatedConfig:
    """What blocks of rows get; else tiles of 4096 elements, 32 for each of 128 threads."""
    return groups_config(arch, features) if features["block"][0] == 1 else GatedConfig(32, 128)


def quantize_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[GatedConfig]:
    """Those of blocks of rows; else tiles of 1024 to 8192 elements, as wide as blocks of 128 x 128 are."""
    if features["block"][0] == 1:
        yield from groups_space(arch, features)
        return
    for columns in (128,) if features["block"][0] == 128 else (128, 256, 512):
        for rows in (8, 16, 32, 64):
            if 1024 <= rows * columns <= 8192:
                for occupancy in (0, 4, 8):
                    yield GatedConfig(rows, columns, occupancy)
