"""The configs of quantisation that are worth measuring. Loads no Triton."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from opmux.plugin import Arch
from opmux_triton.quantization.configs import (
    GROUPS,
    FusedConfig,
    QuantizeConfig,
    gate_quantize_config,
    norm_quantize_config,
    quantize_config,
)
from opmux_triton.variations import around, variations


def quantize_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[QuantizeConfig]:
    """Wider and narrower tiles, by fewer and by more warps; square blocks have one tile."""
    base = quantize_config(arch, features)
    warps = around(base.num_warps, 1, 16)
    if features["block"][0] > 1:
        yield from variations(base, num_warps=warps)
        return
    parts = [base.parts] if base.parts == 1 else around(base.parts, 2, 1024)
    blocks, rows = around(base.block, 128, 32768), around(base.rows, 1, 16)
    yield from variations(base, block=blocks, rows=rows, parts=parts, num_warps=warps)


def known_scale_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[QuantizeConfig]:
    """Wider and narrower tiles, by fewer and by more warps."""
    yield from quantize_space(arch, {**features, "block": (1, GROUPS[-1])})


def norm_quantize_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[FusedConfig]:
    """Rows held whole, by fewer and by more warps, one or several to a program."""
    base = norm_quantize_config(arch, features)  # its block holds a row or is the widest that a program can hold
    yield from variations(base, rows=around(base.rows, 1, 16), num_warps=around(base.num_warps, 1, 16))


def rms_norm_quantize_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[FusedConfig]:
    """The same, and on NVIDIA programs that go through all rows and load some of them ahead."""
    base = norm_quantize_config(arch, features)
    alone = replace(base, programs=0)
    yield from variations(alone, rows=around(base.rows, 1, 16), num_warps=around(base.num_warps, 1, 16))
    if arch.vendor == "nvidia" and base.quantize is None:
        warps = sorted({*around(base.num_warps, 1, 32), 8, 16})
        yield from variations(base, num_warps=warps, programs=(1, 2, 3, 4), stages=(2, 3, 4))


def gate_quantize_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[FusedConfig]:
    """Wider and narrower tiles, by fewer and by more warps; rows with one scale are held whole."""
    base = gate_quantize_config(arch, features)
    whole = features["block"] == (1, -1) and base.quantize is None
    blocks, rows = [base.block] if whole else around(base.block, 128, 8192), around(base.rows, 1, 16)
    yield from variations(base, block=blocks, rows=rows, num_warps=around(base.num_warps, 1, 16))
