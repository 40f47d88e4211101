"""The implementation records that attention's forward and backward have in common."""

from opmux.plugin import Aligned, AtLeast, Bucket, Constraint, Exact, Implementation, Priority, UnitStride
from opmux_triton.archs import HOPPER, PORTABLE
from opmux_triton.scoring.constraints import portable_heads

_DIMS = (Exact("head_dim"), Exact("value_dim"))

Tiles = tuple[tuple[str, str | int], ...]
"""See ``tiles`` of `opmux.plugin.Implementation`."""


def portable(
    op: str, name: str, dtypes: tuple[str, ...], *, folder: str, config: str, tensors: tuple[str, ...],
    queries: str | None = None, tiles: Tiles = (),
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
        tiles: how a call is cut.
    """
    return Implementation(
        op=op,
        name=name,
        target=f"opmux_triton.attention.{folder}.targets:{op}",
        archs=PORTABLE,
        when=portable_heads(dtypes, *tensors, "sinks"),
        features=_DIMS if queries is None else (*_DIMS, Bucket(queries)),
        config=f"opmux_triton.attention.{folder}.configs:{config}",
        space=f"opmux_triton.attention.{folder}.spaces:{config.removesuffix('_config')}_space",
        config_schema=f"opmux_triton.attention.{folder}.configs:{folder.title()}Config",
        tiles=tiles,
        capturable=True,
        deterministic=True,
    )


def hopper(
    op: str, *, folder: str, heads: tuple[Constraint, ...], tensors: tuple[str, ...], aligned: tuple[str, ...],
    deterministic: bool, name: str = "hopper", config_class: str = "HopperConfig", tiles: Tiles = (),
) -> Implementation:  # fmt: skip
    """The record of a Gluon implementation for sm_90: dense batches.

    Args:
        op: the op.
        folder: ``forward`` or ``backward``.
        heads: the constraints on heads.
        tensors: those whose last dim needs unit stride.
        aligned: those that come by tensor descriptors.
        deterministic: whether every run gives the same bits.
        name: of the implementation, and the beginning of the names of its modules and functions.
        config_class: the name of its config's class.
        tiles: how a call is cut.
    """
    return Implementation(
        op=op,
        name=name,
        target=f"opmux_triton.attention.{folder}.{name}_targets:{op}",
        archs=HOPPER,
        priority=Priority.PORTABLE + 1,
        when=(
            *heads,
            AtLeast("seq_q", 128),
            AtLeast("seq_k", 128),
            UnitStride(*tensors, "sinks"),
            *(Aligned(name, 16) for name in aligned),
        ),
        features=(*_DIMS, Bucket("seq_q")),
        config=f"opmux_triton.attention.{folder}.configs:{name}_config",
        space=f"opmux_triton.attention.{folder}.spaces:{name}_space",
        config_schema=f"opmux_triton.attention.{folder}.configs:{config_class}",
        tiles=tiles,
        capturable=True,
        deterministic=deterministic,
    )
