// CK's gradients of attention as kernels of plain arguments. Strides are in elements: of rows (tokens), of heads, of batches.
#pragma once
#include <hip/hip_runtime.h>

#include "ck_tile/core.hpp"
#include "ck_tile/ops/common.hpp"
#include "ck_tile/ops/epilogue.hpp"
#include "ck_tile/ops/fmha/block/block_attention_bias_enum.hpp"
#include "ck_tile/ops/fmha/block/block_dropout.hpp"
#include "ck_tile/ops/fmha/block/block_masking.hpp"
#include "ck_tile/ops/fmha/block/block_position_encoding.hpp"
#include "ck_tile/ops/fmha/kernel/fmha_bwd_kernel.hpp"
#include "ck_tile/ops/fmha/pipeline/block_fmha_bwd_dot_do_o.hpp"
#include "ck_tile/ops/fmha/pipeline/block_fmha_bwd_dq_dk_dv_pipeline_selector.hpp"
#include "ck_tile/ops/fmha/pipeline/block_fmha_bwd_pipeline_problem.hpp"
#include "ck_tile/ops/fmha/pipeline/tile_fmha_shape.hpp"
#include "ck_tile/ops/fmha/pipeline/tile_fmha_traits.hpp"

namespace opmux_ck {

// `Queries` and `Keys` of a tile; queries are the step of the products that sum over them, `KeyStep` that of the product
// that sums over keys. Four waves share the keys of scores, those of gradients of keys, and, in `WavesM` by `WavesN`, the
// gradients of queries. CK's matrix instructions have 16 rows; scores take 32 elements at a time.
template <class X, class KeyGrad, int Queries, int Keys, int KeyStep, int HeadDim, int WavesM, int WavesN, bool Ragged,
          bool Masked>
struct AttentionBackward {
  using Across = ck_tile::sequence<1, 4, 1>;
  using Along = ck_tile::sequence<4, 1, 1>;
  using Long = ck_tile::sequence<16, 16, 32>;
  using Short = ck_tile::sequence<16, 16, 16>;
  using OfQueries = ck_tile::sequence<16, 16, KeyStep < 32 ? KeyStep : 32>;
  using Tile =
      ck_tile::TileFmhaBwdShape<ck_tile::sequence<Queries, Keys, HeadDim, Queries, HeadDim, Queries, KeyStep, HeadDim, HeadDim>,
                                Across, Long, Along, Short, Across, Long, Along, Short,
                                ck_tile::sequence<WavesM, WavesN, 1>, OfQueries>;
  using Traits = ck_tile::TileFmhaBwdTraits<0, 0, ck_tile::BlockAttentionBiasEnum::NO_BIAS, false, 1>;
  using Problem =
      ck_tile::BlockFmhaBwdPipelineProblem<X, X, X, X, float, float, float, X, unsigned char, X, X, X, KeyGrad, KeyGrad, X, Tile,
                                           Ragged, false, ck_tile::SimplifiedGenericAttentionMask<Masked>,
                                           ck_tile::BlockDropoutBwd<false, true, false>, false, Traits>;
  using Epilogue = ck_tile::Default2DEpilogue<ck_tile::Default2DEpilogueProblem<float, KeyGrad, false, false, false>>;
  using Kernel = ck_tile::FmhaBwdDQDKDVKernel<ck_tile::BlockFmhaBwdDQDKDVPipeline<Problem>, Epilogue, Epilogue>;
};

struct AttentionBackwardArguments {
  const void *q, *k, *v, *grad_out, *lse, *shift;
  void *grad_q, *grad_k, *grad_v;
  const int *starts_q, *starts_k;
  float raw_scale, scale;
  int seq_q, seq_k, heads, heads_of_kv;
  int q_row, k_row, v_row, grad_out_row, grad_q_row, grad_k_row, grad_v_row;
  int q_head, k_head, v_head, grad_out_head, lse_head, grad_q_head, grad_k_head, grad_v_head;
  int q_batch, k_batch, v_batch, grad_out_batch, lse_batch, grad_q_batch, grad_k_batch, grad_v_batch;
  int left, right;
};

// Fills in CK's own structure, whose fields depend on the instance.
template <class Kernel, bool Ragged, bool Masked, int HeadDim>
__device__ void attend_backward(const AttentionBackwardArguments& a) {
  typename Kernel::Kargs given{};
  given.q_ptr = a.q;
  given.k_ptr = a.k;
  given.v_ptr = a.v;
  given.lse_ptr = a.lse;
  given.do_ptr = a.grad_out;
  given.d_ptr = a.shift;
  given.dq_acc_ptr = a.grad_q;
  given.dk_ptr = a.grad_k;
  given.dv_ptr = a.grad_v;
  given.seqlen_q = a.seq_q;
  given.seqlen_k = a.seq_k;
  given.hdim_q = HeadDim;
  given.hdim_v = HeadDim;
  given.num_head_q = a.heads;
  given.nhead_ratio_qk = a.heads_of_kv;
  given.raw_scale = a.raw_scale;
  given.scale = a.scale;
  given.stride_q = a.q_row;
  given.stride_k = a.k_row;
  given.stride_v = a.v_row;
  given.stride_do = a.grad_out_row;
  given.stride_dq_acc = a.grad_q_row;
  given.stride_dk = a.grad_k_row;
  given.stride_dv = a.grad_v_row;
  given.nhead_stride_q = a.q_head;
  given.nhead_stride_k = a.k_head;
  given.nhead_stride_v = a.v_head;
  given.nhead_stride_do = a.grad_out_head;
  given.nhead_stride_lsed = a.lse_head;
  given.nhead_stride_dq_acc = a.grad_q_head;
  given.nhead_stride_dk = a.grad_k_head;
  given.nhead_stride_dv = a.grad_v_head;
  if constexpr (Masked) {
    given.window_size_left = a.left;
    given.window_size_right = a.right;
    given.mask_type = ck_tile::GenericAttentionMaskEnum::MASK_FROM_BOTTOM_RIGHT;
  }
  if constexpr (Ragged) {
    given.seqstart_q_ptr = a.starts_q;
    given.seqstart_k_ptr = a.starts_k;
  } else {
    given.batch_stride_q = a.q_batch;
    given.batch_stride_k = a.k_batch;
    given.batch_stride_v = a.v_batch;
    given.batch_stride_do = a.grad_out_batch;
    given.batch_stride_lsed = a.lse_batch;
    given.batch_stride_dq_acc = a.grad_q_batch;
    given.batch_stride_dk = a.grad_k_batch;
    given.batch_stride_dv = a.grad_v_batch;
  }
  Kernel{}(given);
}

// The product of the output with its gradient, by rows.
template <class X, int ValueDim>
using OutputProduct = ck_tile::FmhaBwdOGradDotOKernel<ck_tile::BlockFmhaBwdOGradDotO<
    ck_tile::BlockFmhaBwdOGradDotOPipelineProblem<X, X, float, 64, ValueDim, false,
                                                  ck_tile::TileFmhaBwdOGradDotOTraits<true, false>>>>;

}  // namespace opmux_ck

