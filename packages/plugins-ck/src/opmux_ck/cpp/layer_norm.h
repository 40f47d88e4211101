// CK's layer norm as a kernel of plain arguments. Strides are those of rows, in elements; the arguments
// without a name fill the scalars up to eight.
#pragma once
#include "rows.h"

#include "ck_tile/ops/layernorm2d.hpp"

namespace opmux_ck {

template <class X, class Weight, class Tile, bool Pads, bool TwoPasses, ck_tile::Layernorm2dFusedAddEnum Added>
struct LayerProblem {
  static constexpr bool saves = false, divides_fast = false, welford = true;
  using Traits = ck_tile::Layernorm2dFwdTraits<Pads, saves, divides_fast, welford, TwoPasses,
                                               ck_tile::Layernorm2dXBiasEnum::NO_BIAS, Added,
                                               ck_tile::Layernorm2dFusedQuantEnum::NO_SWEEP>;
  using Type = ck_tile::Layernorm2dFwdPipelineProblem<X, X, Weight, Weight, float, X, float, float, float, float, Tile,
                                                      Traits>;
};

// Adds, rounds the sum to its type, stores it, and normalises what was stored; CK's own pipeline normalises the sum as it
// is before it is rounded.
template <class Problem_>
struct AddThenStandardise {
  using Problem = Problem_;
  using Policy = ck_tile::Layernorm2dFwdPipelineDefaultPolicy;
  using X = typename Problem::XDataType;

  CK_TILE_HOST_DEVICE static constexpr ck_tile::index_t GetSmemSize() { return Policy::template GetSmemSize<Problem>(); }

  template <class XWindow, class ResidualWindow, class Unused1, class GainWindow, class ShiftWindow, class YWindow,
            class SumWindow, class Unused2, class Unused3, class Unused4, class Unused5, class End>
  CK_TILE_DEVICE void operator()(const XWindow& x_at, const ResidualWindow& residual_at, const Unused1&,
                                 const GainWindow& gain_at, const ShiftWindow& shift_at, YWindow& y_at,
                                 const SumWindow& sum_at, Unused2&, Unused3&, const Unused4&, Unused5&, float eps,
                                 ck_tile::index_t columns, void* lds, End) const {
    const auto rows_tile = Policy::template MakeXBlockTileDistribution<Problem>();
    const auto columns_tile = Policy::template MakeGammaBetaBlockTileDistribution<Problem>();
    const auto x = ck_tile::load_tile(ck_tile::make_tile_window(x_at, rows_tile));
    const auto residual = ck_tile::load_tile(ck_tile::make_tile_window(residual_at, rows_tile));
    const auto gain = ck_tile::load_tile(ck_tile::make_tile_window(gain_at, columns_tile));
    const auto shift = ck_tile::load_tile(ck_tile::make_tile_window(shift_at, columns_tile));

    auto added = ck_tile::cast_tile<float>(x);
    ck_tile::sweep_tile(added, [&](auto at) { added(at) += ck_tile::type_convert<float>(residual[at]); });
    const auto sum = ck_tile::cast_tile<X>(added);
    auto sum_window = ck_tile::make_tile_window(sum_at, rows_tile);
    ck_tile::store_tile(sum_window, sum);

    auto values = ck_tile::cast_tile<float>(sum);
    auto reduce = Policy::template GetBlockNormReduce<Problem>();
    auto mean = reduce.template MakeMeanVarBlockTile<decltype(values)>();
    auto variance = reduce.template MakeMeanVarBlockTile<decltype(values)>();
    ck_tile::clear_tile(mean);
    ck_tile::clear_tile(variance);
    int count = 0;
    const int most = ck_tile::block_tile_welford_calculate_max_count<typename Problem::BlockShape>(columns);
    reduce(values, mean, variance, count, most);
    Policy::template GetBlockNormReduceSync<Problem>()(mean, variance, count);
    Policy::template GetBlockNormReduceCrossWarpSync<Problem>()(mean, variance, count, lds);
    ck_tile::block_tile_welford_post_scale_var(variance, count, ck_tile::constant<false>{});
    ck_tile::sweep_tile(values, [&](auto at) {
      constexpr auto row = ck_tile::make_tuple(at[ck_tile::number<0>{}]);
      constexpr auto column = ck_tile::make_tuple(at[ck_tile::number<1>{}]);
      values(at) = (values[at] - mean[row]) * rsqrtf(variance[row] + eps) * ck_tile::type_convert<float>(gain[column]) +
                   ck_tile::type_convert<float>(shift[column]);
    });
    End{}(y_at, values, nullptr);
  }
};

template <class X, class Weight, class Tile, bool Pads, bool TwoPasses>
struct LayerNorm {
  using Problem =
      typename LayerProblem<X, Weight, Tile, Pads, TwoPasses, ck_tile::Layernorm2dFusedAddEnum::NO_ADD>::Type;
  using Pipeline = std::conditional_t<TwoPasses, ck_tile::Layernorm2dFwdPipelineTwoPass<Problem>,
                                      ck_tile::Layernorm2dFwdPipelineOnePass<Problem>>;
  using Kernel = ck_tile::Layernorm2dFwd<Pipeline, Store<X, Pads>>;
};

template <class X, class Weight, class Tile, bool Pads, bool TwoPasses>
struct AddLayerNorm {
  static_assert(!TwoPasses, "a row is held whole");
  using Problem =
      typename LayerProblem<X, Weight, Tile, Pads, false, ck_tile::Layernorm2dFusedAddEnum::PRE_ADD_STORE>::Type;
  using Kernel = ck_tile::Layernorm2dFwd<AddThenStandardise<Problem>, Store<X, Pads>>;
};

}  // namespace opmux_ck

