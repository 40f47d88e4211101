"""The records of the ops of heads."""

from collections.abc import Mapping
from typing import Any

from opmux.plugin import (
    Absent,
    Aligned,
    Contiguous,
    Dtype,
    Exact,
    Implementation,
    OneOf,
    Predicate,
    SameDtype,
    UnitStride,
)
from opmux_asm.archs import ARCHS, UNMEASURED
from opmux_asm.kernels.rope import HALVES

CACHE = ("k", "v", "k_cache", "v_cache")


def whole_heads(features: Mapping[str, Any]) -> str | None:
    """Whether all of a head is rotated."""
    head_dim, half = features["head_dim"], features["half"]
    return None if head_dim == 2 * half else f"head_dim = {head_dim} is not twice the half = {half} of cos and sin"


def _rope(op: str) -> Implementation:
    return Implementation(
        op=op,
        target=f"opmux_asm.token_ops.targets:{op}",
        archs=ARCHS,
        priority=UNMEASURED,
        when=(
            Dtype("q", "bfloat16", "float16"),
            OneOf("half", *HALVES),
            Predicate(whole_heads, (Exact("head_dim"), Exact("half"))),
            Contiguous("q", "k", "cos", "sin"),
            *map(Aligned, ("q", "k", "cos", "sin")),
        ),
        capturable=True,
        deterministic=True,
    )


RECORDS = (
    _rope("apply_rope"),
    _rope("apply_rope_"),
    Implementation(
        op="write_kv_cache",
        target="opmux_asm.token_ops.targets:write_kv_cache",
        archs=ARCHS,
        priority=UNMEASURED,
        when=(
            Dtype("k", "bfloat16", "float16", "float32"),
            SameDtype(*CACHE),
            Absent("k_scale"),
            Absent("v_scale"),
            OneOf("page_size", 1, 16, 32, 64, 128, 256, 512, 1024),
            OneOf("head_dim", 8, 16, 32, 64, 128, 256, 512),
            OneOf("value_dim", 8, 16, 32, 64, 128, 256, 512),
            UnitStride(*CACHE),
            *map(Aligned, CACHE),
        ),
        capturable=True,
        deterministic=True,
    ),
)
