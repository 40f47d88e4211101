"""The records of products of 8-bit codes.

What cuBLASLt and CUTLASS take is what torch 2.11 checks and documents, and what it was seen to take on an H200. What a
CPU multiplies depends on the CPU and on how torch was built, and is tried.
"""

import functools
from dataclasses import dataclass

import torch

from opmux.dtypes import name_of
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
from opmux_vendor.archs import GPUS, ON_CPU, OnArch


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


@dataclass(frozen=True)
class CpuMultiplies(Constraint):
    """Torch multiplies such 8-bit floats with such scales on this CPU; tried once, with a small product.

    Attributes:
        scales: ``rows``, for one of each row, or ``tensor``.
    """

    scales: str

    def check(self, call: Call) -> str | None:
        """The reason why it does not hold, or None."""
        x = call.tensors["x"]
        return None if x is None else _refused_on_the_cpu(x.dtype, self.scales)


@functools.cache
def _refused_on_the_cpu(dtype: torch.dtype, scales: str) -> str | None:
    codes = torch.zeros(16, 16, device="cpu").to(dtype)
    scale = torch.ones((16, 1) if scales == "rows" else (1, 1), device="cpu")
    try:
        torch._scaled_mm(codes, codes.t(), scale, scale.t(), out_dtype=torch.float32)
    except (RuntimeError, TypeError, ValueError):  # torch has no one way to refuse
        of = "rows" if scales == "rows" else "a tensor"
        return f"torch {torch.__version__} does not multiply {name_of(dtype)} with scales of {of} on this CPU"
    return None


_CPU_FLOATS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_FLOATS = ("bfloat16", "float16", "float32")
_ON_GPU = OnArch(GPUS)


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
        AnyOf(_ON_GPU, CpuMultiplies("rows")),
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
        AnyOf(_ON_GPU, CpuMultiplies("tensor")),
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
        MultipleOf("n", 128),
        MultipleOf("m", 4),
        MultipleOf("k_blocks", 4),
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
