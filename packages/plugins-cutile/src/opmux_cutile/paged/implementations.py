"""The records of attention over a paged cache."""

from typing import Any

from opmux.plugin import AtMost, Constraint, Dtype, Exact, Implementation, MultipleOf, UnitStride
from opmux_cutile.archs import PRIORITY
from opmux_cutile.attention.implementations import ARCHS, WIDEST
from opmux_cutile.bounds import GridAtMost, ResultAtMost, StridesAtMost
from opmux_cutile.quantization.implementations import CODES

MOST = 1 << 33
"""Elements of the result: the rows of its tiles, of 8 columns or more, are counted in 32 bits. Caches may have more."""


CACHES = ("k_cache", "v_cache")
OPS = ("paged_attention", "paged_attention_lse")


def record(
    op: str,
    archs: tuple[str, ...],
    module: str,
    config: str,
    stored: tuple[Constraint, ...],
    priority: int = PRIORITY,
    **more: Any,
) -> Implementation:
    """A record for some archs.

    Args:
        op: one of `OPS`.
        archs: that it is for.
        module: the package of its targets and configs.
        config: what the names of its config and space begin with.
        stored: what is wanted of the caches besides.
        priority: the band.
        **more: other fields.
    """
    return Implementation(
        op=op,
        target=f"{module}.targets:{op}",
        archs=archs,
        priority=priority,
        when=(
            Dtype("q", "bfloat16", "float16"),
            *stored,
            Dtype("sinks", "bfloat16", "float16", "float32"),
            *(MultipleOf(dim, 8) for dim in ("head_dim", "value_dim")),
            *(AtMost(dim, WIDEST) for dim in ("head_dim", "value_dim")),
            GridAtMost("kv_heads"),
            ResultAtMost(("tokens", "heads", "value_dim"), MOST),
            *(StridesAtMost(name) for name in ("q", *CACHES)),
            UnitStride("q", *CACHES),
        ),
        features=(Exact("head_dim"), Exact("value_dim"), Exact("page_size")),
        config=f"{module}.configs:{config}_config",
        config_schema="opmux_cutile.paged.configs:PagedConfig",
        space=f"{module}.configs:{config}_space",
        capturable=True,
        deterministic=True,
        **more,
    )


HELD = tuple(Dtype(name, "bfloat16", "float16", *CODES) for name in CACHES)
RECORDS = tuple(record(op, ARCHS, "opmux_cutile.paged", "paged", HELD) for op in OPS)
