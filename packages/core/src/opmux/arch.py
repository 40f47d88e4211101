"""Archs: what code is compiled for, found per device, matched by pattern.

Names are the toolchains' own: ``gfx942`` (LLVM's AMDGPU target, without feature suffixes), ``sm_90`` (CUDA's real
architecture), ``cpu``. Nothing here touches a device until a tensor on it is met.
"""

import functools
import os
import re
from dataclasses import dataclass

import torch

from opmux.errors import InvalidArgument

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
    """Read an arch's name.

    Raises:
        InvalidArgument: where it is none.
    """
    if name == "cpu":
        return CPU
    bare = name.split(":", 1)[0]
    if match := _SM.match(bare):
        return Arch(bare, "nvidia", (int(match[1]), int(match[2])))
    if match := _GFX.match(bare):
        return Arch(bare, "amd", (int(match[1]), int(match[2], 16), int(match[3], 16)))
    raise InvalidArgument(
        f"arch: `{name}` expected `cpu`, `sm_<number>` or `gfx<number>`, got {name!r}; "
        "use the toolchain's name, as sm_90 or gfx942"
    )


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that could match nothing.

    Raises:
        InvalidArgument: where it is neither an arch, an arch and ``+``, nor a family and ``*``.
    """
    if pattern.endswith("*") and re.fullmatch(r"|sm_\d*|gfx[0-9a-f]*|c|cp", pattern[:-1]):
        return
    parse_arch(pattern.removesuffix("+"))


@functools.cache
def device_arch(kind: str, index: int) -> Arch:
    """The arch of a device, asked of its driver once.

    Args:
        kind: torch's device type: ``cpu``, ``cuda`` (ROCm's too) or ``meta``.
        index: the device's number.

    Raises:
        InvalidArgument: for a device type that opmux does not know.
    """
    if kind in ("cpu", "meta"):
        return CPU
    if kind != "cuda":
        raise InvalidArgument(
            f"arch: device `{kind}` expected cpu or cuda (ROCm included), got {kind}; move the tensors"
        )
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
    """The arch that explain reasons for when no tensor says: ``OPMUX_ARCH``, else the first GPU, else the CPU.

    Raises:
        InvalidArgument: where ``OPMUX_ARCH`` names no arch.
    """
    named = os.environ.get("OPMUX_ARCH")
    if named:
        return parse_arch(named)
    found = present_archs()
    return found[1][1] if len(found) > 1 else CPU


def fp8_dtype(device: torch.device | str | Arch) -> torch.dtype:
    """The e4m3 flavour that a device's matrix units compute: fnuz on gfx940 to gfx942, OCP's fn elsewhere.

    Args:
        device: a torch device or its name, an arch or its name.

    Source: AMD Instinct MI300 ISA (fnuz formats); OCP 8-bit Floating Point Specification 1.0.
    """
    if isinstance(device, str):
        device = parse_arch(device) if device.startswith(("sm_", "gfx")) else torch.device(device)
    arch = device if isinstance(device, Arch) else arch_of(device)
    return torch.float8_e4m3fnuz if arch.name.startswith("gfx94") else torch.float8_e4m3fn
