"""The record of the cache write."""

from opmux.plugin import Bucket, Constraint, Dtype, Exact, Implementation, SameDtype, UnitStride
from opmux_triton.archs import FLOATS, PORTABLE
from opmux_triton.flavours import codes_of_arch


def _record(name: str, target: str, *when: Constraint) -> Implementation:
    return Implementation(
        op="write_kv_cache",
        name=name,
        target=f"opmux_triton.kv_cache.targets:{target}",
        archs=PORTABLE,
        when=(Dtype("k", *FLOATS), Dtype("v", *FLOATS), *when, UnitStride("k", "v", "k_cache", "v_cache")),
        features=(Exact("kv_heads"), Exact("head_dim"), Exact("value_dim"), Bucket("tokens")),
        config="opmux_triton.kv_cache.configs:write_config",
        space="opmux_triton.kv_cache.spaces:write_space",
        config_schema="opmux_triton.kv_cache.configs:WriteConfig",
        capturable=True,
        deterministic=True,
    )


RECORDS = (
    _record("", "write_kv_cache", *(Dtype(name, *FLOATS) for name in ("k_cache", "v_cache"))),
    _record("codes", "write_codes", *codes_of_arch("k_cache"), SameDtype("k_cache", "v_cache")),
)
