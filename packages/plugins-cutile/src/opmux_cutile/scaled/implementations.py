"""The records of products of 8-bit codes."""

from opmux.plugin import (
    Aligned,
    AtMost,
    Bucket,
    Dtype,
    Exact,
    Implementation,
    MaxNumel,
    MultipleOf,
    UnitStride,
)
from opmux_cutile.archs import PRIORITY

ARCHS = ("sm_90+",)
"""Where the matrix units take 8-bit floats, and operands are copied by TMA."""
FP8 = ("float8_e4m3fn", "float8_e5m2")
HALVES = ("bfloat16", "float16", "float32")


RECORDS = (
    Implementation(
        op="scaled_linear",
        target="opmux_cutile.scaled.targets:scaled_linear",
        archs=ARCHS,
        priority=PRIORITY,
        when=(
            Dtype("x", *FP8),
            Dtype("bias", *HALVES),
            Dtype("out_dtype", *HALVES),
            MultipleOf("k", 16),
            MultipleOf("n", 8),
            AtMost("m", 1 << 23),
            MaxNumel("x", (1 << 31) - 1),
            MaxNumel("w", (1 << 31) - 1),
            UnitStride("x", "w", "bias"),
            Aligned("x"),
            Aligned("w"),
        ),
        features=(Bucket("m", per_octave=8), Exact("n"), Exact("k"), Exact("k_blocks")),
        config="opmux_cutile.scaled.configs:scaled_config",
        config_schema="opmux_cutile.scaled.configs:ScaledConfig",
        space="opmux_cutile.scaled.configs:scaled_space",
        capturable=True,
        deterministic=True,
    ),
)
