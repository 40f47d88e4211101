"""The records of matrix products and norms."""

from dataclasses import dataclass

import torch

from opmux.plugin import (
    Absent,
    Aligned,
    AnyOf,
    AtMost,
    Call,
    Caveat,
    Constraint,
    Contiguous,
    Dtype,
    Equal,
    Implementation,
    MultipleOf,
    OneOf,
    Priority,
    SameDtype,
)
from opmux_vendor.archs import GPUS, NVIDIA, ON_CPU, OnArch

_EPILOGUE = (
    AnyOf(ON_CPU, Contiguous("bias")),
    *(AnyOf(ON_CPU, Aligned(tensor, 16)) for tensor in ("x", "w", "bias")),
)
"""What cuBLASLt asks for to add the bias before it rounds. Elsewhere torch takes a product that is split along k, whose
parts are rounded to 16 bits: where they cancel, no digit of the result is right."""
_WHOLE_SUMS = tuple(
    AnyOf(ON_CPU, Dtype("x", "float32", "float64"), Aligned(tensor, 16)) for tensor in ("grad_out", "x", "w")
)
"""Where rows of a gradient's operands do not begin at multiples of 16 bytes, cuBLAS splits its sum in the same way (15
rows, n = 130, k = 160 in bfloat16 on an H200)."""


@dataclass(frozen=True)
class IntoFloat32(Constraint):
    """The result of a product is in float32, so that no part of a sum is rounded to 16 bits."""

    def check(self, call: Call) -> str | None:
        """The reason why it does not hold, or None."""
        return None if call.options["out_dtype"] is torch.float32 else "the result is not asked for in float32"


_WHOLE_RESULTS = AnyOf(ON_CPU, Dtype("x", "float32", "float64"), IntoFloat32(), MultipleOf("n", 8))
"""And where rows of a 16-bit result do not (32 rows, n = 50257, k = 1024 in bfloat16 on an H200: off by up to 83 times
what rounding is). It takes three to six times as long there as reading the weight does, too."""


def _in_pairs(dim: str) -> AnyOf:
    """A CPU's matrix units take bfloat16 in pairs along the summed dim.

    Where its size is odd and there are rows enough, oneDNN pairs the last number of a row of the first matrix with the
    number behind it, and multiplies that by zero: a NaN or an infinity there, in the next row or in a gap, makes the
    whole row NaN (torch 2.13, AMX, from 24 rows on).
    """
    return AnyOf(OnArch(GPUS), Dtype("x", "float16", "float32", "float64"), MultipleOf(dim, 2))


_BLAS = (
    Implementation(
        op="linear",
        name="blas",
        target="opmux_vendor.blas:linear",
        archs=("cpu", *GPUS),
        priority=Priority.VENDOR,
        # Torch multiplies 16-bit matrices into float32 with CUDA alone.
        when=(
            *_EPILOGUE,
            _WHOLE_RESULTS,
            _in_pairs("k"),
            AnyOf(Dtype("out_dtype", "bfloat16", "float16"), OnArch(NVIDIA)),
        ),
        capturable=True,
        deterministic=True,
        takes_out=True,
    ),
    Implementation(
        op="linear_backward",
        name="blas",
        target="opmux_vendor.blas:linear_backward",
        archs=("cpu", *GPUS),
        priority=Priority.VENDOR,
        when=(*_WHOLE_SUMS, _in_pairs("n")),
        capturable=True,
        deterministic=True,
    ),
)

RECOMPUTED = Priority.PORTABLE - 5
"""More than one pass of a library: behind a kernel that is made for the op, before the reference."""

