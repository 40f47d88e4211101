"""What the implementations of attention require of their heads, dense, ragged and paged."""

from opmux.plugin import AtMost, Constraint, Dtype, Equal, OneOf, UnitStride
from opmux_triton.archs import FLOATS, HALVES

WIDEST = 256
"""The largest head size that tiles are made for."""


def portable_heads(dtypes: tuple[str, ...], *unit_stride: str) -> tuple[Constraint, ...]:
    """For the portable kernels, given the dtypes of q and the tensors whose last dim needs unit stride."""
    return (
        Dtype("q", *dtypes),
        Dtype("sinks", *FLOATS),
        UnitStride(*unit_stride),
        AtMost("head_dim", WIDEST),
        AtMost("value_dim", WIDEST),
    )


HOPPER_HEADS: tuple[Constraint, ...] = (
    Dtype("q", *HALVES),
    Dtype("sinks", *FLOATS),
    OneOf("head_dim", 64, 128),
    Equal("head_dim", "value_dim"),
    AtMost("softcap", 0),
)
"""For the Gluon kernels on sm_90: 16-bit heads of 64 or 128, and no cap on the scores."""
