"""Launch parameters of the merge of partial results, per arch. Loads no Triton."""

from collections.abc import Mapping
from typing import Any

from opmux.arch import Arch
from opmux_triton.arithmetic import padded


def merge_config(arch: Arch, features: Mapping[str, Any]) -> dict[str, Any]:
    """Eight queries of a head at least, so that a sector of their lse is read whole; about 16 elements a thread."""
    dim = padded(features["value_dim"])
    rows = max(8, min(64, 4096 // dim))
    warps = max(1, min(8, rows * dim // (1024 if arch.vendor == "amd" else 512)))
    return {"rows": rows, "num_warps": warps}
