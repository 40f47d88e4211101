// CK's root-mean-square norm as kernels of plain arguments: an instance is a line that names its template arguments.
// Strides are those of rows, in elements; the arguments without a name fill the scalars up to eight.
#pragma once
#include "rows.h"

#include "ck_tile/ops/rmsnorm2d.hpp"

namespace opmux_ck {

#if __has_include("ck_tile/ops/rmsnorm2d/pipeline/rmsnorm2d_fwd_pipeline_model_sensitive_pass.hpp")
template <bool Pads, bool TwoPasses, ck_tile::Rmsnorm2dFusedAddEnum Added>
using RmsTraits =
    ck_tile::Rmsnorm2dFwdTraits<Pads, false, false, TwoPasses, Added, ck_tile::Rmsnorm2dFusedQuantEnum::NO_SWEEP,
                                ck_tile::Rmsnorm2dSensitiveEnum::NO_SPECIFIC_MODEL>;
#else  // CK 1.1
template <bool Pads, bool TwoPasses, ck_tile::Rmsnorm2dFusedAddEnum Added>
using RmsTraits =
    ck_tile::Rmsnorm2dFwdTraits<Pads, false, false, TwoPasses, Added, ck_tile::Rmsnorm2dFusedQuantEnum::NO_SWEEP>;
#endif

template <class X, class Weight, class Tile, bool Pads, bool TwoPasses, ck_tile::Rmsnorm2dFusedAddEnum Added>
using RmsProblem = ck_tile::Rmsnorm2dFwdPipelineProblem<X, Weight, float, X, float, X, float, float, Tile,
                                                        RmsTraits<Pads, TwoPasses, Added>>;

// Adds, rounds the sum to its type, stores it, and normalises what was stored. CK's own pipelines take the root mean
// square of the sum before it is rounded, which is another function than the op's.
template <class Problem_>
struct AddThenNormalise {
  using Problem = Problem_;
  using Policy = ck_tile::Rmsnorm2dFwdPipelineDefaultPolicy;
  using Compute = typename Problem::ComputeDataType;
  using X = typename Problem::XDataType;

  CK_TILE_HOST_DEVICE static constexpr ck_tile::index_t GetSmemSize() { return Policy::template GetSmemSize<Problem>(); }

  template <class XWindow, class ResidualWindow, class GainWindow, class YWindow, class SumWindow, class Unused1,
            class Unused2, class Unused3, class Unused4, class End>
  CK_TILE_DEVICE void operator()(const XWindow& x_at, const ResidualWindow& residual_at, const GainWindow& gain_at,
                                 YWindow& y_at, const SumWindow& sum_at, Unused1&, const Unused2&, Unused3&, Unused4&,
                                 Compute eps, ck_tile::index_t columns, void* lds, End) const {
    const auto rows_tile = Policy::template MakeXBlockTileDistribution<Problem>();
    const auto x = ck_tile::load_tile(ck_tile::make_tile_window(x_at, rows_tile));
    const auto residual = ck_tile::load_tile(ck_tile::make_tile_window(residual_at, rows_tile));
    const auto gain = ck_tile::load_tile(
        ck_tile::make_tile_window(gain_at, Policy::template MakeGammaBlockTileDistribution<Problem>()));

    auto added = ck_tile::cast_tile<Compute>(x);
    ck_tile::sweep_tile(added, [&](auto at) { added(at) += ck_tile::type_convert<Compute>(residual[at]); });
    const auto sum = ck_tile::cast_tile<X>(added);
    auto sum_window = ck_tile::make_tile_window(sum_at, rows_tile);
    ck_tile::store_tile(sum_window, sum);

    auto values = ck_tile::cast_tile<Compute>(sum);
    const auto square_add = ck_tile::ReduceOp::SquareAdd{};
    const auto add = ck_tile::ReduceOp::Add{};
    auto squares = Policy::template GetBlockReduce2d<Problem>()(
        values, square_add.template GetIdentityValue<Compute>(), square_add);
    Policy::template GetBlockReduce2dSync<Problem>()(squares, add);
    Policy::template GetBlockReduce2dCrossWarpSync<Problem>()(squares, lds, add);
    ck_tile::sweep_tile(values, [&](auto at) {
      constexpr auto row = ck_tile::make_tuple(at[ck_tile::number<0>{}]);
      constexpr auto column = ck_tile::make_tuple(at[ck_tile::number<1>{}]);
      values(at) *= rsqrtf(squares[row] / columns + eps) * ck_tile::type_convert<Compute>(gain[column]);
    });
    End{}(y_at, values, nullptr);
  }
};

template <class X, class Weight, class Tile, bool Pads, bool TwoPasses>
struct RmsNorm {
  using Problem = RmsProblem<X, Weight, Tile, Pads, TwoPasses, ck_tile::Rmsnorm2dFusedAddEnum::NO_ADD>;
  using Pipeline = std::conditional_t<TwoPasses, ck_tile::Rmsnorm2dFwdPipelineTwoPass<Problem>,
                                      ck_tile::Rmsnorm2dFwdPipelineOnePass<Problem>>;
  using Kernel = ck_tile::Rmsnorm2dFwd<Pipeline, Store<X, Pads>>;
};

template <class X, class Weight, class Tile, bool Pads, bool TwoPasses>
struct AddRmsNorm {
  static_assert(!TwoPasses, "a row is held whole");
  using Problem = RmsProblem<X, Weight, Tile, Pads, false, ck_tile::Rmsnorm2dFusedAddEnum::PRE_ADD_STORE>;
  using Kernel = ck_tile::Rmsnorm2dFwd<AddThenNormalise<Problem>, Store<X, Pads>>;
};

}  // namespace opmux_ck

