"""Archs: what code is compiled for, found per device, matched by pattern.

Names are the toolchains' own: ``gfx942`` (LLVM's AMDGPU target, without feature suffixes), ``sm_90`` (CUDA's real
architecture, without the suffixes ``a`` and ``f``), ``cpu``. Nothing here touches a device until it is asked about one.

A pattern says what an implementation was compiled for: one arch (``gfx942``), an arch and every later one of its
vendor (``sm_80+``), a family by the beginning of its name (``gfx9*``), or everything (``*``). Each must match an arch
of `KNOWN`: a claim for an arch that no compiler knows is a mistake.
"""

import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from opmux.errors import InvalidArgument
from opmux.near import did_you_mean

KNOWN: dict[str, tuple[str, ...]] = {
    "cpu": ("cpu",),
    "nvidia": (
        "sm_50", "sm_52", "sm_53", "sm_60", "sm_61", "sm_62", "sm_70", "sm_72", "sm_75", "sm_80", "sm_86", "sm_87",
        "sm_88", "sm_89", "sm_90", "sm_100", "sm_101", "sm_103", "sm_110", "sm_120", "sm_121",
    ),
    "amd": (
        "gfx900", "gfx902", "gfx904", "gfx906", "gfx908", "gfx909", "gfx90a", "gfx90c", "gfx940", "gfx941", "gfx942",
        "gfx950", "gfx1010", "gfx1011", "gfx1012", "gfx1013", "gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034",
        "gfx1035", "gfx1036", "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153",
        "gfx1200", "gfx1201", "gfx1250", "gfx1251",
    ),
}  # fmt: skip
"""Vendor -> the archs that its compilers know. A device of a newer arch still works; a claim, or a question to explain,
has to name one of these.

Source: ``nvcc --list-gpu-arch`` of CUDA 12.8 and 13.0; LLVM's "User Guide for AMDGPU Backend", table of processors.
"""

_SM = re.compile(r"^sm_(\d+)(\d)([a-z]?)$")
_GFX = re.compile(r"^gfx(\d+)([0-9a-f])([0-9a-f])$")


@dataclass(frozen=True)
class Arch:
    """A compilation target.

    Attributes:
        name: ``gfx942``, ``sm_90``, ``cpu``.
        vendor: ``amd``, ``nvidia`` or ``cpu``.
        number: comparable within a vendor: (9, 0) for sm_90, (9, 4, 2) for gfx942.
    """

    name: str
    vendor: str
    number: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def is_gpu(self) -> bool:
        return self.vendor != "cpu"

    def matches(self, pattern: str) -> bool:
        """Whether a pattern takes this arch: exact, ``sm_80+`` (at least, same vendor), ``gfx9*`` (family), ``*``."""
        if pattern.endswith("*"):
            return self.name.startswith(pattern[:-1])
        if pattern.endswith("+"):
            least = parse_arch(pattern[:-1])
            return least.vendor == self.vendor and self.number >= least.number
        return pattern == self.name


CPU = Arch("cpu", "cpu")


@functools.cache
def parse_arch(name: str) -> Arch:
    """Parse the name of an arch.

    Raises:
        InvalidArgument: if it is not one.
    """
    if name == "cpu":
        return CPU
    if not isinstance(name, str):
        raise InvalidArgument(
            f"arch: `arch` expected the name of an arch (str), got {name!r}; "
            "use the toolchain's name, as sm_90 or gfx942"
        )
    bare = name.split(":", 1)[0]
    if match := _SM.match(bare):
        return Arch(bare, "nvidia", (int(match[1]), int(match[2])))
    if match := _GFX.match(bare):
        return Arch(bare, "amd", (int(match[1]), int(match[2], 16), int(match[3], 16)))
    raise InvalidArgument(
        f"arch: `{name}` expected `cpu`, `sm_<number>` or `gfx<number>`, got {name!r}; "
        "use the toolchain's name, as sm_90 or gfx942"
    )


