"""The records of attention."""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import (
    Absent,
    Aligned,
    AtMost,
    Caveat,
    Constraint,
    Dtype,
    Exact,
    Implementation,
    OneOf,
    Predicate,
    SameDtype,
    UnitStride,
)
from opmux_asm.archs import ARCHS, FP8, UNMEASURED
from opmux_asm.kernels.paged_decode import MOST_GROUP
from opmux_asm.kernels.paged_results import HEAD

MOST_NEW = 16
"""New tokens of a sequence, each of which has a workgroup that reads the whole sequence."""
MOST_IN_GRID = 65535
"""Workgroups in y, and in z."""
MOST_TOKENS = 1 << 24
"""Of a sequence; the numbers of keys have 31 bits."""

PLAIN: tuple[Constraint, ...] = (
    Dtype("q", "bfloat16", "float16"),
    OneOf("head_dim", HEAD),
    OneOf("value_dim", HEAD),
    Absent("sinks"),
    OneOf("window", (-1, -1)),
    AtMost("softcap", 0),
)


def few_queries(features: Mapping[str, Any]) -> str | None:
    """Whether the queries of a kv head are the columns of one matrix instruction."""
    heads, kv_heads = features["heads"], features["kv_heads"]
    if heads <= MOST_GROUP * kv_heads:
        return None
    return f"heads = {heads} is more than {MOST_GROUP} for each of kv_heads = {kv_heads}"


def _paged() -> Iterator[Implementation]:
    for op in ("paged_attention", "paged_attention_lse"):
        codes = ((name, (arch,), (Dtype("k_cache", dtype),)) for arch, (name, dtype) in FP8.items())
        for name, archs, caches in (("", ARCHS, (SameDtype("q", "k_cache"),)), *codes):
            yield Implementation(
                op=op,
                name=name,
                target=f"opmux_asm.attention.paged_targets:{op}",
                archs=archs,
                priority=UNMEASURED,
                when=(
                    AtMost("max_seqlen_q", MOST_NEW),
                    *PLAIN,
                    *caches,
                    OneOf("page_size", 16, 32, 64, 128, 256, 512, 1024),
                    Predicate(few_queries, (Exact("heads"), Exact("kv_heads"))),
                    AtMost("kv_heads", MOST_IN_GRID),
                    UnitStride("q", "k_cache", "v_cache"),
                    *map(Aligned, ("q", "k_cache", "v_cache")),
                ),
                capturable=True,
                deterministic=True,
            )


def _dense() -> Iterator[Implementation]:
    for op in ("attention", "attention_lse"):
        yield Implementation(
            op=op,
            target=f"opmux_asm.attention.dense_targets:{op}",
            archs=ARCHS,
            priority=UNMEASURED,
            when=(
                *PLAIN,
                AtMost("heads", MOST_IN_GRID),
                AtMost("batch", MOST_IN_GRID),
                AtMost("seq_q", MOST_TOKENS),
                AtMost("seq_k", MOST_TOKENS),
                UnitStride("q", "k", "v"),
                *map(Aligned, ("q", "k", "v")),
            ),
            capturable=True,
            deterministic=True,
            caveats=(Caveat.MASKED_NONFINITE,),
        )


RECORDS = (*_paged(), *_dense())
