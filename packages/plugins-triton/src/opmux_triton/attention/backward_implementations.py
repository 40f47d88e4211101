"""The records of attention's backward, and of merging partial results."""

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

_OPERANDS = ("grad_out", "q", "k", "v", "out")
_WIDEST = 256


def _backward(op: str, name: str, dtypes: tuple[str, ...], config: str) -> Implementation:
    return Implementation(
        op=op,
        name=name,
        target=f"opmux_triton.attention.backward:{op}",
        archs=PORTABLE,
        when=(
            Dtype("q", *dtypes),
            Dtype("sinks", *FLOATS),
            UnitStride(*_OPERANDS, "sinks"),
            AtMost("head_dim", _WIDEST),
            AtMost("value_dim", _WIDEST),
        ),
        features=(Exact("head_dim"), Exact("value_dim")),
        config=f"opmux_triton.attention.backward_configs:{config}",
        capturable=True,
        deterministic=True,
    )


def _same_head_dims(features: Mapping[str, Any]) -> str | None:
    """Tiles of keys and of values are alike."""
    if features["head_dim"] == features["value_dim"]:
        return None
    return f"head_dim = {features['head_dim']} is not value_dim = {features['value_dim']}"


_HOPPER = Implementation(
    op="attention_backward",
    name="hopper",
    target="opmux_triton.attention.gluon_backward:attention_backward",
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
        UnitStride(*_OPERANDS, "sinks"),
        Aligned("grad_out", 16),
        Aligned("q", 16),
        Aligned("k", 16),
        Aligned("v", 16),
    ),
    features=(Exact("head_dim"), Exact("value_dim"), Bucket("seq_q")),
    config="opmux_triton.attention.backward_configs:gluon_backward_config",
    capturable=True,
    deterministic=False,
)
"""Sums the gradients of queries in the order in which programs come to them."""


def _merge(op: str, outs: tuple[str, ...]) -> Implementation:
    return Implementation(
        op=op,
        target=f"opmux_triton.attention.merge:{op}",
        archs=PORTABLE,
        when=(*(Dtype(name, *FLOATS) for name in outs), Dtype("lse_a", "float32"), UnitStride(*outs)),
        features=(Exact("value_dim"),),
        config="opmux_triton.attention.backward_configs:merge_config",
        capturable=True,
        deterministic=True,
    )


RECORDS = (
    _HOPPER,
    *(
        _backward(op, name, dtypes, config)
        for op in ("attention_backward", "attention_varlen_backward")
        for name, dtypes, config in (
            ("", HALVES, "backward_config"),
            ("float32", ("float32",), "backward_float32_config"),
        )
    ),
    _merge("merge_attention_states", ("out_a", "out_b")),
    _merge("merge_attention_states_backward", ("grad_out", "out_a", "out_b")),
)
