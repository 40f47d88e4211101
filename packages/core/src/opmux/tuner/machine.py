"""The machine that measures: its device, driver, clocks, and the versions of what runs on it."""

import importlib.metadata
import json
import platform
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch

from opmux.arch import arch_of
from opmux.plugins import loading
from opmux.tuning.measured import Machine
from opmux.tuning.measured.device import device_of

_ANSWER_S = 10.0
"""Seconds that the vendor's tool may take."""

_DOUBLED = 2
"""Transfers of a memory clock: all memories of GPUs are double data rate."""


def identity(machine: Machine) -> str:
    """What must be equal for times to be comparable, as one text: the device, its driver, and what runs on it."""
    versions = {name: version for name, version in sorted(machine.versions.items()) if name != "opmux"}
    return json.dumps([machine.arch, machine.device, machine.multiprocessors, machine.driver, versions])


def machine_of(device: torch.device) -> Machine:
    """The machine as it is now; loads the plugins, whose versions belong to it.

    Args:
        device: the device that measures.
    """
    model = device_of(device)
    assert model is not None  # only the meta device has none
    if device.type != "cuda":
        return Machine(
            arch=arch_of(device).name,
            device=model.name,
            multiprocessors=model.multiprocessors,
            driver=platform.release(),
            versions=versions(),
            date=_today(),
        )
    driver, clocks, highest = _driver_and_clocks(device)
    bus_bytes = getattr(torch.cuda.get_device_properties(device), "memory_bus_width", 0) / 8
    return Machine(
        arch=arch_of(device).name,
        device=model.name,
        multiprocessors=model.multiprocessors,
        clock_mhz=model.clock_mhz or highest.get("sm", 0.0),
        memory_gbps=model.memory_gbps or round(_DOUBLED * highest.get("memory", 0.0) * bus_bytes / 1e3, 1),
        driver=driver,
        versions=versions(),
        clocks=clocks,
        date=_today(),
    )


def versions() -> dict[str, str]:
    """Versions of opmux, torch, the plugins with implementations, and of the packages that these plugins require."""
    found = {"torch": str(torch.__version__)}
    for plugin in (p for p in loading.loaded_plugins() if p.implementations):
        found[plugin.distribution] = plugin.version
        for name in _required(plugin.distribution):
            try:
                found.setdefault(name, importlib.metadata.version(name))
            except importlib.metadata.PackageNotFoundError:
                continue
    return dict(sorted(found.items()))


def _required(distribution: str) -> list[str]:
    try:
        required = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [re.split(r"[\s;<>=!~\[(]", line, maxsplit=1)[0] for line in required if "extra ==" not in line]


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _driver_and_clocks(device: torch.device) -> tuple[str, dict[str, float], dict[str, float]]:
    """Driver, current clocks and highest clocks (MHz) of a GPU."""
    if torch.version.hip is None:
        return _asked(str(torch.cuda.get_device_properties(device).uuid))
    version = Path("/sys/module/amdgpu/version")
    return version.read_text(encoding="utf-8").strip() if version.is_file() else "", {}, {}


def _asked(uuid: str) -> tuple[str, dict[str, float], dict[str, float]]:
    """Driver, current clocks and highest clocks (MHz) of an NVIDIA GPU, from its driver's tool; empty without it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "", {}, {}
    wanted = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem"
    command = [tool, f"--id=GPU-{uuid}", f"--query-gpu={wanted}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=True).stdout
        driver, *numbers = (word.strip() for word in answer.split(","))
        sm, most_sm, memory, most_memory = map(float, numbers)
    except (OSError, subprocess.SubprocessError, ValueError):
        return "", {}, {}
    return driver, {"sm": sm, "memory": memory}, {"sm": most_sm, "memory": most_memory}
