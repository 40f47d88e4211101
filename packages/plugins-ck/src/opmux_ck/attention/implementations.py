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
    SameDtype,
    UnitStride,
)
from opmux_ck.archs import ARCHS, NAMED, UNMEASURED
from opmux_ck.attention.backward_configs import unsupported_backward_heads
from opmux_ck.attention.configs import unsupported_heads, unsupported_scale
from opmux_ck.attention.paged_configs import unsupported_page

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

_DENSE = tuple(
    Implementation(
        op=op,
        target=f"opmux_ck.attention.targets:{op}",
        archs=ARCHS,
        priority=UNMEASURED,
        when=(
            Dtype("q", "bfloat16", "float16"),
            Predicate(unsupported_heads, _HEADS),
            Absent("sinks"),
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
        kernels=NAMED,
        capturable=True,
        deterministic=True,
    )
    for op, queries in _QUERIES.items()
)

_PAGED = tuple(
    Implementation(
        op=op,
        target=f"opmux_ck.attention.paged_targets:{op}",
        archs=ARCHS,
        priority=UNMEASURED,
        when=(
            Dtype("q", "bfloat16", "float16"),
            SameDtype("q", "k_cache"),
            Predicate(unsupported_heads, _HEADS),
            Predicate(unsupported_page, (Exact("page_size"),)),
            Absent("sinks"),
            Predicate(unsupported_scale, (Exact("scale"),)),
            AtMost("max_seqlen_q", MOST_QUERIES),
            UnitStride("q", "k_cache", "v_cache"),
            *(Aligned(tensor) for tensor in ("q", "k_cache", "v_cache")),
        ),
        features=(
            *_HEADS,
            *(Exact(name) for name in ("page_size", "heads", "kv_heads", "causal", "window")),
            *(Bucket(name) for name in ("batch", "max_seqlen_q", "max_seqlen_k")),
        ),
        config="opmux_ck.attention.paged_choice:paged_config",
        config_schema="opmux_ck.attention.paged_configs:PagedConfig",
        space="opmux_ck.attention.paged_choice:paged_space",
        kernels=NAMED,
        capturable=True,
        deterministic=True,
    )
    for op in ("paged_attention", "paged_attention_lse")
)
_BACKWARD = tuple(
    Implementation(
        op=op,
        target=f"opmux_ck.attention.backward_targets:{op}",
        archs=ARCHS,
        priority=UNMEASURED,
        when=(
            Dtype("q", "bfloat16", "float16"),
            Predicate(unsupported_backward_heads, _HEADS),
            Absent("sinks"),
            AtMost("softcap", 0),
            UnitStride("grad_out", "q", "k", "v", "out"),
            *(Aligned(tensor) for tensor in ("grad_out", "q", "k", "v", "out")),
        ),
        features=_HEADS,
        config="opmux_ck.attention.backward_choice:backward_config",
        config_schema="opmux_ck.attention.backward_configs:BackwardConfig",
        space="opmux_ck.attention.backward_choice:backward_space",
        caveats=(Caveat.MASKED_NONFINITE, Caveat.NONFINITE_KIND),
        kernels=NAMED,
        capturable=True,
        deterministic=False,  # gradients of queries are added up in the order in which workgroups reach them
    )
    for op in ("attention_backward", "attention_varlen_backward")
)
RECORDS = (*_DENSE, *_PAGED, *_BACKWARD)
