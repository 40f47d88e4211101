"""Shapes and element types of matrix instructions, read from their names."""

import re
from typing import NamedTuple

TYPES = {"f32": 0, "f16": 1, "bf16": 2, "i8": 3, "fp8": 4, "bf8": 5, "fp6": 6, "bf6": 7, "fp4": 8, "xf32": 9, "f64": 10}
"""Element types as ``native/elements.h`` numbers them."""
F8F6F4 = ("fp8", "bf8", "fp6", "bf6", "fp4")
"""Formats that ``cbsz`` (of A) and ``blgp`` (of B) select in the f8f6f4 instructions."""
NAME = re.compile(
    r"v_mfma_(?:scale_)?(?P<d>f32|i32|f64)_(?P<m>\d+)x\d+x(?P<k>\d+)(?:_(?P<b>\d+)b)?_?"
    r"(?P<t>xf32|f32|f16|bf16|i8|f64|f8f6f4|[fb][pf]8_[fb][pf]8)(?:_1k)?$"
)


class Shape(NamedTuple):
    """D[m, m] += A[m, k] B[k, m], in so many blocks; types numbered as :data:`TYPES`."""

    m: int
    k: int
    blocks: int
    a: int
    b: int


def shape_of(name: str, cbsz: int = 0, blgp: int = 0) -> Shape | None:
    """The shape of a dense matrix instruction; None for any other, sparse ones too."""
    match = NAME.match(name)
    if match is None:
        return None
    m, k, kind = int(match["m"]), int(match["k"]), match["t"]
    if kind == "f8f6f4":
        if cbsz >= len(F8F6F4) or blgp >= len(F8F6F4):
            return None
        return Shape(m, k, 1, TYPES[F8F6F4[cbsz]], TYPES[F8F6F4[blgp]])
    a, _, b = kind.partition("_")
    return Shape(m, k, int(match["b"] or blocks_of(m, k, kind, name)), TYPES[a], TYPES[b or a])


def blocks_of(m: int, k: int, kind: str, name: str) -> int:
    """Blocks of a name that does not say it (gfx90a): those whose lanes all hold different rows have several.

    CDNA2 ISA, section 7.2: 4x4 has 16 blocks (4 in double precision); 32x32 has two and 16x16 four at the smallest k.
    """
    if kind == "f64":
        return 4 if m == 4 else 1
    per_lane = {"f32": 1, "xf32": 2, "bf16": 4 if name.endswith("_1k") else 2}.get(kind, 4)
    if k == per_lane:
        return {32: 2, 16: 4, 4: 16}[m]
    return 1
