"""The records of the norms."""

from opmux.plugin import (
    AnyOf,
    AtMost,
    Constraint,
    Contiguous,
    Dtype,
    Exact,
    Implementation,
    MaxNumel,
    SameDtype,
    UnitStride,
)
from opmux_cutile.archs import ARCHS, FLOATS, PRIORITY
from opmux_cutile.norms.configs import LONGEST, LONGEST_BACKWARD


def _record(op: str, tensors: tuple[str, ...], config: str, *more: Constraint) -> Implementation:
    return Implementation(
        op=op,
        target=f"opmux_cutile.norms.{'backward' if op.endswith('backward') else 'targets'}:{op}",
        archs=ARCHS,
        priority=PRIORITY,
        when=(
            *(Dtype(tensor, *FLOATS) for tensor in tensors if tensor != "bias"),
            AtMost("hidden", LONGEST if config != "backward_config" else LONGEST_BACKWARD),
            UnitStride(*tensors),
            *more,
        ),
        features=(Exact("hidden"),),
        config=f"opmux_cutile.norms.configs:{config}",
        config_schema="opmux_cutile.norms.configs:NormConfig",
        space="opmux_cutile.norms.configs:norm_space",
        capturable=True,
        deterministic=True,
    )


def _centred(tensors: tuple[str, ...]) -> tuple[Constraint, ...]:
    """Gradients of long rows around their mean spill registers unless all tensors are of one dtype of 16 bits."""
    short = AtMost("hidden", LONGEST_BACKWARD // 4)
    return AnyOf(short, SameDtype(*tensors)), AnyOf(short, Dtype(tensors[0], "bfloat16", "float16"))


BACKWARD = {
    "rms_norm_backward": ("grad_y", "x", "weight"),
    "add_rms_norm_backward": ("grad_y", "grad_residual_out", "residual_out", "weight"),
    "layer_norm_backward": ("grad_y", "x", "weight"),
    "add_layer_norm_backward": ("grad_y", "grad_residual_out", "residual_out", "weight"),
}
MOST = (1 << 29) - 1
"""Elements of a matrix: at four bytes, the most that 32 bits count."""
ADDED = ("x", "residual", "weight")
RECORDS = (
    _record("rms_norm", ("x", "weight"), "norm_config"),
    _record("add_rms_norm", ADDED, "add_norm_config"),
    _record("add_rms_norm_", ADDED, "add_norm_config", Contiguous("x", "residual")),
    _record("layer_norm", ("x", "weight", "bias"), "layer_norm_config"),
    _record("add_layer_norm", (*ADDED, "bias"), "add_layer_norm_config"),
    *(
        _record(
            op,
            tensors,
            "backward_config",
            *(MaxNumel(tensor, MOST) for tensor in tensors),
            *(_centred(tensors) if "layer" in op else ()),
        )
        for op, tensors in BACKWARD.items()
    ),
)
