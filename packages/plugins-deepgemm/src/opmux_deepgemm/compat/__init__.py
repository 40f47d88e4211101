"""DeepGEMM 2.6's names and keywords for the products that this backend computes, on operands in DeepGEMM's layouts.

``import opmux_deepgemm.compat as deep_gemm`` runs code that was written for DeepGEMM on a Hopper GPU. A result is
written to ``d``; where ``c`` is given, it is added. Codes must lie along k, as DeepGEMM asks on Hopper too: the fp8
forms ``nn``, ``tn`` and ``tt`` take views of such memory. In bfloat16 they take operands across k as well. What is
missing raises, and names itself. The names ``cublaslt_gemm_*`` are cuBLAS, for comparisons.

Keywords that all functions have alike: ``compiled_dims`` and ``disable_ue8m0_cast`` are taken for DeepGEMM's sake,
since n and k are constants of a kernel, m is not, and scales stay float32 on Hopper. Arguments may also have the names
that they had in DeepGEMM 2.5.

Source:
    The interface of DeepGEMM 2.6, https://github.com/deepseek-ai/DeepGEMM.
"""

from typing import NoReturn

from opmux_deepgemm.compat.dense import (
    bf16_gemm_nn,
    bf16_gemm_nt,
    bf16_gemm_tn,
    bf16_gemm_tt,
    fp8_fp4_gemm_nn,
    fp8_fp4_gemm_nt,
    fp8_fp4_gemm_tn,
    fp8_fp4_gemm_tt,
    fp8_gemm_nn,
    fp8_gemm_nt,
    fp8_gemm_tn,
    fp8_gemm_tt,
)
from opmux_deepgemm.compat.grouped import (
    m_grouped_bf16_gemm_nn_contiguous,
    m_grouped_bf16_gemm_nt_contiguous,
    m_grouped_bf16_gemm_nt_masked,
    m_grouped_fp8_fp4_gemm_nn_contiguous,
    m_grouped_fp8_fp4_gemm_nt_contiguous,
    m_grouped_fp8_fp4_gemm_nt_masked,
    m_grouped_fp8_gemm_nn_contiguous,
    m_grouped_fp8_gemm_nt_contiguous,
    m_grouped_fp8_gemm_nt_masked,
)
from opmux_deepgemm.compat.layouts import (
    get_col_major_tma_aligned_tensor,
    get_k_alignment_for_contiguous_layout,
    get_m_alignment_for_contiguous_layout,
    get_mk_alignment_for_contiguous_layout,
    get_mn_major_tma_aligned_tensor,
    get_theoretical_mk_alignment_for_contiguous_layout,
    get_tma_aligned_size,
    set_mk_alignment_for_contiguous_layout,
    transform_sf_into_required_layout,
)
from opmux_deepgemm.compat.multiprocessors import (
    get_num_sms,
    set_num_sms,
)
from opmux_deepgemm.compat.packing import (
    get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_packed_ue8m0_tensor,
)
from opmux_deepgemm.compat.peer import (
    cublaslt_gemm_nn,
    cublaslt_gemm_nt,
    cublaslt_gemm_tn,
    cublaslt_gemm_tt,
)
from opmux_deepgemm.compat.summed import (
    k_grouped_bf16_gemm_tn_contiguous,
    k_grouped_fp8_gemm_nt_contiguous,
    k_grouped_fp8_gemm_tn_contiguous,
)

__all__ = [
    "bf16_gemm_nn", "bf16_gemm_nt", "bf16_gemm_tn", "bf16_gemm_tt", "cublaslt_gemm_nn", "cublaslt_gemm_nt",
    "cublaslt_gemm_tn", "cublaslt_gemm_tt", "fp8_fp4_gemm_nn", "fp8_fp4_gemm_nt", "fp8_fp4_gemm_tn", "fp8_fp4_gemm_tt",
    "fp8_gemm_nn", "fp8_gemm_nt", "fp8_gemm_tn", "fp8_gemm_tt", "get_col_major_tma_aligned_tensor",
    "get_k_alignment_for_contiguous_layout", "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_m_alignment_for_contiguous_layout", "get_mk_alignment_for_contiguous_layout",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor", "get_mn_major_tma_aligned_tensor", "get_num_sms",
    "get_theoretical_mk_alignment_for_contiguous_layout", "get_tma_aligned_size", "k_grouped_bf16_gemm_tn_contiguous",
    "k_grouped_fp8_gemm_nt_contiguous", "k_grouped_fp8_gemm_tn_contiguous", "m_grouped_bf16_gemm_nn_contiguous",
    "m_grouped_bf16_gemm_nt_contiguous", "m_grouped_bf16_gemm_nt_masked", "m_grouped_fp8_fp4_gemm_nn_contiguous",
    "m_grouped_fp8_fp4_gemm_nt_contiguous", "m_grouped_fp8_fp4_gemm_nt_masked", "m_grouped_fp8_gemm_nn_contiguous",
    "m_grouped_fp8_gemm_nt_contiguous", "m_grouped_fp8_gemm_nt_masked", "set_mk_alignment_for_contiguous_layout",
    "set_num_sms", "transform_sf_into_required_layout",
]  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"opmux_deepgemm.compat has no {name}: it stands for DeepGEMM's dense products, and those of groups of rows, "
        "on Hopper GPUs; see docs/backends/deepgemm.md"
    )
