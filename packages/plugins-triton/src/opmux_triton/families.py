"""The records of all families in one list."""

from opmux.plugin import Implementation
from opmux_triton.activation import implementations as activation
from opmux_triton.attention.backward import implementations as attention_backward
from opmux_triton.attention.forward import implementations as attention_forward
from opmux_triton.attention.merge import implementations as attention_merge
from opmux_triton.gemm import implementations as gemm
from opmux_triton.grouped_gemm import implementations as grouped_gemm
from opmux_triton.kv_cache import implementations as kv_cache
from opmux_triton.loss import implementations as loss
from opmux_triton.norm import implementations as norm
from opmux_triton.paged import implementations as paged
from opmux_triton.quantization import implementations as quantization
from opmux_triton.rope import implementations as rope
from opmux_triton.scaled_gemm import implementations as scaled_gemm

FAMILIES = (
    norm, activation, rope, kv_cache, gemm, attention_forward, attention_backward, attention_merge, paged,
    quantization, scaled_gemm, grouped_gemm, loss,
)  # fmt: skip


def records() -> list[Implementation]:
    """Every record, family by family."""
    return [record for family in FAMILIES for record in family.RECORDS]
