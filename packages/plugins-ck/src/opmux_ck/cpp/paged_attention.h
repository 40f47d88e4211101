// CK's attention over pages of a cache as a kernel of plain arguments, and the one that combines parts of the keys. Strides
// are in elements: of rows (tokens), of heads, of pages, of parts.
#pragma once
#include "attention_tile.h"

#include "ck_tile/ops/fmha/block/page_block_navigator.hpp"
#include "ck_tile/ops/fmha/kernel/fmha_fwd_splitkv_combine_kernel.hpp"
#include "ck_tile/ops/fmha/kernel/fmha_fwd_splitkv_kernel.hpp"
#include "ck_tile/ops/fmha/pipeline/block_fmha_fwd_splitkv_combine_pipeline.hpp"
#include "ck_tile/ops/fmha/pipeline/block_fmha_fwd_splitkv_pipeline_qr_ks_vs.hpp"

namespace opmux_ck {

// Stores as the compiler makes them: after CK's own of 16 bytes, in assembly, it may overwrite their registers one
// instruction too early, since it does not look into assembly.
template <class Out>
using CompiledStores = ck_tile::Default2DEpilogue<ck_tile::Default2DEpilogueProblem<float, Out, true, false, false>>;

// `Out` is X where a workgroup has all keys of its queries, else float. Without a mask, the heads that share keys are rows of
// one tile.
template <class X, class Out, class Tile, bool Masked, bool Capped, bool Lse>
struct PagedAttention {
  using Traits =
      ck_tile::TileFmhaFwdSplitKVTraits<true, true, false, false, Capped, ck_tile::BlockAttentionBiasEnum::NO_BIAS, false, Lse,
                                        false, true, true, !Masked>;
  using Problem = ck_tile::BlockFmhaFwdSplitKVPipelineProblem<X, X, X, float, float, X, float, X, float, Out, Tile, true,
                                                              Scores<Capped>,
                                                              ck_tile::SimplifiedGenericAttentionMask<Masked>, Traits>;
  using Kernel = ck_tile::FmhaFwdSplitKVKernel<ck_tile::BlockFmhaFwdSplitKVPipelineQRKSVS<Problem>, CompiledStores<Out>>;
};

constexpr int kPartsColumns = 32;  // of a workgroup

// CK has each workgroup of a row store its lse: here, the first alone does.
template <class X, int ValueDim, int MostPartsLog2, bool Lse>
struct CombinedParts {
  using Traits = ck_tile::TileFmhaFwdSplitKVCombineTraits<true, false, Lse, false, MostPartsLog2>;
  using Problem = ck_tile::BlockFmhaSplitKVCombinePipelineProblem<float, float, X, ValueDim, true, kPartsColumns, Traits>;
  using Kernel =
      ck_tile::FmhaFwdSplitKVCombineKernel<ck_tile::BlockFmhaFwdSplitKVCombinePipeline<Problem>, CompiledStores<X>>;
};

struct PagedArguments {
  const void *q, *k, *v;
  void *out, *lse;
  const int *starts_q, *lengths, *table;
  float scale, cap;
  int seq_q, page, heads, heads_of_kv, parts;
  int q_row, k_row, v_row, out_row;
  int q_head, k_head, v_head, out_head, lse_head;
  int k_page, v_page, table_row, out_part, lse_part;
  int left, right;
};

// Fills in CK's own structure, whose fields depend on the instance.
template <class Kernel, bool Masked, bool Capped, int HeadDim, int ValueDim>
__device__ void attend_pages(const PagedArguments& a) {
  typename Kernel::Kargs given{};
  given.q_ptr = a.q;
  given.k_ptr = a.k;
  given.v_ptr = a.v;
  given.o_acc_ptr = a.out;
  given.lse_acc_ptr = a.lse;
  given.seqlen_q = a.seq_q;
  given.hdim_q = HeadDim;
  given.hdim_v = ValueDim;
  given.num_head_q = a.heads;
  given.nhead_ratio_qk = a.heads_of_kv;
  given.num_splits = a.parts;
  given.scale_s = a.scale;
  given.stride_q = a.q_row;
  given.stride_k = a.k_row;
  given.stride_v = a.v_row;
  given.stride_o_acc = a.out_row;
  given.nhead_stride_q = a.q_head;
  given.nhead_stride_k = a.k_head;
  given.nhead_stride_v = a.v_head;
  given.nhead_stride_o_acc = a.out_head;
  given.nhead_stride_lse_acc = a.lse_head;
  given.split_stride_o_acc = a.out_part;
  given.split_stride_lse_acc = a.lse_part;
  given.batch_stride_k = a.k_page;
  given.batch_stride_v = a.v_page;
  given.block_table_ptr = a.table;
  given.batch_stride_block_table = a.table_row;
  given.page_block_size = a.page;
  given.seqstart_q_ptr = a.starts_q;
  given.seqstart_k_ptr = a.starts_q;  // read, and of no effect on keys in pages
  given.seqlen_k_ptr = a.lengths;
  if constexpr (Masked) {
    given.window_size_left = a.left;
    given.window_size_right = a.right;
    given.mask_type = ck_tile::GenericAttentionMaskEnum::MASK_FROM_BOTTOM_RIGHT;
  }
  if constexpr (Capped) {
    given.logits_soft_cap = a.cap;
    given.logits_soft_cap_rcp = 1 / a.cap;
  }
  Kernel{}(given);
}

struct PartsArguments {
  void *out, *lse;
  const void *parts_out, *parts_lse;
  const int* starts_q;
  int parts, out_row, out_head, lse_head, parts_row, parts_head, parts_lse_head, out_part, lse_part;
};

template <class X, int ValueDim, int MostPartsLog2, bool Lse>
__device__ void combine_parts(const PartsArguments& a) {
  using Kernel = typename CombinedParts<X, ValueDim, MostPartsLog2, Lse>::Kernel;
  static_assert(Kernel::kBlockSize == 256);
  typename Kernel::Kargs given{};
  given.lse_acc_ptr = a.parts_lse;
  given.o_acc_ptr = a.parts_out;
  given.o_ptr = a.out;
  given.hdim_v = ValueDim;
  given.num_splits = a.parts;
  given.row_stride_o_acc = a.parts_row;
  given.row_stride_o = a.out_row;
  given.nhead_stride_lse_acc = a.parts_lse_head;
  given.nhead_stride_o_acc = a.parts_head;
  given.nhead_stride_o = a.out_head;
  given.split_stride_lse_acc = a.lse_part;
  given.split_stride_o_acc = a.out_part;
  given.seqstart_q_ptr = a.starts_q;
  if constexpr (Lse) {
    given.lse_ptr = a.lse;
    given.nhead_stride_lse = a.lse_head;
  }
  Kernel{}(given);
}

}  // namespace opmux_ck

