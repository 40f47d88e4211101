"""The record of the cache write."""

from opmux.plugin import Bucket, Dtype, Exact, Implementation, UnitStride
from opmux_triton.archs import FLOATS, PORTABLE

_TENSORS = ("k", "v", "k_cache", "v_cache")

RECORDS = (
    Implementation(
        op="write_kv_cache",
        target="opmux_triton.kv_cache.targets:write_kv_cache",
        archs=PORTABLE,
        when=(*(Dtype(name, *FLOATS) for name in _TENSORS), UnitStride(*_TENSORS)),
        features=(Exact("kv_heads"), Exact("head_dim"), Exact("value_dim"), Bucket("tokens")),
        config="opmux_triton.kv_cache.configs:write_config",
        space="opmux_triton.kv_cache.spaces:write_space",
        config_schema="opmux_triton.kv_cache.configs:WriteConfig",
        capturable=True,
        deterministic=True,
    ),
)
