"""The records of rotary embedding."""

from opmux.plugin import AtLeast, Constraint, Contiguous, Dtype, Exact, Implementation, UnitStride
from opmux_cutile.archs import ARCHS, FLOATS, PRIORITY


def _record(op: str, q: str, k: str, *more: Constraint) -> Implementation:
    return Implementation(
        op=op,
        target=f"opmux_cutile.rope.targets:{op}",
        archs=ARCHS,
        priority=PRIORITY,
        when=(Dtype(q, *FLOATS), AtLeast("half", 1), UnitStride(q, k, "cos", "sin"), *more),
        features=(Exact("heads"), Exact("kv_heads"), Exact("head_dim"), Exact("half")),
        config="opmux_cutile.rope.configs:rope_config",
        config_schema="opmux_cutile.rope.configs:RopeConfig",
        space="opmux_cutile.rope.configs:rope_space",
        capturable=True,
        deterministic=True,
    )


RECORDS = (
    _record("apply_rope", "q", "k"),
    _record("apply_rope_", "q", "k", Contiguous("q", "k")),
    _record("apply_rope_backward", "grad_q_out", "grad_k_out"),
)
