// CK's root-mean-square norm as a kernel of plain arguments: an instance is a line that names its template arguments.
#pragma once
#include <hip/hip_runtime.h>

#include "ck_tile/core.hpp"
#include "ck_tile/ops/rmsnorm2d.hpp"
#include "ck_tile/ops/epilogue.hpp"

namespace opmux_ck {

// A tile of rows: `Rows` rows of `Threads` threads each, of which every one has `Repeats` vectors of `Vector` elements.
template <int Rows, int Threads, int Repeats, int Vector>
using RowTile = ck_tile::Generic2dBlockShape<ck_tile::sequence<Rows, Threads * Repeats * Vector>,
                                             ck_tile::sequence<Rows, Threads>, ck_tile::sequence<1, Vector>>;

#if __has_include("ck_tile/ops/rmsnorm2d/pipeline/rmsnorm2d_fwd_pipeline_model_sensitive_pass.hpp")
template <bool Pads, bool TwoPasses>
using NormTraits = ck_tile::Rmsnorm2dFwdTraits<Pads, false, false, TwoPasses, ck_tile::Rmsnorm2dFusedAddEnum::NO_ADD,
                                               ck_tile::Rmsnorm2dFusedQuantEnum::NO_SWEEP,
                                               ck_tile::Rmsnorm2dSensitiveEnum::NO_SPECIFIC_MODEL>;
#else  // CK 1.1
template <bool Pads, bool TwoPasses>
using NormTraits = ck_tile::Rmsnorm2dFwdTraits<Pads, false, false, TwoPasses, ck_tile::Rmsnorm2dFusedAddEnum::NO_ADD,
                                               ck_tile::Rmsnorm2dFusedQuantEnum::NO_SWEEP>;
#endif

template <class X, class Weight, class Tile, bool Pads, bool TwoPasses>
struct RmsNorm {
  using Problem = ck_tile::Rmsnorm2dFwdPipelineProblem<X, Weight, float, X, float, X, float, float, Tile,
                                                       NormTraits<Pads, TwoPasses>>;
  using Pipeline = std::conditional_t<TwoPasses, ck_tile::Rmsnorm2dFwdPipelineTwoPass<Problem>,
                                      ck_tile::Rmsnorm2dFwdPipelineOnePass<Problem>>;
  using Epilogue = ck_tile::Default2DEpilogue<ck_tile::Default2DEpilogueProblem<float, X, false, Pads, false>>;
  using Kernel = ck_tile::Rmsnorm2dFwd<Pipeline, Epilogue>;
};

}  // namespace opmux_ck

// Strides are those of rows, in elements. The launching code counts threads and rows of a workgroup by itself: it must be
// of one mind with CK.
#define OPMUX_CK_RMS_NORM(X, WEIGHT, ROWS, THREADS, REPEATS, VECTOR, PADS, TWO_PASSES)                                \
  using Tile = opmux_ck::RowTile<ROWS, THREADS, REPEATS, VECTOR>;                                                    \
  static_assert(Tile::BlockSize == ROWS * THREADS && Tile::Block_M == ROWS && Tile::Repeat_M == 1);                  \
  extern "C" __global__ __launch_bounds__(ROWS* THREADS) void rms_norm(                                              \
      const void* x, const void* weight, void* y, float eps, int rows, int columns, int x_stride, int y_stride) {    \
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
