"""The records of matrix products and norms."""

from opmux.plugin import Aligned, AnyOf, Caveat, Contiguous, Dtype, Implementation, OneOf, Priority, SameDtype
from opmux_vendor.archs import GPUS, ON_CPU, OnArch

_EPILOGUE = (
    AnyOf(ON_CPU, Contiguous("bias")),
    *(AnyOf(ON_CPU, Aligned(tensor, 16)) for tensor in ("x", "w", "bias")),
)
"""What cuBLASLt asks for to add the bias before it rounds. Elsewhere torch takes a product that is split along k, whose
parts are rounded to 16 bits: where they cancel, no digit of the result is right."""

_BLAS = (
    Implementation(
        op="linear",
        name="blas",
        target="opmux_vendor.blas:linear",
        archs=("cpu", *GPUS),
        priority=Priority.VENDOR,
        when=_EPILOGUE,
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
        capturable=True,
        deterministic=True,
    ),
)

RECOMPUTED = Priority.PORTABLE - 5
"""Two library calls, the first for statistics alone: behind a kernel that is made for the op, before the reference."""

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

RECORDS = (*_BLAS, *_FUSED)
