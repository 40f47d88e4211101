// CK's universal GEMM as a kernel of plain arguments: an instance is a line that names its template arguments.
#pragma once
#include "compat.h"

// Some of CK's headers use what only ck_tile/ops/gemm.hpp has included before them; that one includes host code too.
#include "ck_tile/ops/gemm/block/block_gemm_areg_breg_creg_v1.hpp"
#include "ck_tile/ops/gemm/block/block_gemm_areg_breg_creg_v1_custom_policy.hpp"
#include "ck_tile/ops/gemm/block/block_gemm_asmem_bsmem_creg_v1_custom_policy.hpp"
#include "ck_tile/ops/gemm/block/block_gemm_problem.hpp"
#include "ck_tile/ops/gemm/block/block_universal_gemm_as_bs_cr.hpp"
#include "ck_tile/ops/gemm/pipeline/gemm_pipeline_ag_bg_cr_comp_v3.hpp"
#include "ck_tile/ops/gemm/pipeline/gemm_pipeline_ag_bg_cr_comp_v4.hpp"
#include "ck_tile/ops/gemm/pipeline/gemm_pipeline_ag_bg_cr_mem.hpp"
#include "ck_tile/ops/gemm/pipeline/gemm_pipeline_problem.hpp"
#include "ck_tile/ops/gemm/pipeline/tile_gemm_shape.hpp"
#include "ck_tile/ops/gemm/pipeline/tile_gemm_traits.hpp"
// After the pipelines.
#include "ck_tile/ops/gemm/kernel/gemm_tile_partitioner.hpp"
#include "ck_tile/ops/gemm/kernel/universal_gemm_kernel.hpp"

namespace opmux_ck {

using RowMajor = ck_tile::tensor_layout::gemm::RowMajor;
using ColumnMajor = ck_tile::tensor_layout::gemm::ColumnMajor;

struct V3 {
  static constexpr bool two_buffers = false;
  template <class Problem>
  using Loop = ck_tile::GemmPipelineAgBgCrCompV3<Problem>;
};
struct V4 {
  static constexpr bool two_buffers = true;
  template <class Problem>
  using Loop = ck_tile::GemmPipelineAgBgCrCompV4<Problem>;
};
struct Mem {
  static constexpr bool two_buffers = false;
  template <class Problem>
  using Loop = ck_tile::GemmPipelineAgBgCrMem<Problem>;
};

// Adds a bias to the sums before they are rounded.
struct AddBias {
  template <class Result, class Sum, class Bias>
  CK_TILE_HOST_DEVICE void operator()(Result& result, const Sum& sum, const Bias& bias) const {
    result = ck_tile::type_convert<Result>(ck_tile::type_convert<float>(sum) + ck_tile::type_convert<float>(bias));
  }
};

// A tile of the result and its loop over k. `Steps` is a number of steps whose loop this is. Where `Transposed`, a thread
// has four sums side by side in a row of the result, else in a column.
template <class X, int M, int N, int K, int WavesM, int WavesN, int Mfma, int MfmaK, class Pipeline_, int Stages, int Steps,
          bool PadsN, bool PadsK, bool Transposed>
struct Tile {
  static constexpr int threads = WavesM * WavesN * 64;
  using Shape = ck_tile::TileGemmShape<ck_tile::sequence<M, N, K>, ck_tile::sequence<WavesM, WavesN, 1>,
                                       ck_tile::sequence<Mfma, Mfma, MfmaK>>;
  using Partitioner = ck_tile::GemmSpatiallyLocalTilePartitioner<Shape, 8, 4>;
  using Traits = ck_tile::TileGemmUniversalTraits<false, PadsN, PadsK, Pipeline_::two_buffers, RowMajor, ColumnMajor,
                                                  RowMajor, Transposed>;
  template <bool Repeats, ck_tile::TailNumber Tail>
  using Problem = ck_tile::UniversalGemmPipelineProblem<X, X, float, Shape, Traits,
                                                        ck_tile::GemmPipelineScheduler::Intrawave, Repeats, Tail>;
  using Any = typename Pipeline_::template Loop<Problem<true, ck_tile::TailNumber::Full>>;
  static_assert(Any::PrefetchStages == Stages, "the instance was chosen by another number of stages");
  using Pipeline =
      typename Pipeline_::template Loop<Problem<Any::BlockHasHotloop(Steps), Any::GetBlockLoopTailNum(Steps)>>;
};

// Where k is cut into parts, the result has a matrix of `part_rows` rows for each.
template <class Kernel, class Out, bool HasBias>
__device__ void multiply(const void* x, const void* w, const void* bias, void* out, int rows, int n, int k, int x_stride,
                         int w_stride, int out_stride, int parts, int part_rows) {
  auto* at = static_cast<Out*>(out) + static_cast<long>(blockIdx.z) * part_rows * out_stride;
  if constexpr (HasBias) {
    Kernel{}(typename Kernel::KernelArgs{{x}, {w}, {bias}, at, rows, n, k, {x_stride}, {w_stride}, {0}, out_stride, parts});
  } else {
    Kernel{}(typename Kernel::KernelArgs{{x}, {w}, {}, at, rows, n, k, {x_stride}, {w_stride}, {}, out_stride, parts});
  }
}

template <class X, class Out, int M, int N, int K, int WavesM, int WavesN, int Mfma, int MfmaK, class Pipeline, int Stages,
          int Steps, int Store, bool PadsN, bool PadsK, bool HasBias>
struct Linear {
  static constexpr bool transposed = HasBias && Store > 1;
  using Of = Tile<X, M, N, K, WavesM, WavesN, Mfma, MfmaK, Pipeline, Stages, Steps, PadsN, PadsK, transposed>;
  // CK's gathering end would round the sums before it adds.
#ifdef OPMUX_CK_OLDER
  static_assert(!HasBias, "this CK has no end of a product that adds a bias before it rounds");
  using Epilogue = Gathered<X, Out, M, N, WavesM, WavesN, Mfma, MfmaK, Store>;
#else
  using Epilogue = std::conditional_t<HasBias, Added<X, Out, AddBias, M, N, PadsN, Mfma, MfmaK, transposed>,
                                      Gathered<X, Out, M, N, WavesM, WavesN, Mfma, MfmaK, Store>>;
#endif
  using Kernel = ck_tile::UniversalGemmKernel<typename Of::Partitioner, typename Of::Pipeline, Epilogue>;
  static_assert(threads_of<Kernel> == Of::threads && Epilogue::GetVectorSizeC() == Store);
};

}  // namespace opmux_ck

#define OPMUX_CK_LINEAR(X, OUT, M, N, K, WAVES_M, WAVES_N, MFMA, MFMA_K, PIPELINE, STAGES, STEPS, STORE, PADS_N, PADS_K, BIAS) \
  extern "C" __global__ __launch_bounds__(WAVES_M* WAVES_N * 64) void linear(                                              \
      const void* x, const void* w, const void* bias, void* out, int rows, int n, int k, int x_stride, int w_stride,       \
      int out_stride, int parts, int part_rows) {                                                                          \
    using Of = opmux_ck::Linear<X, OUT, M, N, K, WAVES_M, WAVES_N, MFMA, MFMA_K, PIPELINE, STAGES, STEPS, STORE, PADS_N,   \
                                PADS_K, BIAS>;                                                                             \
    opmux_ck::multiply<typename Of::Kernel, OUT, BIAS>(x, w, bias, out, rows, n, k, x_stride, w_stride, out_stride, parts, \
                                                       part_rows);                                                         \
  }
