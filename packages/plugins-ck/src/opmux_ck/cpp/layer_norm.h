// CK's layer norm as a kernel of plain arguments. Strides are those of rows, in elements; the arguments
// without a name fill the scalars up to eight.
#pragma once
#include "rows.h"

#include "ck_tile/ops/layernorm2d.hpp"

namespace opmux_ck {

template <class X, class Weight, class Tile, bool Pads, bool TwoPasses>
struct LayerNorm {
  static constexpr bool saves = false, divides_fast = false, welford = true;
  using Traits = ck_tile::Layernorm2dFwdTraits<Pads, saves, divides_fast, welford, TwoPasses,
                                               ck_tile::Layernorm2dXBiasEnum::NO_BIAS,
                                               ck_tile::Layernorm2dFusedAddEnum::NO_ADD,
                                               ck_tile::Layernorm2dFusedQuantEnum::NO_SWEEP>;
  using Problem = ck_tile::Layernorm2dFwdPipelineProblem<X, X, Weight, Weight, float, X, float, float, float, float,
                                                         Tile, Traits>;
  using Pipeline = std::conditional_t<TwoPasses, ck_tile::Layernorm2dFwdPipelineTwoPass<Problem>,
                                      ck_tile::Layernorm2dFwdPipelineOnePass<Problem>>;
  using Kernel = ck_tile::Layernorm2dFwd<Pipeline, Store<X, Pads>>;
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
