"""The records of products of groups."""

from opmux.plugin import (
    Aligned,
    AtLeast,
    AtMost,
    Bucket,
    Dtype,
    Exact,
    Implementation,
    MaxNumel,
    MultipleOf,
    UnitStride,
)
from opmux_cutile.archs import PRIORITY
from opmux_cutile.bounds import MOST_HALVES, ResultAtMost
from opmux_cutile.products.implementations import ARCHS

MOST_GROUPS = 1024


def _record(op: str, rows: str, rule: Bucket | Exact, *result: str) -> Implementation:
    return Implementation(
        op=op,
        target=f"opmux_cutile.grouped.targets:{op}",
        archs=ARCHS,
        priority=PRIORITY,
        when=(
            Dtype("x", "bfloat16", "float16"),
            AtLeast("k", 8),
            MultipleOf("k", 8),
            MultipleOf("n", 8),
            AtMost("groups", MOST_GROUPS),
            AtMost(rows, 1 << 19),  # the grid's second dim has up to 65535 tiles
            MaxNumel("x", MOST_HALVES),
            MaxNumel("w", MOST_HALVES),
            ResultAtMost(result, MOST_HALVES),
            UnitStride("x", "w"),
            Aligned("x"),
            Aligned("w"),
        ),
        features=(rule, Exact("groups"), Exact("n"), Exact("k")),
        config="opmux_cutile.grouped.configs:grouped_config",
        config_schema="opmux_cutile.products.configs:LinearConfig",
        space="opmux_cutile.grouped.configs:grouped_space",
        capturable=True,
        deterministic=True,
    )


RECORDS = (
    _record("grouped_linear", "m", Bucket("m"), "m", "n"),
    _record("masked_grouped_linear", "max_m", Exact("max_m"), "groups", "max_m", "n"),
)
