"""The records of attention."""

from opmux.plugin import (
    Aligned,
    AtMost,
    Caveat,
    Dtype,
    Exact,
    Implementation,
    MaxNumel,
    MultipleOf,
    UnitStride,
)
from opmux_cutile.archs import PRIORITY
from opmux_cutile.bounds import MOST_HALVES, GridAtMost, ResultAtMost

ARCHS = ("sm_90", "sm_100", "sm_103")
"""That tiles are chosen for. Where the matrix units take both operands from registers, kernels for wide heads spill."""
TILES = (("seq_q", 64), ("batch", 1), ("heads", 1))
"""What a block computes on Hopper where heads are not wide: times are predicted by whole ones."""


def _record(op: str) -> Implementation:
    queries = ("tokens_q",) if "varlen" in op else ("batch", "seq_q")
    return Implementation(
        op=op,
        target=f"opmux_cutile.attention.targets:{op}",
        archs=ARCHS,
        priority=PRIORITY,
        when=(
            Dtype("q", "bfloat16", "float16"),
            Dtype("sinks", "bfloat16", "float16", "float32"),
            *(MultipleOf(dim, 8) for dim in ("head_dim", "value_dim")),
            *(AtMost(dim, 256) for dim in ("head_dim", "value_dim")),
            UnitStride("q", "k", "v", "sinks"),
            *(Aligned(name) for name in ("q", "k", "v")),
            GridAtMost("heads"),
            *(MaxNumel(name, MOST_HALVES) for name in ("q", "k", "v")),
            ResultAtMost((*queries, "heads", "value_dim"), MOST_HALVES),
        ),
        features=(Exact("head_dim"), Exact("value_dim")),
        config="opmux_cutile.attention.configs:attention_config",
        config_schema="opmux_cutile.attention.configs:AttentionConfig",
        space="opmux_cutile.attention.configs:attention_space",
        tiles=TILES if "varlen" not in op else (),
        capturable=True,
        deterministic=True,
        caveats=(Caveat.MASKED_NONFINITE,),
    )


def _backward_record(op: str) -> Implementation:
    given = ("grad_out", "q", "k", "v", "out")
    return Implementation(
        op=op,
        target=f"opmux_cutile.attention.backward:{op}",
        archs=ARCHS,
        priority=PRIORITY,
        when=(
            Dtype("q", "bfloat16", "float16"),
            Dtype("sinks", "bfloat16", "float16", "float32"),
            *(MultipleOf(dim, 8) for dim in ("head_dim", "value_dim")),
            *(AtMost(dim, 256) for dim in ("head_dim", "value_dim")),
            UnitStride(*given, "sinks"),
            *(Aligned(name) for name in given),
            GridAtMost("heads"),
            *(MaxNumel(name, MOST_HALVES) for name in given),
        ),
        features=(Exact("head_dim"), Exact("value_dim")),
        config="opmux_cutile.attention.backward_configs:attention_backward_config",
        config_schema="opmux_cutile.attention.backward_configs:AttentionBackwardConfig",
        space="opmux_cutile.attention.backward_configs:attention_backward_space",
        capturable=True,
        deterministic=True,
        caveats=(Caveat.MASKED_NONFINITE, Caveat.NONFINITE_KIND),
    )


RECORDS = (
    *map(_record, ("attention", "attention_lse", "attention_varlen", "attention_varlen_lse")),
    *map(_backward_record, ("attention_backward", "attention_varlen_backward")),
)
