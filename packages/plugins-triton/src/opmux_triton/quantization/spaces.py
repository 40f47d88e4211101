"""The configs of quantisation that are worth measuring. Loads no Triton."""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_triton.quantization.configs import QuantizeConfig, quantize_config
from opmux_triton.variations import around, variations


def quantize_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[QuantizeConfig]:
    """Wider and narrower tiles, by fewer and by more warps; square blocks have one tile."""
    base = quantize_config(arch, features)
    warps = around(base.num_warps, 1, 16)
    if features["block"][0] > 1:
        yield from variations(base, num_warps=warps)
        return
    parts = [base.parts] if base.parts == 1 else [256, 512, 1024]
    blocks, rows = around(base.block, 128, 32768), around(base.rows, 1, 16)
    yield from variations(base, block=blocks, rows=rows, parts=parts, num_warps=warps)
