"""The records of paged attention: 16-bit and float32 caches differ in their launch parameters."""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import (
    Aligned,
    AtLeast,
    Bucket,
    Dtype,
    Exact,
    Implementation,
    Predicate,
    Priority,
    UnitStride,
)
from opmux_triton.archs import HALVES, HOPPER, PORTABLE
from opmux_triton.flavours import CODES, codes_of_arch
from opmux_triton.scoring.constraints import HOPPER_HEADS, portable_heads

_FP8 = tuple(name for name in CODES if name != "int8")
_FEATURES = (Exact("page_size"), Exact("head_dim"), Exact("value_dim"), Bucket("batch"))


def _holds_boxes(features: Mapping[str, Any]) -> str | None:
    """Keys come in boxes of up to 128, each in one page."""
    if features["page_size"] not in (16, 32, 64) and features["page_size"] % 128:
        return f"page_size = {features['page_size']} is not 16, 32, 64 or a multiple of 128"
    return None


def _records() -> Iterator[Implementation]:
    for op in ("paged_attention", "paged_attention_lse"):
        for name, dtypes in (("", HALVES), ("float32", ("float32",))):
            yield Implementation(
                op=op,
                name=name,
                target=f"opmux_triton.paged.targets:{op}",
                archs=PORTABLE,
                when=(Dtype("k_cache", *dtypes), *portable_heads(dtypes, "q", "k_cache", "v_cache")),
                features=_FEATURES,
                config=f"opmux_triton.paged.configs:{name or 'halves'}_config",
                space=f"opmux_triton.paged.spaces:{name or 'halves'}_space",
                config_schema="opmux_triton.paged.configs:PagedConfig",
                capturable=True,
                deterministic=True,
            )
        for name, queries in (("codes", (*HALVES, *_FP8)), ("codes_float32", ("float32",))):
            yield Implementation(
                op=op,
                name=name,
                target=f"opmux_triton.paged.targets:{op}_codes",
                archs=PORTABLE,
                when=(*codes_of_arch("k_cache"), *portable_heads(queries, "q", "k_cache", "v_cache")),
                features=_FEATURES,
                config=f"opmux_triton.paged.configs:{name}_config",
                space=f"opmux_triton.paged.spaces:{name}_space",
                config_schema="opmux_triton.paged.configs:PagedConfig",
                capturable=True,
                deterministic=True,
            )
        yield Implementation(
            op=op,
            name="hopper",
            target=f"opmux_triton.paged.hopper_targets:{op}",
            archs=HOPPER,
            priority=Priority.PORTABLE + 1,
            when=(
                Dtype("k_cache", *HALVES),
                *HOPPER_HEADS,
                Predicate(_holds_boxes, reads=(Exact("page_size"),)),
                AtLeast("max_seqlen_q", 128),
                UnitStride("q", "k_cache", "v_cache"),
                Aligned("q", 16),
                Aligned("k_cache", 16),
                Aligned("v_cache", 16),
            ),
            features=_FEATURES,
            config="opmux_triton.paged.configs:hopper_config",
            space="opmux_triton.paged.spaces:hopper_space",
            config_schema="opmux_triton.paged.configs:HopperConfig",
            capturable=True,
            deterministic=True,
        )


RECORDS = tuple(_records())
