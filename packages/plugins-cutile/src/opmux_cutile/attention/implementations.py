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
from opmux_cutile.attention.configs import IN_REGISTERS
from opmux_cutile.bounds import MOST_HALVES, GridAtMost, ResultAtMost

ARCHS = ("sm_90", "sm_100", "sm_103")
"""With matrix units that leave registers free: they take operands from shared memory."""
FORWARD_ARCHS = (*ARCHS, "sm_110")
WIDEST = 256
"""Heads."""
FORWARD = ("attention", "attention_lse", "attention_varlen", "attention_varlen_lse")
TILES = (("seq_q", 64), ("batch", 1), ("heads", 1))
"""What a block computes on Hopper where heads are not wide: times are predicted by whole ones."""


def forward(
    op: str,
    archs: tuple[str, ...],
    module: str = "opmux_cutile.attention",
    config: str = "attention",
    widest: int = WIDEST,
    **more: Any,
) -> Implementation:
    """A record of a forward op for some archs.

    Args:
        op: one of `FORWARD`.
        archs: that it is for.
        module: the package of its targets and configs.
        config: what the names of its config and space begin with.
        widest: the most of head_dim and value_dim.
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
        config_schema="opmux_cutile.attention.configs:ForwardConfig",
        space=f"{module}.configs:{config}_space",
        capturable=True,
        deterministic=True,
        caveats=(Caveat.MASKED_NONFINITE,),
        **more,
    )


def _backward_record(op: str, archs: tuple[str, ...], priority: int, name: str = "") -> Implementation:
    given = ("grad_out", "q", "k", "v", "out")
    return Implementation(
        op=op,
        target=f"opmux_cutile.attention.backward:{op}",
        name=name,
        archs=archs,
        priority=priority,
        when=(
            Dtype("q", "bfloat16", "float16"),
            Dtype("sinks", "bfloat16", "float16", "float32"),
            *(MultipleOf(dim, 8) for dim in ("head_dim", "value_dim")),
            *(AtMost(dim, WIDEST) for dim in ("head_dim", "value_dim")),
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


BACKWARD = ("attention_backward", "attention_varlen_backward")
RECORDS = (
    *(forward(op, FORWARD_ARCHS, priority=PRIORITY, tiles=TILES if "varlen" not in op else ()) for op in FORWARD),
    *(
        forward(op, IN_REGISTERS, "opmux_cutile.attention.registers", "registers", name="registers", priority=UNPROVED)
        for op in FORWARD
    ),
    *(_backward_record(op, ARCHS, PRIORITY) for op in BACKWARD),
    *(_backward_record(op, IN_REGISTERS, UNPROVED, "registers") for op in BACKWARD),
)
