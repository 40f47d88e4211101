"""The records of writes to a paged cache."""

from dataclasses import dataclass

from opmux.plugin import Call, Constraint, Dtype, Exact, Implementation, MaxNumel, UnitStride
from opmux_cutile.archs import ARCHS, FLOATS, PRIORITY
from opmux_cutile.bounds import MOST_FLOATS, StridesAtMost
from opmux_cutile.quantization.implementations import CODES


@dataclass(frozen=True)
class ConvertedByArch(Constraint):
    """Codes of 8-bit floats are converted by instructions of archs from sm_89 on."""

    argument: str

    def check(self, call: Call) -> str | None:
        tensor = call.tensors[self.argument]
        if tensor is None or not tensor.dtype.is_floating_point or tensor.dtype.itemsize > 1:
            return None
        if call.arch.number >= (8, 9):
            return None
        return f"{self.argument} is {str(tensor.dtype).removeprefix('torch.')}, which {call.arch} does not convert"


RECORDS = (
    Implementation(
        op="write_kv_cache",
        target="opmux_cutile.cache.targets:write_kv_cache",
        archs=ARCHS,
        priority=PRIORITY,
        when=(
            *(Dtype(tensor, *FLOATS) for tensor in ("k", "v")),
            *(Dtype(tensor, *FLOATS, *CODES) for tensor in ("k_cache", "v_cache")),
            *(ConvertedByArch(tensor) for tensor in ("k_cache", "v_cache")),
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
