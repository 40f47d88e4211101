"""A measured row, the machine it was measured on, and a config that failed there, as data."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch


@dataclass(frozen=True)
class Machine:
    """What rows were measured on.

    Attributes:
        arch: the arch, exact: ``sm_90``, ``gfx942``, ``cpu``.
        device: the device model, as the driver names it: ``NVIDIA H200``.
        multiprocessors: how many the device has (SMs, CUs; cores of a CPU).
        clock_mhz: the highest clock of the multiprocessors, MHz; 0 where it is not known.
        memory_gbps: the bandwidth of the memory by its clock and bus width, GB/s; 0 where it is not known.
        driver: version of the driver; empty where there is none.
        versions: package -> version: torch, triton, the plugins that were measured.
        clocks: what the clocks were while measuring, MHz: ``{"sm": 1755, "memory": 3201}``; empty where not known.
        date: ISO 8601, when the measurement began.
    """

    arch: str
    device: str
    multiprocessors: int
    clock_mhz: float = 0.0
    memory_gbps: float = 0.0
    driver: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)
    date: str = ""

    @cached_property
    def label(self) -> str:
        """A short name for it in files, made from its values, so that labels of different files do not clash."""
        text = json.dumps(asdict(self), sort_keys=True)
        words = re.findall(r"[a-z0-9]+", self.device.lower())
        return f"{'-'.join(words[-2:])[:20]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


@dataclass(frozen=True)
class MeasuredRow:
    """One implementation's best config at one point.

    Attributes:
        op: the op's name.
        dtypes: dtype of every tensor argument that was given, by name.
        options: options that were not their defaults, and all that have none.
        dims: every dim of the signature, a star dim by its product.
        implementation: full name: ``triton`` or ``triton:rows``.
        machine: what it was measured on.
        time_us: median time of one call in microseconds: all device work in it, cold cache.
        spread: half the distance between the quartiles of the times, as a fraction of the median.
        error: the worst error against the reference, as a fraction of the conformance kit's bound: at most 1. None
            where the results were held to those of the other implementations in ``compared`` instead.
        compared: full names of the implementations that were measured side by side at this point, its own included.
        config: the config the target ran with; None where it takes none.
        flops: floating-point operations, where index data decides them; None means the op's own expression.
        moved_bytes: bytes read and written, where index data decides them; None means the op's own count.
        file: where it was read, not part of its value.
        line: the line there.
    """

    op: str
    dtypes: Mapping[str, torch.dtype]
    options: Mapping[str, Any]
    dims: Mapping[str, int]
    implementation: str
    machine: Machine
    time_us: float
    spread: float
    error: float | None
    compared: tuple[str, ...]
    config: Mapping[str, Any] | None = None
    flops: float | None = None
    moved_bytes: float | None = None
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)

    @property
    def where(self) -> str:
        """``h200.measured:12``."""
        return f"{os.path.basename(self.file)}:{self.line}"

    @property
    def identity(self) -> tuple[Any, ...]:
        """What was measured, whatever came out of it: one row of a layer has it."""
        return (
            self.op,
            self.implementation,
            self.machine.device,
            tuple(sorted(self.dtypes.items())),
            tuple(sorted(self.options.items())),
            tuple(sorted(self.dims.items())),
        )


@dataclass(frozen=True)
class FailedConfig:
    """A config that was wrong, failed or hung at a point: it is never taken there, and need not be measured again.

    Attributes:
        op, dtypes, options, dims, implementation, machine, config, file, line: as in `MeasuredRow`.
        reason: one line: ``wrong: error 3.1``, ``faulted: an illegal memory access``, ``hung: 30 s``.
    """

    op: str
    dtypes: Mapping[str, torch.dtype]
    options: Mapping[str, Any]
    dims: Mapping[str, int]
    implementation: str
    machine: Machine
    config: Mapping[str, Any] | None
    reason: str
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)