#define OPMUX_CK_RMS_NORM(X, WEIGHT, ROWS, THREADS, REPEATS, VECTOR, PADS, TWO_PASSES)                               \
  OPMUX_CK_TILE(ROWS, THREADS, REPEATS, VECTOR)                                                                      \
  extern "C" __global__ __launch_bounds__(ROWS* THREADS) void rms_norm(                                              \
      const void* x, const void* weight, void* y, float eps, int rows, int columns, int x_stride, int y_stride,      \
      int, int, int) {                                                                                               \
    using Kernel = typename opmux_ck::RmsNorm<X, WEIGHT, Tile, PADS, TWO_PASSES>::Kernel;                            \
    typename Kernel::Kargs given{};                                                                                  \
    given.p_x = x;                                                                                                   \
    given.p_gamma = weight;                                                                                          \
    given.p_y = y;                                                                                                   \
    given.epsilon = eps;                                                                                             \
    given.m = rows;                                                                                                  \
    given.n = columns;                                                                                               \
    given.x_stride = x_stride;                                                                                       \
    given.y_stride = y_stride;                                                                                       \
    Kernel{}(given);                                                                                                 \
  }

#define OPMUX_CK_ADD_RMS_NORM(X, WEIGHT, ROWS, THREADS, REPEATS, VECTOR, PADS, TWO_PASSES)                           \
  OPMUX_CK_TILE(ROWS, THREADS, REPEATS, VECTOR)                                                                      \
  extern "C" __global__ __launch_bounds__(ROWS* THREADS) void add_rms_norm(                                          \
      const void* x, const void* residual, const void* weight, void* y, void* total, float eps, int rows,            \
      int columns, int x_stride, int residual_stride, int y_stride, int total_stride, int) {                         \
    using Kernel = typename opmux_ck::AddRmsNorm<X, WEIGHT, Tile, PADS, TWO_PASSES>::Kernel;                         \
    typename Kernel::Kargs given{};                                                                                  \
    given.p_x = x;                                                                                                   \
    given.p_x_residual = residual;                                                                                   \
    given.p_gamma = weight;                                                                                          \
    given.p_y = y;                                                                                                   \
    given.p_y_residual = total;                                                                                      \
    given.epsilon = eps;                                                                                             \
    given.m = rows;                                                                                                  \
    given.n = columns;                                                                                               \
    given.x_stride = x_stride;                                                                                       \
    given.xr_stride = residual_stride;                                                                               \
    given.y_stride = y_stride;                                                                                       \
    given.yr_stride = total_stride;                                                                                  \
    Kernel{}(given);                                                                                                 \
  }
