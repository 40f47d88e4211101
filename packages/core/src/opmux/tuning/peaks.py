"""The peak rates of each arch by its vendor's datasheet: a record that claims more was measured wrongly.

The limits are generous: dense rates of the largest product of each arch at its highest clock, the narrowest type in
which that arch computes a dtype (TF32 for float32), and headroom above. An arch that is not listed is not checked.

Each row names its datasheet. Those of sm_100, sm_103, sm_89, sm_90 and gfx1201 were compared with published figures;
the others were entered from memory and have not been compared yet, which is one reason for the headroom.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from opmux.dtypes import name_of

HEADROOM = 1.1
"""Factor on every peak: boards are sold with raised clocks."""

CACHE_SPEEDUP = 8.0
"""Bytes that fit in the last-level cache may move this many times faster than memory; the largest ratio in a datasheet
(Radeon RX 7900 XTX, 3.5 TB/s against 0.96) is below 4."""


@dataclass(frozen=True)
class Peak:
    """The peaks of an arch.

    Attributes:
        f32: dense TFLOP/s of float32 products, in TF32 or split into bfloat16 where that is faster; of float64 ones
            too, since vendors emulate these on faster units.
        f16: of float16 and bfloat16.
        f8: of the 8-bit floats; f16's rate where the arch has no units for them.
        i8: of 8-bit integers.
        f4: of 4-bit floats.
        bandwidth: of the memory, TB/s.
        cache: size of the last-level cache, MB.
        source: the datasheet.
    """

    f32: float
    f16: float
    f8: float
    i8: float
    f4: float
    bandwidth: float
    cache: float
    source: str


PEAKS: dict[str, Peak] = {
    "sm_70": Peak(16.4, 130, 130, 130, 130, 1.134, 6, "NVIDIA V100S (V100 datasheet, 2020)"),
    "sm_75": Peak(16.3, 130.5, 130.5, 261, 522, 0.672, 6, "NVIDIA Quadro RTX 8000 datasheet; Turing whitepaper (2018)"),
    "sm_80": Peak(156, 312, 312, 624, 1248, 2.039, 40, "NVIDIA A100 80GB SXM datasheet (2021)"),
    "sm_86": Peak(80, 160, 160, 320, 640, 1.008, 6, "NVIDIA GA102 whitepaper (2021): RTX 3090 Ti, A40"),
    "sm_89": Peak(183, 366, 733, 733, 1466, 1.008, 96, "NVIDIA L40S datasheet (2023); Ada whitepaper: RTX 4090"),
    "sm_90": Peak(494.7, 989.4, 1978.9, 1978.9, 1978.9, 4.9, 60, "NVIDIA H200 and GH200 datasheets (2024)"),
    "sm_100": Peak(1250, 2500, 5000, 5000, 10000, 8.0, 126, "NVIDIA GB200 NVL72 datasheet (2024), halved: dense"),
    "sm_103": Peak(1250, 2500, 5000, 5000, 15000, 8.0, 126, "NVIDIA GB300 NVL72 datasheet (2025)"),
    "sm_120": Peak(250, 500, 1000, 1000, 2000, 1.792, 128, "NVIDIA RTX PRO 6000 Blackwell datasheet (2025), dense"),
    "gfx908": Peak(46.1, 184.6, 184.6, 184.6, 184.6, 1.229, 8, "AMD Instinct MI100 datasheet (2020)"),
    "gfx90a": Peak(95.7, 383, 383, 383, 383, 3.277, 16, "AMD Instinct MI250X datasheet (2021), both dies"),
    "gfx942": Peak(653.7, 1307.4, 2614.9, 2614.9, 2614.9, 6.0, 256, "AMD Instinct MI300X, MI325X datasheets (2024)"),
    # No TF32 units: float32 as three bfloat16 products is the fastest way.
    "gfx950": Peak(838.9, 2516.6, 5033.2, 5033.2, 10066.3, 8.0, 256, "AMD Instinct MI355X datasheet (2025)"),
    "gfx1100": Peak(61.4, 122.9, 122.9, 122.9, 245.8, 0.96, 96, "AMD Radeon RX 7900 XTX specification (2022)"),
    "gfx1201": Peak(97.3, 194.6, 389.3, 389.3, 778.6, 0.645, 64, "AMD Radeon RX 9070 XT specification (2025), dense"),
}


def _column(dtype: torch.dtype) -> str | None:
    name = name_of(dtype)
    if name in ("float32", "float64"):
        return "f32"
    if name in ("bfloat16", "float16"):
        return "f16"
    if name.startswith(("float8_e4m3", "float8_e5m2")):
        return "f8"
    if name.startswith("float4"):
        return "f4"
    return "i8" if name in ("int8", "uint8") else None


def peak_tflops(arch: str, dtypes: Iterable[torch.dtype]) -> float | None:
    """The highest rate at which the arch could compute with one of these dtypes, TFLOP/s; None where unknown."""
    peak = PEAKS.get(arch)
    columns = {column for dtype in dtypes if (column := _column(dtype)) is not None}
    return max(getattr(peak, column) for column in columns) * HEADROOM if peak is not None and columns else None


def least_memory_us(arch: str, size: float) -> float | None:
    """The time below which the arch cannot move ``size`` bytes, in microseconds; None where it is unknown."""
    peak = PEAKS.get(arch)
    if peak is None:
        return None
    bytes_per_us = peak.bandwidth * HEADROOM * 1e6
    cached = min(size, peak.cache * 1e6)
    return (size - cached) / bytes_per_us + cached / (bytes_per_us * CACHE_SPEEDUP)
