"""Stored 8-bit codes: what kernels require of them, a flavour that the arch has instructions for; their scales.

Loads no Triton.
"""

from dataclasses import dataclass

from torch import Tensor

from opmux.dtypes import name_of
from opmux.plugin import Call, Constraint, Dtype
from opmux_triton.archs import fp8_flavour

_OCP = ("float8_e4m3fn", "float8_e5m2")
_FNUZ = ("float8_e4m3fnuz", "float8_e5m2fnuz")
CODES = (*_OCP, "int8", *_FNUZ)


@dataclass(frozen=True)
class FlavourOfArch(Constraint):
    """Stored 8-bit floats are of the flavour that the arch's instructions convert, where they convert one.

    The other one could only be read bit by bit, and whoever stored it meant another arch. Archs without such
    instructions take both.
    """

    argument: str

    def check(self, call: Call) -> str | None:
        tensor, flavour = call.tensors[self.argument], fp8_flavour(call.arch)
        if tensor is None or not flavour:
            return None
        name = name_of(tensor.dtype)
        taken = _FNUZ if flavour == "fnuz" else _OCP
        if name not in (*_OCP, *_FNUZ) or name in taken:
            return None
        wanted = taken[name.startswith("float8_e5m2")]
        return f"{self.argument} is {name}, {call.arch} has {wanted}: convert it by opmux.convert_fp8"


def codes_of_arch(argument: str) -> tuple[Constraint, ...]:
    """8-bit codes in a flavour of the arch."""
    return Dtype(argument, *CODES), FlavourOfArch(argument)


def scale_stride(scale: Tensor | None) -> int | None:
    """How far apart the scales of two heads lie: 0 where one is for all heads; None without a scale."""
    return None if scale is None else scale.stride(0) if scale.shape[0] > 1 else 0
