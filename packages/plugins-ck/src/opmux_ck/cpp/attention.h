// CK's attention as a kernel of plain arguments. Strides are in elements: of rows (tokens), of heads, of batches.
#pragma once
#include "attention_tile.h"

#include "ck_tile/ops/fmha/kernel/fmha_fwd_kernel.hpp"
#include "ck_tile/ops/fmha/pipeline/block_fmha_pipeline_qr_ks_vs.hpp"

namespace opmux_ck {

template <class X, class Tile, bool Ragged, bool Masked, bool Capped, bool Lse>
struct Attention {
  using Traits = ck_tile::TileFmhaTraits<true, true, false, false, Capped, ck_tile::BlockAttentionBiasEnum::NO_BIAS, false,
                                         Lse, false, false>;
  using Problem = ck_tile::BlockFmhaPipelineProblem<X, X, X, float, float, X, unsigned char, float, X, float, X, Tile, Ragged,
                                                    Scores<Capped>, ck_tile::SimplifiedGenericAttentionMask<Masked>, false,
                                                    Traits>;
  using Epilogue = ck_tile::Default2DEpilogue<ck_tile::Default2DEpilogueProblem<float, X, true, false>>;
  using Kernel = ck_tile::FmhaFwdKernel<ck_tile::BlockFmhaPipelineQRKSVS<Problem>, Epilogue>;
};

struct AttentionArguments {
  const void *q, *k, *v;
  void *out, *lse;
  const int *starts_q, *starts_k;
  float scale, cap;
  int seq_q, seq_k, heads, heads_of_kv;
  int q_row, k_row, v_row, out_row;
  int q_head, k_head, v_head, out_head, lse_head;
  int q_batch, k_batch, v_batch, out_batch, lse_batch;
  int left, right;
};

// Fills in CK's own structure, whose fields depend on the instance.
template <class Kernel, bool Ragged, bool Masked, bool Capped, bool Lse, int HeadDim, int ValueDim>
__device__ void attend(const AttentionArguments& a) {
  typename Kernel::Kargs given{};
  given.q_ptr = a.q;
  given.k_ptr = a.k;
  given.v_ptr = a.v;
  given.o_ptr = a.out;
  given.seqlen_q = a.seq_q;
  given.seqlen_k = a.seq_k;
  given.hdim_q = HeadDim;
  given.hdim_v = ValueDim;
  given.num_head_q = a.heads;
  given.nhead_ratio_qk = a.heads_of_kv;
  given.scale_s = a.scale;
  given.stride_q = a.q_row;
  given.stride_k = a.k_row;
  given.stride_v = a.v_row;
  given.stride_o = a.out_row;
  given.nhead_stride_q = a.q_head;
  given.nhead_stride_k = a.k_head;
  given.nhead_stride_v = a.v_head;
  given.nhead_stride_o = a.out_head;
  if constexpr (Masked) {
    given.window_size_left = a.left;
    given.window_size_right = a.right;
    given.mask_type = ck_tile::GenericAttentionMaskEnum::MASK_FROM_BOTTOM_RIGHT;
  }
  if constexpr (Capped) {
    given.logits_soft_cap = a.cap;
    given.logits_soft_cap_rcp = 1 / a.cap;
  }
  if constexpr (Lse) {
    given.lse_ptr = a.lse;
    given.nhead_stride_lse = a.lse_head;
    given.batch_stride_lse = a.lse_batch;
  }
  if constexpr (Ragged) {
    given.seqstart_q_ptr = a.starts_q;
    given.seqstart_k_ptr = a.starts_k;
  } else {
    given.batch_stride_q = a.q_batch;
    given.batch_stride_k = a.k_batch;
    given.batch_stride_v = a.v_batch;
    given.batch_stride_o = a.out_batch;
  }
  Kernel{}(given);
}

}  // namespace opmux_ck

#define OPMUX_CK_ATTENTION(X, QUERIES, KEYS, DIM_STEP, VALUE_DIM, KEY_STEP, HEAD_DIM, WAVES, MFMA, MFMA_K, RAGGED,      \
                           MASKED, CAPPED, LSE)                                                                        \
  extern "C" __global__ __launch_bounds__(WAVES * 64) void attention(                                                  \
      const void* q, const void* k, const void* v, void* out, void* lse, const int* starts_q, const int* starts_k,     \
      float scale, float cap, int seq_q, int seq_k, int heads, int heads_of_kv, int q_row, int k_row, int v_row,       \
      int out_row, int q_head, int k_head, int v_head, int out_head, int lse_head, int q_batch, int k_batch,           \
      int v_batch, int out_batch, int lse_batch, int left, int right) {                                                \
    using Tile = opmux_ck::AttentionTile<QUERIES, KEYS, DIM_STEP, VALUE_DIM, KEY_STEP, HEAD_DIM, WAVES, MFMA, MFMA_K>; \
    using Kernel = typename opmux_ck::Attention<X, Tile, RAGGED, MASKED, CAPPED, LSE>::Kernel;                         \
    static_assert(Kernel::kBlockSize == WAVES * 64);                                                                   \
    opmux_ck::attend<Kernel, RAGGED, MASKED, CAPPED, LSE, HEAD_DIM, VALUE_DIM>(                                        \
        {q,       k,       v,        out,      lse,     starts_q,  starts_k, scale,   cap,     seq_q,                   \
         seq_k,   heads,   heads_of_kv, q_row, k_row,   v_row,     out_row,  q_head,  k_head,  v_head,                 \
         out_head, lse_head, q_batch, k_batch, v_batch, out_batch, lse_batch, left,   right});                         \
  }