def known_arch(name: str) -> Arch:
    """Parse the name of an arch that compilers know.

    Raises:
        InvalidArgument: if it is not the name of an arch, has a feature suffix (``sm_90a``), or is not in `KNOWN`.
    """
    arch = parse_arch(name)
    if arch.name in KNOWN[arch.vendor]:
        return arch
    bare = arch.name.rstrip("abcdefghijklmnopqrstuvwxyz") if arch.vendor == "nvidia" else arch.name
    if bare != arch.name and bare in KNOWN[arch.vendor]:
        raise InvalidArgument(
            f"arch: `{name}` expected the arch of a device, got a compiler's feature set of {bare}; write {bare}"
        )
    raise InvalidArgument(
        f"arch: `{name}` expected an arch that compilers know, got {name!r}; "
        f"{did_you_mean(name, KNOWN[arch.vendor])}known of {arch.vendor}: {', '.join(KNOWN[arch.vendor])}"
    )


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that matches no known arch.

    Raises:
        InvalidArgument: if it is neither a known arch, nor one followed by ``+``, nor a prefix of one followed by
            ``*``.
    """
    if not isinstance(pattern, str):
        raise InvalidArgument(
            f"arch: `archs` expected patterns (str), got {pattern!r}; write them as 'sm_90' or 'gfx9*'"
        )
    if not pattern.endswith("*"):
        known_arch(pattern.removesuffix("+"))
        return
    every = [name for names in KNOWN.values() for name in names]
    if not any(name.startswith(pattern[:-1]) for name in every):
        raise InvalidArgument(
            f"arch: `{pattern}` expected the beginning of an arch's name and `*`, as gfx9*, got one that no known arch "
            f"begins with; {did_you_mean(pattern[:-1], every)}see opmux.arch.KNOWN"
        )


_played: list[Arch] = []
"""The archs that the CPU plays, the last one now; see `cpu_plays`."""


@contextmanager
def cpu_plays(arch: str) -> Iterator[None]:
    """Let the CPU pass for an arch, for tests of its kernels on an emulator; for one process, not thread-safe.

    Within it, calls with CPU tensors are planned for that arch. What a target then launches has to be caught and run by
    whoever opened the context. Calls that were planned before keep their plans.

    Args:
        arch: the arch's name.

    Raises:
        InvalidArgument: if it is no known arch.
    """
    _played.append(known_arch(arch))
    try:
        yield
    finally:
        _played.pop()


def device_arch(kind: str, index: int) -> Arch:
    """The arch of a device; its driver is asked only once.

    Args:
        kind: torch's device type: ``cpu``, ``cuda`` (ROCm's too) or ``meta``.
        index: the device's number.

    Raises:
        InvalidArgument: for a device type that opmux does not know.
    """
    if kind in ("cpu", "meta"):
        return _played[-1] if _played else CPU
    return _arch_of_gpu(kind, index)


@functools.cache
def _arch_of_gpu(kind: str, index: int) -> Arch:
    if kind != "cuda":
        raise InvalidArgument(f"arch: `device` expected cpu or cuda (ROCm included), got {kind}; move the tensors")
    if torch.version.hip:
        return parse_arch(torch.cuda.get_device_properties(index).gcnArchName)
    major, minor = torch.cuda.get_device_capability(index)
    return parse_arch(f"sm_{major}{minor}")


def arch_of(device: torch.device) -> Arch:
    """The arch of a tensor's device."""
    index = device.index
    if index is None:
        index = torch.cuda.current_device() if device.type == "cuda" else 0
    return device_arch(device.type, index)


def present_archs() -> list[tuple[str, Arch, str]]:
    """The devices of this machine: (torch's name, arch, product name). Asks the driver."""
    devices = [("cpu", CPU, "CPU")]
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        devices.append((f"cuda:{index}", device_arch("cuda", index), torch.cuda.get_device_name(index)))
    return devices


def assumed_arch() -> Arch:
    """The arch that explain assumes when no tensor decides it: ``OPMUX_ARCH``, else the first GPU, else the CPU.

    Raises:
        InvalidArgument: if ``OPMUX_ARCH`` names no known arch.
    """
    named = os.environ.get("OPMUX_ARCH")
    if named:
        return known_arch(named)
    found = present_archs()
    return found[1][1] if len(found) > 1 else CPU


def fp8_dtype(device: torch.device | str | Arch) -> torch.dtype:
    """The e4m3 variant that a device's matrix units use: fnuz on gfx940 to gfx942, OCP's fn elsewhere.

    Args:
        device: a torch device or its name, an arch or its name.

    Raises:
        InvalidArgument: if it names neither an arch nor a device of torch's.

    Source: AMD Instinct MI300 ISA (fnuz formats); OCP 8-bit Floating Point Specification 1.0.
    """
    if isinstance(device, str):
        try:
            device = parse_arch(device) if device.startswith(("sm_", "gfx")) else torch.device(device)
        except RuntimeError:  # torch knows no such device
            raise InvalidArgument(
                f"fp8_dtype: `device` expected a device or an arch, as 'cuda' or 'gfx942', got {device!r}; "
                "see `opmux doctor`"
            ) from None
    arch = device if isinstance(device, Arch) else arch_of(device)
    return torch.float8_e4m3fnuz if arch.name.startswith("gfx94") else torch.float8_e4m3fn