#define OPMUX_CK_PAGED_ATTENTION(X, OUT, QUERIES, KEYS, DIM_STEP, VALUE_DIM, KEY_STEP, HEAD_DIM, WAVES, MFMA, MFMA_K, MASKED, \
                                 CAPPED, LSE)                                                                              \
  extern "C" __global__ __launch_bounds__(WAVES * 64) void paged_attention(                                                \
      const void* q, const void* k, const void* v, void* out, void* lse, const int* starts_q, const int* lengths,         \
      const int* table, float scale, float cap, int seq_q, int page, int heads, int heads_of_kv, int parts, int q_row,    \
      int k_row, int v_row, int out_row, int q_head, int k_head, int v_head, int out_head, int lse_head, int k_page,      \
      int v_page, int table_row, int out_part, int lse_part, int left, int right) {                                       \
    using Tile = opmux_ck::AttentionTile<QUERIES, KEYS, DIM_STEP, VALUE_DIM, KEY_STEP, HEAD_DIM, WAVES, MFMA, MFMA_K>;     \
    using Kernel = typename opmux_ck::PagedAttention<X, OUT, Tile, MASKED, CAPPED, LSE>::Kernel;                           \
    static_assert(Kernel::kBlockSize == WAVES * 64);                                                                      \
    opmux_ck::attend_pages<Kernel, MASKED, CAPPED, HEAD_DIM, VALUE_DIM>(                                                   \
        {q,      k,      v,        out,      lse,    starts_q, lengths,   table,    scale, cap,   seq_q,                  \
         page,   heads,  heads_of_kv, parts, q_row,  k_row,    v_row,     out_row,  q_head, k_head, v_head,                \
         out_head, lse_head, k_page, v_page, table_row, out_part, lse_part, left,   right});                              \
  }

#define OPMUX_CK_COMBINED_PARTS(X, VALUE_DIM, MOST_PARTS_LOG2, LSE)                                                      \
  extern "C" __global__ __launch_bounds__(256) void combined_parts(                                                       \
      void* out, void* lse, const void* parts_out, const void* parts_lse, const int* starts_q, int parts, int out_row,    \
      int out_head, int lse_head, int parts_row, int parts_head, int parts_lse_head, int out_part, int lse_part) {        \
    const opmux_ck::PartsArguments given{out,      lse,       parts_out,  parts_lse,      starts_q, parts,   out_row,      \
                                         out_head, lse_head, parts_row, parts_head, parts_lse_head, out_part, lse_part};   \
    if (LSE && blockIdx.x % (VALUE_DIM / opmux_ck::kPartsColumns) == 0)                                                   \
      opmux_ck::combine_parts<X, VALUE_DIM, MOST_PARTS_LOG2, LSE>(given);                                                 \
    else                                                                                                                  \
      opmux_ck::combine_parts<X, VALUE_DIM, MOST_PARTS_LOG2, false>(given);                                               \
  }
