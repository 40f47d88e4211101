"""The records of rotary embedding."""

from opmux.plugin import Bucket, Dtype, Exact, Implementation, UnitStride
from opmux_triton.archs import FLOATS, PORTABLE


def _record(op: str, q: str, k: str) -> Implementation:
    return Implementation(
        op=op,
        target=f"opmux_triton.rope.targets:{op}",
        archs=PORTABLE,
        when=(Dtype(q, *FLOATS), UnitStride(q, k, "cos", "sin")),
        features=(Exact("heads"), Exact("kv_heads"), Exact("head_dim"), Bucket("batch"), Bucket("seq")),
        config="opmux_triton.rope.configs:rope_config",
        space="opmux_triton.rope.spaces:rope_space",
        config_schema="opmux_triton.rope.configs:RopeConfig",
        capturable=True,
        deterministic=True,
    )


RECORDS = (
    _record("apply_rope", "q", "k"),
    _record("apply_rope_", "q", "k"),
    _record("apply_rope_backward", "grad_q_out", "grad_k_out"),
)
