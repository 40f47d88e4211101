"""The records of products of 8-bit codes.

What cuBLASLt and CUTLASS take is what torch 2.11 checks and documents; on a CPU it was tried with torch 2.13.
"""

from dataclasses import dataclass

import torch

from opmux.plugin import (
    Absent,
    Aligned,
    AnyOf,
    AtLeast,
    AtMost,
    Call,
    Constraint,
    Contiguous,
    Dtype,
    Implementation,
    MultipleOf,
    OneOf,
    Priority,
    ScaleBlock,
    UnitStride,
)
from opmux_vendor.archs import ON_CPU


@dataclass(frozen=True)
class CudaAtLeast(Constraint):
    """Torch was built with CUDA of a version or a later one.

    Attributes:
        version: major and minor number.
    """

    version: tuple[int, int]

    def check(self, call: Call) -> str | None:
        """The reason why it does not hold, or None."""
        found = torch.version.cuda
        if found is None:
            return "torch is built without CUDA"
        numbers = tuple(int(part) for part in found.split(".")[:2])
        wanted = ".".join(map(str, self.version))
        return None if numbers >= self.version else f"torch is built with CUDA {found}, needs {wanted}"


_CPU_FLOATS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_FLOATS = ("bfloat16", "float16", "float32")


def _on_gpu(*constraints: Constraint) -> tuple[Constraint, ...]:
    """Constraints that a CPU does without."""
    return tuple(AnyOf(ON_CPU, constraint) for constraint in constraints)


_CODES: tuple[Constraint, ...] = (
    Absent("bias"),
    UnitStride("x", "w"),
    *_on_gpu(MultipleOf("k", 16), MultipleOf("n", 16), Aligned("x", 16), Aligned("w", 16)),
)


def _scaled(name: str, target: str, archs: tuple[str, ...], *when: Constraint) -> Implementation:
    return Implementation(
        op="scaled_linear",
        name=name,
        target=f"opmux_vendor.scaled:{target}",
        archs=archs,
        priority=Priority.VENDOR,
        when=when,
        capturable=True,
        deterministic=True,
    )


AFTERWARDS = Priority.PORTABLE - 5
"""The scales are applied by kernels of their own: behind one that is made for the op, before the reference."""

RECORDS = (
    _scaled(
        "scaled_mm",
        "scaled_linear",
        ("cpu", "sm_90"),
        Dtype("x", *_CPU_FLOATS),
        Dtype("out_dtype", *_FLOATS),
        *_on_gpu(Dtype("x", "float8_e4m3fn"), Dtype("out_dtype", "bfloat16")),
        ScaleBlock("x", (1, -1)),
        ScaleBlock("w", (1, -1)),
        *_CODES,
    ),
    _scaled(
        "scaled_mm_tensors",
        "scaled_linear",
        ("cpu", "sm_90"),
        Dtype("x", *_CPU_FLOATS),
        Dtype("out_dtype", *_FLOATS),
        *_on_gpu(Dtype("x", "float8_e4m3fn")),
        ScaleBlock("x", (-1, -1)),
        ScaleBlock("w", (-1, -1)),
        AtMost("batch", 1),
        *_CODES,
    ),
    _scaled(
        "scaled_mm_blocks",
        "scaled_linear_of_blocks",
        ("sm_90",),
        CudaAtLeast((12, 9)),
        Dtype("x", "float8_e4m3fn"),
        Dtype("out_dtype", "bfloat16"),
        ScaleBlock("x", (1, 128)),
        ScaleBlock("w", (128, 128)),
        MultipleOf("k", 128),
        AtLeast("k", 256),
        MultipleOf("n", 128),
        MultipleOf("m", 4),
        *_CODES,
    ),
    Implementation(
        op="scaled_linear",
        name="int_mm",
        target="opmux_vendor.scaled:scaled_linear_int8",
        archs=("cpu", "sm_80+"),
        priority=AFTERWARDS,
        when=(
            Dtype("x", "int8"),
            Dtype("out_dtype", *_FLOATS),
            OneOf("k_blocks", 1),
            OneOf("w_blocks", 1),
            AnyOf(ScaleBlock("w", (1, -1)), ScaleBlock("w", (-1, -1))),
            AtLeast("k", 2),  # with one column torch's kernel for the CPU leaves the result as it was
            AtMost("k", (1 << 31) // (128 * 128) - 1),  # sums that int32 holds
            *_on_gpu(
                AtLeast("m", 17), MultipleOf("k", 8), MultipleOf("n", 8), UnitStride("x"), UnitStride("w"),
                Aligned("x", 16), Contiguous("w"),
            ),
        ),
        capturable=True,
        deterministic=True,
    ),
)  # fmt: skip
