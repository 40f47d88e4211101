"""The records of the ops of rows."""

from opmux.plugin import (
    Aligned,
    AnyOf,
    AtMost,
    Constraint,
    Contiguous,
    Dtype,
    Exact,
    Implementation,
    MultipleOf,
    OneOf,
    SameDtype,
    UnitStride,
)
from opmux_asm.archs import ARCHS, FP8, UNMEASURED

LONGEST = 16384
"""Columns of float32 in the largest tile."""
FLOATS = ("bfloat16", "float16", "float32")


def _record(
    op: str, width: str, tensors: tuple[str, ...], more: tuple[Constraint, ...], archs: tuple[str, ...], name: str = ""
) -> Implementation:
    gains = tuple(tensor for tensor in tensors if tensor in ("weight", "bias"))
    rows = tuple(tensor for tensor in tensors if tensor not in gains)
    return Implementation(
        op=op,
        name=name,
        target=f"opmux_asm.row_ops.targets:{op}",
        archs=archs,
        priority=UNMEASURED,
        when=(
            *(Dtype(tensor, *FLOATS) for tensor in rows),
            MultipleOf(width, 8),
            AtMost(width, LONGEST),
            UnitStride(*tensors),
            *(Aligned(tensor) for tensor in tensors),
            *more,
        ),
        features=(Exact(width),),
        config="opmux_asm.row_ops.configs:rows_config",
        config_schema="opmux_asm.row_ops.configs:RowsConfig",
        space="opmux_asm.row_ops.configs:rows_space",
        capturable=True,
        deterministic=True,
    )


WEIGHT = AnyOf(SameDtype("x", "weight"), Dtype("weight", "float32"))
ADDED = SameDtype("x", "residual")

FLOATING = (
    _record("rms_norm", "hidden", ("x", "weight"), (WEIGHT,), ARCHS),
    _record("add_rms_norm", "hidden", ("x", "residual", "weight"), (WEIGHT, ADDED), ARCHS),
    _record(
        "add_rms_norm_", "hidden", ("x", "residual", "weight"), (WEIGHT, ADDED, Contiguous("x", "residual")), ARCHS
    ),
    _record("layer_norm", "hidden", ("x", "weight", "bias"), (WEIGHT,), ARCHS),
    _record("silu_and_mul", "n", ("x",), (), ARCHS),
)


def _quantised(op: str, width: str, *tensors: str) -> list[Implementation]:
    """A record for each arch, whose instructions know one flavour of fp8."""
    same = (SameDtype(*tensors),) if len(tensors) > 1 else ()
    scales = (OneOf("block", (1, 128), (1, -1)), OneOf("scale_major", "k"))
    return [
        _record(op, width, tensors, (*same, Dtype("dtype", dtype, "int8"), *scales), (arch,), name)
        for arch, (name, dtype) in FP8.items()
    ]


RECORDS = (
    *FLOATING,
    *_quantised("quantize", "k", "x"),
    *_quantised("rms_norm_quantize", "hidden", "x", "weight"),
    *_quantised("add_rms_norm_quantize", "hidden", "x", "residual", "weight"),
    *_quantised("silu_and_mul_quantize", "n", "x"),
)
