"""The records of gradients of products of groups."""

from opmux.plugin import (
    Aligned,
    AtLeast,
    AtMost,
    Bucket,
    Constraint,
    Contiguous,
    Dtype,
    Exact,
    Implementation,
    MaxNumel,
    MultipleOf,
    UnitStride,
)
from opmux_cutile.archs import PRIORITY
from opmux_cutile.bounds import MOST_FLOATS, MOST_HALVES, GridAtMost
from opmux_cutile.grouped.implementations import MOST_GROUPS
from opmux_cutile.products.implementations import ARCHS


def _record(op: str, kind: str, schema: str, given: tuple[str, ...], *more: Constraint) -> Implementation:
    return Implementation(
        op=op,
        target=f"opmux_cutile.grouped.backward:{op}",
        archs=ARCHS,
        priority=PRIORITY,
        when=(
            Dtype("x", "bfloat16", "float16"),
            AtLeast("k", 8),
            MultipleOf("k", 8),
            MultipleOf("n", 8),
            AtMost("groups", MOST_GROUPS),
            AtMost("m", 1 << 19),  # the grid's second dim has up to 65535 tiles
            GridAtMost("n", 1 << 19),
            *(MaxNumel(name, MOST_HALVES) for name in given),
            UnitStride(*given),
            *(Aligned(name) for name in given),
            *more,
        ),
        features=(Bucket("m"), Exact("groups"), Exact("n"), Exact("k")),
        config=f"opmux_cutile.grouped.backward_configs:{kind}_config",
        config_schema=f"opmux_cutile.products.{schema}",
        space=f"opmux_cutile.grouped.backward_configs:{kind}_space",
        capturable=True,
        deterministic=True,
    )


OUT = (Contiguous("out"), Aligned("out"), MaxNumel("out", MOST_FLOATS))
"""Of a tensor of four bytes an element."""
RECORDS = (
    _record(
        "grouped_linear_backward", "grouped_backward", "backward_configs:LinearBackwardConfig", ("grad_out", "x", "w")
    ),
    _record("grouped_weight_grad", "weight_grad", "configs:LinearConfig", ("dy", "x"), *OUT),
)
