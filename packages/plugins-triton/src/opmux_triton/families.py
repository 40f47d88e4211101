"""The records of all families in one list."""

from opmux.plugin import Implementation
from opmux_triton.activation import implementations as activation
from opmux_triton.attention import implementations as attention
from opmux_triton.gemm import implementations as gemm
from opmux_triton.kv_cache import implementations as kv_cache
from opmux_triton.norm import implementations as norm
from opmux_triton.paged import implementations as paged
from opmux_triton.rope import implementations as rope

FAMILIES = (norm, activation, rope, kv_cache, gemm, attention, paged)


def records() -> list[Implementation]:
    """Every record, family by family."""
    return [record for family in FAMILIES for record in family.RECORDS]
