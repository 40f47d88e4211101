"""The roofline of a call on a device model: the time below which its bytes and operations allow nothing."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from opmux.tuning.peaks import HEADROOM, PEAKS, peak_tflops

# Where nothing is known of a device. Only ratios between calls matter then, and where the two roofs meet.
_TFLOPS, _GBPS = 1.0, 50.0


class Figures(Protocol):
    """What a roofline reads of a device model or a machine."""

    @property
    def multiprocessors(self) -> int: ...

    @property
    def clock_mhz(self) -> float: ...

    @property
    def memory_gbps(self) -> float: ...


@dataclass(frozen=True)
class Roofline:
    """The two roofs of a device model for calls of some dtypes.

    Attributes:
        flops_per_us, bytes_per_us: the rates.
        multiprocessors: how many tiles run at a time; 0 where it is not known.
    """

    flops_per_us: float
    bytes_per_us: float
    multiprocessors: int

    def time_us(self, flops: float, moved_bytes: float, tiles: float = 0.0) -> float:
        """The least time of this work, microseconds.

        Args:
            flops: floating-point operations.
            moved_bytes: bytes read and written.
            tiles: equal parts that the work is launched in, one to a multiprocessor at a time; 0 where that is not
                known. The last wave takes as long as a full one, so operations are rounded up to whole waves.
        """
        if tiles > 0 and self.multiprocessors:
            waves = tiles / self.multiprocessors
            flops *= math.ceil(waves) / waves
        return max(flops / self.flops_per_us, moved_bytes / self.bytes_per_us)


def roofline(arch: str, dtypes: Iterable[torch.dtype], device: Figures, relative_to: Figures | None = None) -> Roofline:
    """The roofline of a device model.

    Args:
        arch: its arch, whose peak by the datasheet is the roof of the operations.
        dtypes: the call's dtypes.
        device: the device model.
        relative_to: another model of the arch, from whose rows times are scaled: the peak then counts for that one, and
            for ``device`` in proportion to multiprocessors and clock.
    """
    peak, known = PEAKS.get(arch), peak_tflops(arch, dtypes)
    tflops = _TFLOPS if known is None else known / HEADROOM
    if relative_to is not None:
        there, here = (d.multiprocessors * d.clock_mhz for d in (relative_to, device))
        tflops *= here / there if here and there else 1.0
    fallback = (relative_to.memory_gbps if relative_to else 0) or (peak.bandwidth * 1e3 if peak else _GBPS)
    return Roofline(tflops * 1e6, (device.memory_gbps or fallback) * 1e3, device.multiprocessors)


def tiles_of(
    declared: Sequence[tuple[str, str | int]], config: Mapping[str, Any], at: Mapping[str, Any]
) -> tuple[float, float]:
    """How many tiles a launch has, and by how much whole tiles exceed its work; (0, 1) where that is not known."""
    tiles, padding = (1.0 if declared else 0.0), 1.0
    for name, parameter in declared:
        block, size = config.get(parameter) if isinstance(parameter, str) else parameter, at.get(name)
        if not isinstance(block, int) or not isinstance(size, int) or block < 1:
            return 0.0, 1.0  # a config of an older version may lack the parameter
        parts = -(-size // block)
        tiles *= parts
        padding *= parts * block / size
    return tiles, padding
