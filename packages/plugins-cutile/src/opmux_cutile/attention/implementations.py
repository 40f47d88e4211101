"""The records of attention."""

from typing import Any

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
from opmux_cutile.archs import PRIORITY, UNPROVED
from opmux_cutile.bounds import MOST_HALVES, GridAtMost, ResultAtMost

ARCHS = ("sm_90", "sm_100", "sm_103")
"""That tiles are chosen for. Where the matrix units take both operands from registers, kernels for wide heads spill."""
FORWARD_ARCHS = (*ARCHS, "sm_110")
"""Where heads of up to `WIDEST` are taken."""
REGISTER_ARCHS = ("sm_120", "sm_121")
"""Where heads of up to `WIDEST_IN_REGISTERS` are taken: there is a copy engine, but wider ones spill."""
WIDEST, WIDEST_IN_REGISTERS = 256, 128
FORWARD = ("attention", "attention_lse", "attention_varlen", "attention_varlen_lse")
TILES = (("seq_q", 64), ("batch", 1), ("heads", 1))
"""What a block computes on Hopper where heads are not wide: times are predicted by whole ones."""


def forward(
    op: str,
    archs: tuple[str, ...],
    widest: int,
    module: str = "opmux_cutile.attention",
    config: str = "attention",
    **more: Any,
) -> Implementation:
    """A record of a forward op: for some archs, with heads of up to a size.

    Args:
        op: one of `FORWARD`.
        archs: that it is for.
        widest: the most of head_dim and value_dim.
        module: the package of its targets and configs.
        config: what the names of its config and space begin with.
        **more: other fields.
    """
    queries = ("tokens_q",) if "varlen" in op else ("batch", "seq_q")
    return Implementation(
        op=op,
        target=f"{module}.targets:{op}",
        archs=archs,
        when=(
            Dtype("q", "bfloat16", "float16"),
            Dtype("sinks", "bfloat16", "float16", "float32"),
            *(MultipleOf(dim, 8) for dim in ("head_dim", "value_dim")),
            *(AtMost(dim, widest) for dim in ("head_dim", "value_dim")),
            UnitStride("q", "k", "v", "sinks"),
            *(Aligned(name) for name in ("q", "k", "v")),
            GridAtMost("heads"),
            *(MaxNumel(name, MOST_HALVES) for name in ("q", "k", "v")),
            ResultAtMost((*queries, "heads", "value_dim"), MOST_HALVES),
        ),
        features=(Exact("head_dim"), Exact("value_dim")),
        config=f"{module}.configs:{config}_config",
        config_schema="opmux_cutile.attention.configs:AttentionConfig",
        space=f"{module}.configs:{config}_space",
        capturable=True,
        deterministic=True,
        caveats=(Caveat.MASKED_NONFINITE,),
        **more,
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
    *(
        forward(op, FORWARD_ARCHS, WIDEST, priority=PRIORITY, tiles=TILES if "varlen" not in op else ())
        for op in FORWARD
    ),
    *(forward(op, REGISTER_ARCHS, WIDEST_IN_REGISTERS, name="narrow_heads", priority=UNPROVED) for op in FORWARD),
    *map(_backward_record, ("attention_backward", "attention_varlen_backward")),
)
