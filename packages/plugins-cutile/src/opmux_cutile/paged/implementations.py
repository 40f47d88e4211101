"""The records of attention over a paged cache."""

from opmux.plugin import AtMost, Dtype, Exact, Implementation, MultipleOf, UnitStride
from opmux_cutile.archs import PRIORITY
from opmux_cutile.attention.implementations import ARCHS
from opmux_cutile.bounds import GridAtMost, ResultAtMost, StridesAtMost
from opmux_cutile.quantization.implementations import CODES

MOST = 1 << 33
"""Elements of the result: the rows of its tiles, of 8 columns or more, are counted in 32 bits. Caches may have more."""


def _record(op: str) -> Implementation:
    return Implementation(
        op=op,
        target=f"opmux_cutile.paged.targets:{op}",
        archs=ARCHS,
        priority=PRIORITY,
        when=(
            Dtype("q", "bfloat16", "float16"),
            *(Dtype(name, "bfloat16", "float16", *CODES) for name in ("k_cache", "v_cache")),
            Dtype("sinks", "bfloat16", "float16", "float32"),
            *(MultipleOf(dim, 8) for dim in ("head_dim", "value_dim")),
            *(AtMost(dim, 256) for dim in ("head_dim", "value_dim")),
            GridAtMost("kv_heads"),
            ResultAtMost(("tokens", "heads", "value_dim"), MOST),
            *(StridesAtMost(name) for name in ("q", "k_cache", "v_cache")),
            UnitStride("q", "k_cache", "v_cache"),
        ),
        features=(Exact("head_dim"), Exact("value_dim"), Exact("page_size")),
        config="opmux_cutile.paged.configs:paged_config",
        config_schema="opmux_cutile.paged.configs:PagedConfig",
        space="opmux_cutile.paged.configs:paged_space",
        capturable=True,
        deterministic=True,
    )


RECORDS = tuple(_record(op) for op in ("paged_attention", "paged_attention_lse"))
