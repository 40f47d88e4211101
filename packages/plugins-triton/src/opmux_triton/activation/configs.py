"""Launch parameters of the gated activations, per arch. Functions of the features alone; they import no Triton."""

from collections.abc import Mapping
from typing import Any

from opmux.arch import Arch
from opmux_triton.arithmetic import next_power_of_two


def gated_config(arch: Arch, features: Mapping[str, Any]) -> dict[str, Any]:
    """Tiles of 16-byte accesses: smaller ones where there are few rows, so that every multiprocessor has some."""
    return _tile(arch, features, elements=2048, each=16)


def gated_backward_config(arch: Arch, features: Mapping[str, Any]) -> dict[str, Any]:
    """The same with half the columns: there is more to hold."""
    return _tile(arch, features, elements=1024, each=8)


def _tile(arch: Arch, features: Mapping[str, Any], elements: int, each: int) -> dict[str, Any]:
    lanes = 64 if arch.vendor == "amd" else 32
    n = max(1, features["n"])
    few = features["bucket(tokens)"] <= 7
    most = 1024 if few else elements
    block = min(most, max(8 * lanes, next_power_of_two(n)))
    if n > block and n % block and n % (block // 2) == 0:  # a smaller tile leaves no part of one empty
        block //= 2
    rows = 1 if few else elements // block
    warps = max(1, block * rows // (lanes * (8 if few else each)))
    return {"BLOCK": block, "ROWS": rows, "num_warps": warps}