_FUSED = (
    Implementation(
        op="rms_norm",
        name="fused",
        target="opmux_vendor.fused:rms_norm",
        archs=GPUS,  # on a CPU torch has no kernel for it: it would run several ops one after the other
        priority=Priority.VENDOR,
        when=(SameDtype("x", "weight"), OneOf("weight_offset", 0.0)),
        capturable=True,
        deterministic=True,
    ),
    Implementation(
        op="layer_norm",
        name="fused",
        target="opmux_vendor.fused:layer_norm",
        archs=("cpu", *GPUS),
        priority=Priority.VENDOR,
        when=(SameDtype("x", "weight"),),
        capturable=True,
        deterministic=True,
    ),
    Implementation(
        op="rms_norm_backward",
        name="fused",
        target="opmux_vendor.fused:rms_norm_backward",
        archs=GPUS,
        priority=RECOMPUTED,
        when=(SameDtype("x", "weight"), OneOf("weight_offset", 0.0)),
        capturable=True,
        deterministic=True,
    ),
    Implementation(
        op="layer_norm_backward",
        name="fused",
        target="opmux_vendor.fused:layer_norm_backward",
        archs=("cpu", *GPUS),
        priority=RECOMPUTED,
        # In 16 bits the CPU's kernel keeps the statistics in 16 bits too.
        when=(SameDtype("x", "weight"), AnyOf(Dtype("x", "float32", "float64"), OnArch(GPUS))),
        capturable=True,
        deterministic=True,
        caveats=(Caveat.NONFINITE_KIND,),
    ),
)

_MOST_GROUPS = 1023
"""Of a call to torch's CUTLASS kernels."""

_OF_GROUPS = (
    Absent("group_sizes"),
    AnyOf(Dtype("x", "bfloat16"), ON_CPU),
    Dtype("x", "bfloat16", "float16", "float32"),
    Contiguous("x", "w", "group_offsets"),
    MultipleOf("k", 8),
    MultipleOf("n", 8),
    AtMost("groups", _MOST_GROUPS),
    AnyOf(ON_CPU, Aligned("x", 16)),
    AnyOf(ON_CPU, Aligned("w", 16)),
)

_GROUPED = (
    Implementation(
        op="grouped_linear",
        name="grouped",
        target="opmux_vendor.grouped:grouped_linear",
        # On other archs torch multiplies group by group, and reads the offsets on the host.
        archs=("cpu", "sm_90"),
        priority=Priority.VENDOR,
        when=_OF_GROUPS,
        capturable=True,
        deterministic=True,
    ),
    Implementation(
        op="grouped_linear_backward",
        name="grouped",
        target="opmux_vendor.grouped:grouped_linear_backward",
        archs=("cpu", "sm_90"),
        priority=RECOMPUTED,  # each gradient is written twice
        when=(*_OF_GROUPS, Contiguous("grad_out"), AnyOf(ON_CPU, Aligned("grad_out", 16))),
        capturable=True,
        deterministic=True,
    ),
    Implementation(
        op="scaled_grouped_linear",
        name="grouped",
        target="opmux_vendor.grouped:scaled_grouped_linear",
        archs=("sm_90",),
        priority=Priority.VENDOR,
        when=(
            Absent("group_sizes"),
            Dtype("x", "float8_e4m3fn"),
            Dtype("out_dtype", "bfloat16"),
            Equal("m_blocks", "m"),
            OneOf("k_blocks", 1),
            Equal("w_rows", "n"),
            Contiguous("x", "w", "x_scale", "w_scale", "group_offsets"),
            MultipleOf("k", 16),
            MultipleOf("n", 16),
            AtMost("groups", _MOST_GROUPS),
            Aligned("x", 16),
            Aligned("w", 16),
        ),
        capturable=True,
        deterministic=True,
    ),
)

_LOSSES = (
    Implementation(
        op="cross_entropy",
        name="softmax",
        target="opmux_vendor.losses:cross_entropy",
        archs=("cpu",),  # on a GPU torch's kernel stops the process at a target that is no class
        priority=RECOMPUTED,  # a softmax of all logits in float32 is written and read again
        when=(OneOf("z_loss", 0.0), OneOf("softcap", 0.0)),
        capturable=True,
        deterministic=True,
        caveats=(Caveat.NONFINITE_KIND,),
    ),
)

RECORDS = (*_BLAS, *_FUSED, *_GROUPED, *_LOSSES)
