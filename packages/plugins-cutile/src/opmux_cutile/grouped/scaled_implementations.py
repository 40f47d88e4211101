"""The records of products of groups of 8-bit codes."""

from collections.abc import Mapping
from typing import Any

from opmux.plugin import (
    Aligned,
    AtMost,
    Bucket,
    Dtype,
    Exact,
    Implementation,
    MaxNumel,
    MultipleOf,
    Predicate,
    UnitStride,
)
from opmux_cutile.archs import PRIORITY
from opmux_cutile.grouped.implementations import MOST_GROUPS
from opmux_cutile.scaled.implementations import ARCHS, FP8, HALVES

MOST = (1 << 31) - 1
"""Codes that 32 bits count."""
MOST_RESULTS = 1 << 29
"""Elements of the result: at four bytes, the most that 32 bits count."""


def results(features: Mapping[str, Any]) -> str | None:
    """Refuse results that a launch cannot address."""
    rows = features["bucket(m, 8)"] if "bucket(m, 8)" in features else features["groups"] * features["max_m"]
    if rows * features["n"] <= MOST_RESULTS:
        return None
    return f"the result has more than {MOST_RESULTS} elements"


def _record(op: str, rows: str, *rules: Bucket | Exact) -> Implementation:
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
            Predicate(results, (*rules, Exact("groups"), Exact("n"))),
            UnitStride("x", "w"),
            Aligned("x"),
            Aligned("w"),
        ),
        features=(*rules, Exact("groups"), Exact("n"), Exact("k")),
        config="opmux_cutile.grouped.scaled_configs:scaled_grouped_config",
        config_schema="opmux_cutile.products.configs:LinearConfig",
        space="opmux_cutile.grouped.scaled_configs:scaled_grouped_space",
        capturable=True,
        deterministic=True,
    )


RECORDS = (
    _record("scaled_grouped_linear", "m", Bucket("m", per_octave=8)),
    _record("scaled_masked_grouped_linear", "max_m", Exact("max_m")),
)
