"""What a patch replaces, kind by kind. A new kind is a module here, with a `Kind`, and an entry in `KINDS`."""

from typing import Any

from opmux_transformers.kinds.attention import ATTENTION
from opmux_transformers.kinds.cache import CACHE
from opmux_transformers.kinds.decode import DECODE
from opmux_transformers.kinds.experts import EXPERTS
from opmux_transformers.kinds.gate import GATE
from opmux_transformers.kinds.joint import JOINTS
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.kinds.linear import LINEAR
from opmux_transformers.kinds.loss import LOSS
from opmux_transformers.kinds.norm import NORM
from opmux_transformers.kinds.quantize import QUANTIZE
from opmux_transformers.kinds.recompute import RECOMPUTE
from opmux_transformers.kinds.residual import RESIDUAL
from opmux_transformers.kinds.rope import ROPE
from opmux_transformers.kinds.rope_tables import ROPE_TABLES
from opmux_transformers.kinds.vector import VECTOR

__all__ = ["KINDS", "Kind"]

KINDS: list[Kind[Any]] = [
    LINEAR,  # replaced at once: the others are judged with 8-bit products in place
    NORM,
    GATE,
    RECOMPUTE,  # needs gates
    ROPE,  # attention is judged with its rotation already replaced
    ROPE_TABLES,
    ATTENTION,
    DECODE,  # needs norms, rotation and attention
    RESIDUAL,  # needs norms and attention
    CACHE,  # needs attention
    LOSS,
    EXPERTS,
    QUANTIZE,
    VECTOR,  # leaves what is quantised
    JOINTS,  # needs residual sums and the codes that the kind before makes
]
"""In the order in which they are judged, replaced and reported; undone in reverse. Each may use the findings of those
before it."""
