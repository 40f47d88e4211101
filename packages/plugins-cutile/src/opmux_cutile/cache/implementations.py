"""The records of writes to a paged cache."""

from opmux.plugin import Dtype, Exact, Implementation, MaxNumel, UnitStride
from opmux_cutile.archs import ARCHS, FLOATS, PRIORITY
from opmux_cutile.bounds import MOST_FLOATS, StridesAtMost
from opmux_cutile.quantization.implementations import CODES, FloatCodesByArch

RECORDS = (
    Implementation(
        op="write_kv_cache",
        target="opmux_cutile.cache.targets:write_kv_cache",
        archs=ARCHS,
        priority=PRIORITY,
        when=(
            *(Dtype(tensor, *FLOATS) for tensor in ("k", "v")),
            *(Dtype(tensor, *FLOATS, *CODES) for tensor in ("k_cache", "v_cache")),
            *(FloatCodesByArch(tensor) for tensor in ("k_cache", "v_cache")),
            *(MaxNumel(tensor, MOST_FLOATS) for tensor in ("k", "v")),
            *(StridesAtMost(tensor) for tensor in ("k_cache", "v_cache")),  # a cache may have more elements
            UnitStride("k", "v", "k_cache", "v_cache"),
        ),
        features=(Exact("kv_heads"), Exact("head_dim"), Exact("value_dim")),
        config="opmux_cutile.cache.configs:write_config",
        config_schema="opmux_cutile.rope.configs:RopeConfig",
        space="opmux_cutile.cache.configs:write_space",
        capturable=True,
        deterministic=True,
    ),
)
