"""The records of attention over a paged cache where both operands of the matrix units come from registers."""

from opmux.plugin import Aligned, AtLeast, Dtype
from opmux_cutile.archs import UNPROVED, WITHOUT_COPY_ENGINE
from opmux_cutile.attention.implementations import REGISTER_ARCHS, WIDEST_IN_REGISTERS
from opmux_cutile.paged.implementations import CACHES, OPS, record

NARROWEST = 32
"""Heads: decoding of narrower ones spills on `sm_80`."""
HELD = (
    *(Dtype(name, "bfloat16", "float16") for name in CACHES),
    *(Aligned(name) for name in ("q", *CACHES)),
    *(AtLeast(dim, NARROWEST) for dim in ("head_dim", "value_dim")),
)
RECORDS = tuple(
    record(
        op,
        (*WITHOUT_COPY_ENGINE, *REGISTER_ARCHS),
        WIDEST_IN_REGISTERS,
        "opmux_cutile.paged.gathered",
        "gathered",
        HELD,
        UNPROVED,
        name="gathered",
    )
    for op in OPS
)
