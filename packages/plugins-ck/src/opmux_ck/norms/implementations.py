"""The records of the norms."""

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
    Present,
    SameDtype,
    UnitStride,
)
from opmux_ck.archs import ARCHS, UNMEASURED
from opmux_ck.norms.configs import LONGEST


def _record(op: str, tensors: tuple[str, ...], *more: Constraint, space: str = "norm_space") -> Implementation:
    return Implementation(
        op=op,
        target=f"opmux_ck.norms.targets:{op}",
        archs=ARCHS,
        priority=UNMEASURED,
        when=(
            Dtype("x", "bfloat16", "float16"),
            AnyOf(SameDtype("x", "weight"), Dtype("weight", "float32")),
            MultipleOf("hidden", 8),
            UnitStride(*tensors),
            *(Aligned(tensor) for tensor in tensors),
            *more,
        ),
        features=(Exact("hidden"),),
        config="opmux_ck.norms.configs:norm_config",
        config_schema="opmux_ck.norms.configs:NormConfig",
        space=f"opmux_ck.norms.configs:{space}",
        capturable=True,
        deterministic=True,
    )


NO_OFFSET = OneOf("weight_offset", 0.0)
ADDED = ("x", "residual", "weight")
WHOLE_ROWS = (NO_OFFSET, SameDtype("x", "residual"), AtMost("hidden", LONGEST))
RECORDS = (
    _record("rms_norm", ("x", "weight"), NO_OFFSET),
    _record("add_rms_norm", ADDED, *WHOLE_ROWS, space="one_pass_space"),
    _record("add_rms_norm_", ADDED, *WHOLE_ROWS, Contiguous("x", "residual"), space="one_pass_space"),
    _record("layer_norm", ("x", "weight", "bias"), Present("bias")),
)
