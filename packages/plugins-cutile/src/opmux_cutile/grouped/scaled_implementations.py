"""The records of products of groups of 8-bit codes."""

from opmux.plugin import (
    Aligned,
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
from opmux_cutile.bounds import MOST_FLOATS, ResultAtMost
from opmux_cutile.grouped.implementations import MOST_GROUPS
from opmux_cutile.scaled.implementations import ARCHS, FP8, HALVES

MOST = (1 << 31) - 1
"""Codes that 32 bits count."""


def _record(op: str, rows: str, rule: Bucket | Exact, *result: str) -> Implementation:
    return Implementation(
        op=op,
        target=f"opmux_cutile.grouped.scaled_targets:{op}",
        archs=ARCHS,
        priority=PRIORITY,
        when=(
            Dtype("x", *FP8),
            Dtype("out_dtype", *HALVES),
            MultipleOf("k", 16),
            MultipleOf("n", 8),
            AtMost("groups", MOST_GROUPS),
            AtMost(rows, 1 << 19),  # the grid's second dim has up to 65535 tiles
            MaxNumel("x", MOST),
            MaxNumel("w", MOST),
            MaxNumel("x_scale", MOST_FLOATS),
            ResultAtMost(result, MOST_FLOATS),
            UnitStride("x", "w"),
            Aligned("x"),
            Aligned("w"),
        ),
        features=(rule, Exact("groups"), Exact("n"), Exact("k")),
        config="opmux_cutile.grouped.scaled_configs:scaled_grouped_config",
        config_schema="opmux_cutile.products.configs:LinearConfig",
        space="opmux_cutile.grouped.scaled_configs:scaled_grouped_space",
        capturable=True,
        deterministic=True,
    )


RECORDS = (
    _record("scaled_grouped_linear", "m", Bucket("m", per_octave=8), "m", "n"),
    _record("scaled_masked_grouped_linear", "max_m", Exact("max_m"), "groups", "max_m", "n"),
)
