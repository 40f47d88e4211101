"""The records of attention."""

from opmux.plugin import (
    Absent,
    Aligned,
    AtMost,
    Bucket,
    Caveat,
    Dtype,
    Exact,
    Implementation,
    Predicate,
    UnitStride,
)
from opmux_ck.archs import ARCHS, UNMEASURED
from opmux_ck.attention.configs import unsupported_heads, unsupported_scale

MOST_QUERIES = 1 << 19
"""Tiles of queries are counted in the grid's second dim, which ends at 65535."""
_QUERIES = {
    "attention": "seq_q",
    "attention_lse": "seq_q",
    "attention_varlen": "max_seqlen_q",
    "attention_varlen_lse": "max_seqlen_q",
}
"""Each op and what bounds its number of queries."""
_HEADS = (Exact("head_dim"), Exact("value_dim"))

RECORDS = tuple(
    Implementation(
        op=op,
        target=f"opmux_ck.attention.targets:{op}",
        archs=ARCHS,
        priority=UNMEASURED,
        when=(
            Dtype("q", "bfloat16", "float16"),
            Predicate(unsupported_heads, _HEADS),
            Absent("sinks"),
            AtMost("softcap", 0),
            Predicate(unsupported_scale, (Exact("scale"),)),
            AtMost(queries, MOST_QUERIES),
            UnitStride("q", "k", "v"),
            *(Aligned(tensor) for tensor in ("q", "k", "v")),
        ),
        features=(*_HEADS, Bucket(queries)),
        config="opmux_ck.attention.choice:attention_config",
        config_schema="opmux_ck.attention.configs:AttentionConfig",
        space="opmux_ck.attention.choice:attention_space",
        caveats=(Caveat.MASKED_NONFINITE,),
        capturable=True,
        deterministic=True,
    )
    for op, queries in _QUERIES.items()
)
