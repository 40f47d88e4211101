"""What the implementations of attention require of their heads, dense, ragged and paged."""

from opmux.plugin import AnyOf, AtLeast, AtMost, Constraint, Dtype, Equal, MultipleOf, OneOf, UnitStride
from opmux_triton.archs import FLOATS, HALVES

WIDEST = 256
"""The largest head size that tiles are made for."""


def portable_heads(dtypes: tuple[str, ...], *unit_stride: str) -> tuple[Constraint, ...]:
    """Of the portable kernels: the dtypes of q, and the tensors whose last dim needs unit stride."""
    return (
        Dtype("q", *dtypes),
        Dtype("sinks", *FLOATS),
        UnitStride(*unit_stride),
        AtMost("head_dim", WIDEST),
        AtMost("value_dim", WIDEST),
    )


_HOPPER: tuple[Constraint, ...] = (Dtype("q", *HALVES), Dtype("sinks", *FLOATS), AtMost("softcap", 0))

HOPPER_HEADS: tuple[Constraint, ...] = (*_HOPPER, OneOf("head_dim", 64, 128), Equal("head_dim", "value_dim"))
"""Of the Gluon kernels for sm_90: 16-bit heads of 64 or 128, and no cap on the scores."""

_SAME = Equal("head_dim", "value_dim")
_UP_TO_WIDEST: tuple[Constraint, ...] = (
    AtMost("head_dim", WIDEST),
    MultipleOf("head_dim", 8),
    AnyOf(_SAME, OneOf("head_dim", 192)),
    AnyOf(_SAME, OneOf("value_dim", 128)),
)
HOPPER_WIDE_HEADS: tuple[Constraint, ...] = (*_HOPPER, AtLeast("head_dim", 64), *_UP_TO_WIDEST)
"""Of the Gluon kernel of attention's forward: heads from 64 to 256; values of 128 beside heads of 192 too."""

HOPPER_WIDER_HEADS: tuple[Constraint, ...] = (*_HOPPER, AtLeast("head_dim", 136), *_UP_TO_WIDEST)
"""Of the Gluon kernels of attention's backward that share keys among warpgroups: heads of more than 128."""

HOPPER_PADDED_HEADS: tuple[Constraint, ...] = (
    *_HOPPER,
    AtLeast("head_dim", 64),
    AtMost("head_dim", 128),
    MultipleOf("head_dim", 8),
    _SAME,
)
"""Of the Gluon kernels of attention's backward, which compute 64 or 128 columns."""
