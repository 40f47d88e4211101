"""The device model of a tensor's device, with the few figures that a time is scaled by."""

import functools
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class DeviceModel:
    """A device model.

    Attributes:
        name: as the driver names it: ``NVIDIA H200``; of a CPU, its model name.
        multiprocessors: how many it has (SMs, CUs; cores of a CPU).
        clock_mhz: their highest clock, MHz; 0 where it is not known.
        memory_gbps: the bandwidth of the memory by its clock and bus width, GB/s; 0 where it is not known.
    """

    name: str
    multiprocessors: int = 0
    clock_mhz: float = 0.0
    memory_gbps: float = 0.0


def device_of(device: torch.device) -> DeviceModel | None:
    """The model of a device; None for the meta device. The driver is asked once for each device."""
    if device.type == "meta":
        return None
    index = device.index
    if index is None:
        index = torch.cuda.current_device() if device.type == "cuda" else 0
    return _model(device.type, index)


@functools.cache
def _model(kind: str, index: int) -> DeviceModel:
    if kind != "cuda":
        return DeviceModel(_processor_name(), os.cpu_count() or 0)
    found = torch.cuda.get_device_properties(index)
    # Older builds of torch do not state the clocks; then times of another device are not scaled.
    clock_khz, memory_khz, bus_bits = (
        _number(found, name) for name in ("clock_rate", "memory_clock_rate", "memory_bus_width")
    )
    # Two transfers per clock: double data rate.
    memory_gbps = 2e3 * memory_khz * bus_bits / 8 / 1e9
    return DeviceModel(found.name, found.multi_processor_count, clock_khz / 1e3, round(memory_gbps, 1))


def _number(properties: Any, name: str) -> float:
    return float(getattr(properties, name, 0) or 0)


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # no Linux
        pass
    return platform.processor() or "CPU"
