"""The records of attention."""

from collections.abc import Mapping
from typing import Any

from opmux.plugin import (
    Aligned,
    AtLeast,
    AtMost,
    Bucket,
    Dtype,
    Exact,
    Implementation,
    OneOf,
    Predicate,
    Priority,
    UnitStride,
)
from opmux_triton.archs import FLOATS, HALVES, PORTABLE
from opmux_triton.attention import backward_implementations

_FORWARD = {
    "attention": "seq_q",
    "attention_lse": "seq_q",
    "attention_varlen": "max_seqlen_q",
    "attention_varlen_lse": "max_seqlen_q",
}
"""Each op and what bounds its number of queries."""

_PORTABLE = tuple(
    Implementation(
        op=op,
        name=name,
        target=f"opmux_triton.attention.forward:{op}",
        archs=PORTABLE,
        when=(
            Dtype("q", *dtypes),
            Dtype("sinks", *FLOATS),
            AtMost("head_dim", 256),
            AtMost("value_dim", 256),
            UnitStride("q", "k", "v", "sinks"),
        ),
        features=(Exact("head_dim"), Exact("value_dim"), Bucket(queries)),
        config=f"opmux_triton.attention.configs:{config}",
        capturable=True,
        deterministic=True,
    )
    for op, queries in _FORWARD.items()
    for name, dtypes, config in (("", HALVES, "forward_config"), ("float32", ("float32",), "float32_config"))
)


def _same_head_dims(features: Mapping[str, Any]) -> str | None:
    """One ring serves keys and values."""
    if features["head_dim"] == features["value_dim"]:
        return None
    return f"head_dim = {features['head_dim']} is not value_dim = {features['value_dim']}"


_HOPPER = tuple(
    Implementation(
        op=op,
        name="hopper",
        target=f"opmux_triton.attention.gluon_forward:{op}",
        archs=("sm_90",),
        priority=Priority.PORTABLE + 1,
        when=(
            Dtype("q", *HALVES),
            Dtype("sinks", *FLOATS),
            OneOf("head_dim", 64, 128),
            Predicate(_same_head_dims, reads=(Exact("head_dim"), Exact("value_dim"))),
            AtMost("softcap", 0),
            AtLeast("seq_q", 128),
            AtLeast("seq_k", 128),
            UnitStride("q", "k", "v", "sinks"),
            Aligned("q", 16),
            Aligned("k", 16),
            Aligned("v", 16),
        ),
        features=(Exact("head_dim"), Exact("value_dim"), Bucket("seq_q")),
        config="opmux_triton.attention.configs:gluon_config",
        capturable=True,
        deterministic=True,
    )
    for op in ("attention", "attention_lse")
)

RECORDS = (*_PORTABLE, *_HOPPER, *backward_implementations.RECORDS)
