// CK's product of codes with a scale for each row of x and each row of w, as a kernel of plain arguments.
#pragma once
#include "gemm.h"

#include "ck_tile/ops/gemm_quant/pipeline/gemm_group_quant_utils.hpp"
#include "ck_tile/ops/gemm_quant/pipeline/gemm_quant_pipeline_problem.hpp"
// After what it names.
#include "ck_tile/ops/gemm_quant/kernel/gemm_quant_kernel.hpp"

namespace opmux_ck {

// The end of a product: sums as float32, times both scales, rounded, gathered in LDS, stored. CK's own would multiply sums
// of int8, which are int32, by scales in int32; instructions on fp8 of the same size leave their sums in the same places.
template <class X, class Out, int M, int N, int WavesM, int WavesN, int Mfma, int MfmaK, int Store>
struct Scaled : Gathered<ck_tile::fp8_t, Out, M, N, WavesM, WavesN, Mfma, MfmaK, Store> {
  using Base = Gathered<ck_tile::fp8_t, Out, M, N, WavesM, WavesN, Mfma, MfmaK, Store>;

  template <class OutWindow, class Sums, class Unused, class XScale, class WScale>
  CK_TILE_DEVICE void operator()(OutWindow& out, const Sums& sums, const Unused&, void* lds, const XScale& x_scale,
                                 const WScale& w_scale) {
    Base::operator()(out, ck_tile::cast_tile<float>(sums), ck_tile::tuple<>{}, lds, x_scale, w_scale);
  }
};

template <class X, class Out, int M, int N, int K, int WavesM, int WavesN, int Mfma, int MfmaK, int Stages, int Steps,
          int Store, bool PadsN, bool PadsK>
struct ScaledLinear {
  static constexpr auto scales = ck_tile::QuantType::RowColQuant;
  using Sum = std::conditional_t<std::is_same_v<X, ck_tile::int8_t>, ck_tile::int32_t, float>;
  using Shape = ck_tile::TileGemmShape<ck_tile::sequence<M, N, K>, ck_tile::sequence<WavesM, WavesN, 1>,
                                       ck_tile::sequence<Mfma, Mfma, MfmaK>>;
  // Every workgroup of the partitioner in CK's examples stores n to one variable in global memory: a race.
  using Partitioner = ck_tile::GemmSpatiallyLocalTilePartitioner<Shape, 8, 4>;
  using Traits = ck_tile::TileGemmQuantTraits<false, PadsN, PadsK, false, false, RowMajor, ColumnMajor, RowMajor, scales>;
  template <bool Repeats, ck_tile::TailNumber Tail>
  using Problem =
      ck_tile::GemmRowColTensorQuantPipelineProblem<X, X, Sum, float, Shape, Traits, false, X,
                                                    ck_tile::GemmPipelineScheduler::Intrawave, Repeats, Tail>;
  using Any = ck_tile::GemmPipelineAgBgCrCompV3<Problem<true, ck_tile::TailNumber::Full>>;
  static_assert(Any::PrefetchStages == Stages, "the instance was chosen by another number of stages");
  using Pipeline =
      ck_tile::GemmPipelineAgBgCrCompV3<Problem<Any::BlockHasHotloop(Steps), Any::GetBlockLoopTailNum(Steps)>>;
  using Epilogue = Scaled<X, Out, M, N, WavesM, WavesN, Mfma, MfmaK, Store>;
  using Kernel = ck_tile::QuantGemmKernel<Partitioner, Pipeline, Epilogue, scales>;
};

}  // namespace opmux_ck

#define OPMUX_CK_SCALED_LINEAR(X, OUT, M, N, K, WAVES_M, WAVES_N, MFMA, MFMA_K, STAGES, STEPS, STORE, PADS_N, PADS_K)   \
  extern "C" __global__ __launch_bounds__(WAVES_M* WAVES_N * 64) void scaled_linear(                                  \
      const void* x, const void* w, const void* x_scale, const void* w_scale, void* out, int rows, int n, int k,      \
      int x_stride, int w_stride, int out_stride, int, int) {                                                         \
    using Of = opmux_ck::ScaledLinear<X, OUT, M, N, K, WAVES_M, WAVES_N, MFMA, MFMA_K, STAGES, STEPS, STORE, PADS_N,  \
                                      PADS_K>;                                                                        \
    typename Of::Kernel{}(ck_tile::QuantGemmKernelArgs{x, w, x_scale, w_scale, out, rows, n, k, 0, 0, x_stride,       \
                                                       w_stride, out_stride, 0, 0, 1});                               \
  }
