// Products of groups of rows of codes, each with a weight of its own: a workgroup finds its group on the device, and its tile
// is that of a product of codes, by CK's quantised GEMM or by this package's loop over blocks of scales.
#pragma once
#include "block_scaled_gemm.h"
#include "grouped_gemm.h"
#include "scaled_gemm.h"

namespace opmux_ck {

struct GroupedCodes {
  const void *x, *w;
  const float *x_scale, *w_scale;
  void* out;
  int n, k, x_stride, w_stride;
  int x_scale_row = 1, x_scale_k = 0, w_scale_group = 0, w_scale_row = 1, w_scale_k = 0;
};

// Of is ScaledLinear: a scale for each row of x, and for each of w.
template <class Of, class X, class Out, int M, int N>
__device__ void multiply_groups_of_codes(const GroupedCodes& a, const Groups& groups) {
  const GroupTile<M, N> tile(groups, a.n);
  if (!tile.rows) return;
  const long weight = static_cast<long>(tile.group) * a.n + tile.n0;
  const auto* x = static_cast<const X*>(a.x) + tile.row * a.x_stride;
  const auto* w = static_cast<const X*>(a.w) + weight * a.w_stride;
  auto* out = static_cast<Out*>(a.out) + tile.row * a.n + tile.n0;
  const auto *x_scale = a.x_scale + tile.row, *w_scale = a.w_scale + weight;
  using Kernel = typename Of::Kernel;
  __shared__ char lds[Kernel::GetSmemSize()];
  const ck_tile::QuantGemmKernelArgs given{x, w,          x_scale,    w_scale, out, tile.rows, tile.columns, a.k,
                                           0, 0,          a.x_stride, a.w_stride, a.n, 0, 0, 1};
  Kernel::RunGemm(x, w, x_scale, w_scale, out, lds, given, typename Kernel::SplitKBatchOffset(given, 0), 0, 0);
}

// Of is BlockScaledLinear: scales of 1 x 128 of x, and of 128 x 128 of w.
template <class Of, class X, class Out, int M, int N>
__device__ void multiply_groups_of_blocks(const GroupedCodes& a, const Groups& groups) {
  const GroupTile<M, N> tile(groups, a.n);
  if (!tile.rows) return;
  const long weight = static_cast<long>(tile.group) * a.n + tile.n0;
  Of::run_tile({static_cast<const X*>(a.x) + tile.row * a.x_stride, static_cast<const X*>(a.w) + weight * a.w_stride,
                a.x_scale + tile.row * a.x_scale_row,
                a.w_scale + static_cast<long>(tile.group) * a.w_scale_group +
                    static_cast<long>(tile.n0 / scale_block) * a.w_scale_row,
                static_cast<Out*>(a.out) + tile.row * a.n + tile.n0, tile.rows, tile.columns, a.k, a.x_stride, a.w_stride,
                a.n, a.x_scale_row, a.x_scale_k, a.w_scale_row, a.w_scale_k},
               0, 0);
}

}  // namespace opmux_ck

#define OPMUX_CK_SCALED_GROUPED_LINEAR(X, OUT, M, N, K, WAVES_M, WAVES_N, MFMA, MFMA_K, STAGES, STEPS, STORE, PADS_N,   \
                                       PADS_K)                                                                        \
  extern "C" __global__ __launch_bounds__(WAVES_M* WAVES_N * 64) void scaled_grouped_linear(                          \
      const void* x, const void* w, const float* x_scale, const float* w_scale, void* out, const int* offsets,        \
      const int* sizes, int groups, int capacity, int n, int k, int x_stride, int w_stride, int sized, int) {         \
    using Of = opmux_ck::ScaledLinear<X, OUT, M, N, K, WAVES_M, WAVES_N, MFMA, MFMA_K, STAGES, STEPS, STORE, PADS_N,  \
                                      PADS_K>;                                                                        \
    opmux_ck::multiply_groups_of_codes<Of, X, OUT, M, N>({x, w, x_scale, w_scale, out, n, k, x_stride, w_stride},     \
                                                         {offsets, sized ? sizes : nullptr, groups, capacity});       \
  }

#define OPMUX_CK_BLOCK_SCALED_GROUPED_LINEAR(X, OUT, M, N, K, WAVES_M, WAVES_N, MFMA, MFMA_K, STORE, PADS_N, PADS_K)    \
  extern "C" __global__ __launch_bounds__(WAVES_M* WAVES_N * 64) void block_scaled_grouped_linear(                    \
      const void* x, const void* w, const float* x_scale, const float* w_scale, void* out, const int* offsets,        \
      const int* sizes, int groups, int capacity, int n, int k, int x_stride, int w_stride, int sized,                \
      int x_scale_row, int x_scale_k, int w_scale_group, int w_scale_row, int w_scale_k, int, int, int, int) {        \
    using Of = opmux_ck::BlockScaledLinear<X, OUT, M, N, K, WAVES_M, WAVES_N, MFMA, MFMA_K, STORE, PADS_N, PADS_K>;   \
    opmux_ck::multiply_groups_of_blocks<Of, X, OUT, M, N>(                                                            \
        {x, w, x_scale, w_scale, out, n, k, x_stride, w_stride, x_scale_row, x_scale_k, w_scale_group, w_scale_row,   \
         w_scale_k},                                                                                                  \
        {offsets, sized ? sizes : nullptr, groups, capacity});                                                        \
  }
