"""The records of the norms."""

from opmux.plugin import Aligned, AnyOf, AtMost, Dtype, Exact, Implementation, MultipleOf, SameDtype, UnitStride
from opmux_asm.archs import ARCHS, UNMEASURED

LONGEST = 16 * 4 * 64 * 8
"""Columns of the largest tile."""

RECORDS = (
    Implementation(
        op="rms_norm",
        target="opmux_asm.norm.targets:rms_norm",
        archs=ARCHS,
        priority=UNMEASURED,
        when=(
            Dtype("x", "bfloat16", "float16", "float32"),
            AnyOf(SameDtype("x", "weight"), Dtype("weight", "float32")),
            MultipleOf("hidden", 8),
            AtMost("hidden", LONGEST // 2),
            UnitStride("x", "weight"),
            Aligned("x"),
            Aligned("weight"),
        ),
        features=(Exact("hidden"),),
        config="opmux_asm.norm.configs:rows_config",
        config_schema="opmux_asm.norm.configs:RowsConfig",
        space="opmux_asm.norm.configs:rows_space",
        capturable=True,
        deterministic=True,
    ),
)