#define OPMUX_CK_LAYER_NORM(X, WEIGHT, ROWS, THREADS, REPEATS, VECTOR, PADS, TWO_PASSES)                             \
  OPMUX_CK_TILE(ROWS, THREADS, REPEATS, VECTOR)                                                                      \
  extern "C" __global__ __launch_bounds__(ROWS* THREADS) void layer_norm(                                            \
      const void* x, const void* weight, const void* bias, void* y, float eps, int rows, int columns, int x_stride,  \
      int y_stride, int, int, int) {                                                                                 \
    using Kernel = typename opmux_ck::LayerNorm<X, WEIGHT, Tile, PADS, TWO_PASSES>::Kernel;                          \
    typename Kernel::Kargs given{};                                                                                  \
    given.p_x = x;                                                                                                   \
    given.p_gamma = weight;                                                                                          \
    given.p_beta = bias;                                                                                             \
    given.p_y = y;                                                                                                   \
    given.epsilon = eps;                                                                                             \
    given.m = rows;                                                                                                  \
    given.n = columns;                                                                                               \
    given.x_stride = x_stride;                                                                                       \
    given.y_stride = y_stride;                                                                                       \
    Kernel{}(given);                                                                                                 \
  }

#define OPMUX_CK_ADD_LAYER_NORM(X, WEIGHT, ROWS, THREADS, REPEATS, VECTOR, PADS, TWO_PASSES)                         \
  OPMUX_CK_TILE(ROWS, THREADS, REPEATS, VECTOR)                                                                      \
  extern "C" __global__ __launch_bounds__(ROWS* THREADS) void add_layer_norm(                                        \
      const void* x, const void* residual, const void* weight, const void* bias, void* y, void* total, float eps,    \
      int rows, int columns, int x_stride, int residual_stride, int y_stride, int total_stride, int) {               \
    using Kernel = typename opmux_ck::AddLayerNorm<X, WEIGHT, Tile, PADS, TWO_PASSES>::Kernel;                       \
    typename Kernel::Kargs given{};                                                                                  \
    given.p_x = x;                                                                                                   \
    given.p_x_residual = residual;                                                                                   \
    given.p_gamma = weight;                                                                                          \
    given.p_beta = bias;                                                                                             \
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
