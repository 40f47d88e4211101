"""The records of the products."""

from opmux.plugin import (
    Absent,
    Aligned,
    AtMost,
    Bucket,
    Dtype,
    Exact,
    Implementation,
    MultipleOf,
    ScaleBlock,
    UnitStride,
)
from opmux_ck.archs import ARCHS, UNMEASURED

MOST_K = 1 << 20
MOST_N = 1 << 20
"""Rows of a tile are addressed in 32 bits: 256 of them, of float32 where k is cut, are 1 GiB."""
MULTIPLY = (
    AtMost("k", MOST_K),
    AtMost("n", MOST_N),
)


def _scaled(arch: str, *dtypes: str) -> Implementation:
    """The record for an arch, whose instructions know one flavour of fp8."""
    return Implementation(
        op="scaled_linear",
        name=f"channels_{arch}",
        target="opmux_ck.gemm.targets:scaled_linear",
        archs=(arch,),
        priority=UNMEASURED,
        when=(
            Dtype("x", *dtypes),
            Dtype("out_dtype", "bfloat16", "float16"),
            ScaleBlock("x", (1, -1)),
            ScaleBlock("w", (1, -1)),
            Absent("bias"),
            MultipleOf("k", 16),
            *MULTIPLY,
            UnitStride("x", "w"),
            Aligned("x"),
            Aligned("w"),
        ),
        features=(Bucket("m"), Exact("n"), Exact("k")),
        config="opmux_ck.gemm.choice:codes_config",
        config_schema="opmux_ck.gemm.configs:CodesConfig",
        space="opmux_ck.gemm.choice:codes_space",
        capturable=True,
        deterministic=True,
    )


RECORDS = (
    Implementation(
        op="linear",
        target="opmux_ck.gemm.targets:linear",
        archs=ARCHS,
        priority=UNMEASURED,
        when=(
            Dtype("x", "bfloat16", "float16"),
            MultipleOf("k", 8),
            *MULTIPLY,
            UnitStride("x", "w", "bias"),
            *(Aligned(tensor) for tensor in ("x", "w", "bias")),
        ),
        features=(Bucket("tokens"), Exact("n"), Exact("k")),
        config="opmux_ck.gemm.choice:gemm_config",
        config_schema="opmux_ck.gemm.configs:GemmConfig",
        space="opmux_ck.gemm.choice:gemm_space",
        capturable=True,
        deterministic=True,
    ),
    _scaled("gfx942", "float8_e4m3fnuz", "int8"),
    _scaled("gfx950", "float8_e4m3fn", "int8"),
)
