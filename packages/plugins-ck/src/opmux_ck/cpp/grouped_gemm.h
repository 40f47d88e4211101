// Products of groups of rows, each with a weight of its own, by CK's universal GEMM. A workgroup finds its group by the
// offsets and sizes on the device.
#pragma once
#include "gemm.h"

namespace opmux_ck {

// Groups start at `offsets`, and have `sizes` rows where these are given, else all up to the next group; or they start
// every `capacity` rows where that is not 0.
struct Groups {
  const int *offsets, *sizes;
  int count, capacity;

  __device__ int start(int group) const { return capacity ? group * capacity : offsets[group]; }
  __device__ int rows(int group) const {
    return sizes ? sizes[group] : offsets[group + 1] - offsets[group];
  }
};

// The tile of a workgroup: its group, its first row in the matrix of all groups, its first column, and how many of both
// the tile has; the same in all threads.
template <int M, int N>
struct GroupTile {
  int group = 0, rows = 0, n0, columns;
  long row;

  __device__ GroupTile(const Groups& groups, int n) {
    int tile = blockIdx.x;
    for (; group < groups.count; ++group) {
      const int tiles = (groups.rows(group) + M - 1) / M;
      if (tile < tiles) break;
      tile -= tiles;
    }
    if (group == groups.count) return;  // the grid has a tile for each group that may end within one
    group = ck_tile::amd_wave_read_first_lane(group);
    const int m0 = ck_tile::amd_wave_read_first_lane(tile * M);
    n0 = ck_tile::amd_wave_read_first_lane(blockIdx.y * N);
    rows = ck_tile::amd_wave_read_first_lane(ck_tile::min(groups.rows(group) - m0, M));
    columns = ck_tile::amd_wave_read_first_lane(ck_tile::min(n - n0, N));
    row = ck_tile::amd_wave_read_first_lane(groups.start(group)) + static_cast<long>(m0);
  }
};

// A tile's own rows of x, w and the result are all that CK sees, so that 32 bits count them.
template <class Kernel, class X, int M, int N>
__device__ void multiply_groups(const void* x, const void* w, void* out, const Groups& groups, int n, int k, int x_stride,
                                int w_stride) {
  const GroupTile<M, N> tile(groups, n);
  if (!tile.rows) return;
  const auto* x_rows = static_cast<const X*>(x) + tile.row * x_stride;
  const auto* w_rows = static_cast<const X*>(w) + (static_cast<long>(tile.group) * n + tile.n0) * w_stride;
  auto* made = static_cast<X*>(out) + tile.row * n + tile.n0;
  __shared__ char lds[Kernel::GetSmemSize()];
  const typename Kernel::KernelArgs given{{x_rows},   {w_rows},   {}, made, tile.rows, tile.columns, k,
                                          {x_stride}, {w_stride}, {}, n,    1};
  Kernel::RunGemm({x_rows}, {w_rows}, {}, made, lds, given, typename Kernel::SplitKBatchOffset(given, 0), 0, 0);
}

}  // namespace opmux_ck

#define OPMUX_CK_GROUPED_LINEAR(X, OUT, M, N, K, WAVES_M, WAVES_N, MFMA, MFMA_K, PIPELINE, STAGES, STEPS, STORE, PADS_N, \
                                PADS_K)                                                                                \
  extern "C" __global__ __launch_bounds__(WAVES_M* WAVES_N * 64) void grouped_linear(                                  \
      const void* x, const void* w, void* out, const int* offsets, const int* sizes, int groups, int capacity, int n,  \
      int k, int x_stride, int w_stride, int sized, int) {                                                             \
    using Of = opmux_ck::Linear<X, OUT, M, N, K, WAVES_M, WAVES_N, MFMA, MFMA_K, PIPELINE, STAGES, STEPS, STORE,       \
                                PADS_N, PADS_K, false>;                                                                \
    opmux_ck::multiply_groups<typename Of::Kernel, X, M, N>(x, w, out, {offsets, sized ? sizes : nullptr, groups,      \
                                                                        capacity},                                     \
                                                            n, k, x_stride, w_stride);                                 \
  }
