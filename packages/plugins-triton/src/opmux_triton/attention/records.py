"""The implementation records that attention's forward and backward have in common."""

from opmux.plugin import (
    Aligned,
    AtLeast,
    AtMost,
    Bucket,
    Dtype,
    Equal,
    Exact,
    Implementation,
    OneOf,
    Priority,
    UnitStride,
)
from opmux_triton.archs import FLOATS, HALVES, HOPPER, PORTABLE

WIDEST = 256
"""The largest head size that tiles are made for."""
_DIMS = (Exact("head_dim"), Exact("value_dim"))


def portable(
    op: str, name: str, dtypes: tuple[str, ...], *, folder: str, config: str, tensors: tuple[str, ...],
    queries: str | None = None,
) -> Implementation:  # fmt: skip
    """The record of a portable implementation.

    Args:
        op: the op.
        name: of the implementation.
        dtypes: what q may be.
        folder: ``forward`` or ``backward``.
        config: the name of the config function.
        tensors: those whose last dim needs unit stride.
        queries: the option or dim that bounds the queries of a sequence, where the config depends on it.
    """
    return Implementation(
        op=op,
        name=name,
        target=f"opmux_triton.attention.{folder}.targets:{op}",
        archs=PORTABLE,
        when=(
            Dtype("q", *dtypes),
            Dtype("sinks", *FLOATS),
            UnitStride(*tensors, "sinks"),
            AtMost("head_dim", WIDEST),
            AtMost("value_dim", WIDEST),
        ),
        features=_DIMS if queries is None else (*_DIMS, Bucket(queries)),
        config=f"opmux_triton.attention.{folder}.configs:{config}",
        config_schema=f"opmux_triton.attention.{folder}.configs:{folder.title()}Config",
        capturable=True,
        deterministic=True,
    )


def hopper(
    op: str, *, folder: str, tensors: tuple[str, ...], aligned: tuple[str, ...], deterministic: bool
) -> Implementation:
    """The record of a Gluon implementation for sm_90: dense batches of 16-bit heads of 64 or 128.

    Args:
        op: the op.
        folder: ``forward`` or ``backward``.
        tensors: those whose last dim needs unit stride.
        aligned: those that come by tensor descriptors.
        deterministic: whether every run gives the same bits.
    """
    return Implementation(
        op=op,
        name="hopper",
        target=f"opmux_triton.attention.{folder}.hopper_targets:{op}",
        archs=HOPPER,
        priority=Priority.PORTABLE + 1,
        when=(
            Dtype("q", *HALVES),
            Dtype("sinks", *FLOATS),
            OneOf("head_dim", 64, 128),
            Equal("head_dim", "value_dim"),
            AtMost("softcap", 0),
            AtLeast("seq_q", 128),
            AtLeast("seq_k", 128),
            UnitStride(*tensors, "sinks"),
            *(Aligned(name, 16) for name in aligned),
        ),
        features=(*_DIMS, Bucket("seq_q")),
        config=f"opmux_triton.attention.{folder}.configs:hopper_config",
        config_schema=f"opmux_triton.attention.{folder}.configs:HopperConfig",
        capturable=True,
        deterministic=deterministic,
    )
