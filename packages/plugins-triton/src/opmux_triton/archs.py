"""Which archs and dtypes the kernels are for, and the facts of an arch that launch parameters depend on.

Records and configs import this: it loads no Triton.
"""

from opmux.plugin import Arch

NVIDIA = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121")
AMD = (
    "gfx908", "gfx90a", "gfx942", "gfx950",
    "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1200", "gfx1201",
)  # fmt: skip
PORTABLE = (*NVIDIA, *AMD)
"""The archs that the portable kernels claim: NVIDIA from Ampere on, AMD's CDNA, RDNA3 and RDNA4.

A claim is what has been compiled: ``machine-code/compiled.toml`` says how much of it for each arch.
"""
HOPPER = ("sm_90",)
"""The arch of the Gluon implementations, which use its own instructions: all are named ``hopper``."""

HALVES = ("bfloat16", "float16")
FLOATS = (*HALVES, "float32")

CDNA = ("gfx90a", "gfx942", "gfx950")
"""AMD's data center GPUs that configs are made for."""

_UNITS = {"gfx90a": 104, "gfx942": 304, "gfx950": 256, "sm_80": 108, "sm_90": 132, "sm_100": 148}
_SHARED_KIB = {"sm_80": 163, "sm_87": 163, "sm_90": 227, "sm_100": 227, "sm_103": 227, "gfx950": 160}
"""CUDA C++ programming guide, compute capabilities; AMD Instinct CDNA4 ISA manual."""


def usual_units(arch: str) -> int:
    """Multiprocessors (NVIDIA) or compute units (AMD) of the usual product of an arch, where no device can be asked."""
    return _UNITS.get(arch, 64)


def shared_memory(arch: str) -> int:
    """Bytes of shared memory (LDS) that one program can have."""
    return _SHARED_KIB.get(arch, 64 if arch.startswith("gfx") else 99) * 1024


SATURATING = " saturating"
"""What kernels get behind the flavour of NVIDIA's archs: conversions saturate, and a maximum ignores NaN."""


def fp8_flavour(arch: Arch) -> str:
    """The 8-bit floats that an arch's instructions convert: ``ocp``, ``fnuz``, or none, which is the empty string."""
    if arch.vendor == "nvidia":
        return "ocp" if arch.number >= (8, 9) else ""
    return {"gfx942": "fnuz", "gfx950": "ocp", "gfx1200": "ocp", "gfx1201": "ocp"}.get(arch.name, "")


def wave_size(arch: str) -> int:
    """Lanes of a warp (NVIDIA), of a wavefront (AMD: 64 on CDNA, 32 on RDNA)."""
    return 64 if arch.startswith("gfx9") else 32


def lanes_of_rows(arch: Arch) -> int:
    """Lanes of a warp as configs of row-wise kernels count them; RDNA, which was not measured, counts like CDNA."""
    return 64 if arch.vendor == "amd" else 32
