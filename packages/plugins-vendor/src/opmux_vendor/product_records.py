"""The records of matrix products and norms."""

from opmux.plugin import Aligned, AnyOf, Call, Constraint, Contiguous, Implementation, OneOf, Priority, SameDtype

GPUS = ("sm_80+", "gfx9*")


class _OnCpu(Constraint):
    """The call is one on the CPU."""

    def check(self, call: Call) -> str | None:
        return None if call.arch.name == "cpu" else f"this is {call.arch}"


_EPILOGUE = (
    AnyOf(_OnCpu(), Contiguous("bias")),
    *(AnyOf(_OnCpu(), Aligned(tensor, 16)) for tensor in ("x", "w", "bias")),
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
)

RECORDS = (*_BLAS, *_FUSED)
