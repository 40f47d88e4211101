"""The records of merging partial results of attention."""

from opmux.plugin import Dtype, Exact, Implementation, UnitStride
from opmux_triton.archs import FLOATS, PORTABLE


def _record(op: str, outs: tuple[str, ...]) -> Implementation:
    return Implementation(
        op=op,
        target=f"opmux_triton.attention.merge.targets:{op}",
        archs=PORTABLE,
        when=(*(Dtype(name, *FLOATS) for name in outs), Dtype("lse_a", "float32"), UnitStride(*outs)),
        features=(Exact("value_dim"),),
        config="opmux_triton.attention.merge.configs:merge_config",
        config_schema="opmux_triton.attention.merge.configs:MergeConfig",
        capturable=True,
        deterministic=True,
    )


RECORDS = (
    _record("merge_attention_states", ("out_a", "out_b")),
    _record("merge_attention_states_backward", ("grad_out", "out_a", "out_b")),
)