#define OPMUX_CK_ATTENTION_BACKWARD(X, KEY_GRAD, QUERIES, KEYS, KEY_STEP, HEAD_DIM, WAVES_M, WAVES_N, RAGGED, MASKED)          \
  extern "C" __global__ __launch_bounds__(256) void attention_backward(                                                     \
      const void* q, const void* k, const void* v, const void* grad_out, const void* lse, const void* shift, void* grad_q,  \
      void* grad_k, void* grad_v, const int* starts_q, const int* starts_k, float raw_scale, float scale, int seq_q,         \
      int seq_k, int heads, int heads_of_kv, int q_row, int k_row, int v_row, int grad_out_row, int grad_q_row,              \
      int grad_k_row, int grad_v_row, int q_head, int k_head, int v_head, int grad_out_head, int lse_head, int grad_q_head,  \
      int grad_k_head, int grad_v_head, int q_batch, int k_batch, int v_batch, int grad_out_batch, int lse_batch,            \
      int grad_q_batch, int grad_k_batch, int grad_v_batch, int left, int right) {                                          \
    using Kernel = typename opmux_ck::AttentionBackward<X, KEY_GRAD, QUERIES, KEYS, KEY_STEP, HEAD_DIM, WAVES_M, WAVES_N,    \
                                                        RAGGED, MASKED>::Kernel;                                            \
    static_assert(Kernel::kBlockSize == 256);                                                                              \
    opmux_ck::attend_backward<Kernel, RAGGED, MASKED, HEAD_DIM>(                                                            \
        {q, k, v, grad_out, lse, shift, grad_q, grad_k, grad_v, starts_q, starts_k, raw_scale, scale, seq_q, seq_k, heads,   \
         heads_of_kv, q_row, k_row, v_row, grad_out_row, grad_q_row, grad_k_row, grad_v_row, q_head, k_head, v_head,         \
         grad_out_head, lse_head, grad_q_head, grad_k_head, grad_v_head, q_batch, k_batch, v_batch, grad_out_batch,          \
         lse_batch, grad_q_batch, grad_k_batch, grad_v_batch, left, right});                                                \
  }

#define OPMUX_CK_OUTPUT_PRODUCT(X, VALUE_DIM)                                                                               \
  extern "C" __global__ __launch_bounds__(64) void output_product(                                                          \
      const void* out, const void* grad_out, void* product, int rows, int out_row, int out_head, int out_batch,             \
      int grad_out_row, int grad_out_head, int grad_out_batch, int product_head, int product_batch) {                       \
    using Kernel = opmux_ck::OutputProduct<X, VALUE_DIM>;                                                                   \
    static_assert(Kernel::kBlockSize == 64 && Kernel::kM0 == 64);                                                           \
    typename Kernel::Kargs given{};                                                                                         \
    given.o_ptr = out;                                                                                                      \
    given.do_ptr = grad_out;                                                                                                \
    given.d_ptr = product;                                                                                                  \
    given.p_undrop = 1;                                                                                                     \
    given.seqlen_q = rows;                                                                                                  \
    given.hdim_v = VALUE_DIM;                                                                                               \
    given.stride_o = out_row;                                                                                               \
    given.stride_do = grad_out_row;                                                                                         \
    given.nhead_stride_o = out_head;                                                                                        \
    given.nhead_stride_do = grad_out_head;                                                                                  \
    given.nhead_stride_d = product_head;                                                                                    \
    given.batch_stride_o = out_batch;                                                                                       \
    given.batch_stride_do = grad_out_batch;                                                                                 \
    given.batch_stride_d = product_batch;                                                                                   \
    Kernel{}(given);                                                                                                        \
  }
