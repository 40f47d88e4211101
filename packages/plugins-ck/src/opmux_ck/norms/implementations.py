"""The records of the norms."""

from opmux.plugin import (
    Aligned,
    AnyOf,
    Dtype,
    Exact,
    Implementation,
    MultipleOf,
    OneOf,
    Priority,
    SameDtype,
    UnitStride,
)

ARCHS = ("gfx942",)
UNMEASURED = Priority.PORTABLE - 1
"""Behind portable kernels: these have run on an emulator only. A tuned record, measured on a GPU, ranks before it."""

RECORDS = (
    Implementation(
        op="rms_norm",
        target="opmux_ck.norms.targets:rms_norm",
        archs=ARCHS,
        priority=UNMEASURED,
        when=(
            Dtype("x", "bfloat16", "float16"),
            AnyOf(SameDtype("x", "weight"), Dtype("weight", "float32")),
            OneOf("weight_offset", 0.0),
            MultipleOf("hidden", 8),
            UnitStride("x", "weight"),
            Aligned("x"),
            Aligned("weight"),
        ),
        features=(Exact("hidden"),),
        config="opmux_ck.norms.configs:norm_config",
        config_schema="opmux_ck.norms.configs:NormConfig",
        space="opmux_ck.norms.configs:norm_space",
        capturable=True,
        deterministic=True,
    ),
)
