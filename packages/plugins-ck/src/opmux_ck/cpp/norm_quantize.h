// A root-mean-square norm whose result is quantised before it is stored, as kernels of plain arguments: CK's tiles,
// windows and reductions, and an end of this package. CK's own dynamic quantisation truncates to int8, and a row of zeros
// gets the scale 0. Strides are those of rows, in elements.
#pragma once
#include "rms_norm.h"

namespace opmux_ck {

struct QuantisedRows {
  const void *x, *residual, *weight;
  void *q, *total;
  float *scales, eps;
  int rows, columns, x_stride, residual_stride, q_stride, total_stride;
};

// `Block` columns of a row share a scale; 0 is all of them.
template <class X, class Weight, class Code, class Tile, bool Pads, bool Adds, int Block>
struct NormThenQuantise {
  static constexpr auto added =
      Adds ? ck_tile::Rmsnorm2dFusedAddEnum::PRE_ADD_STORE : ck_tile::Rmsnorm2dFusedAddEnum::NO_ADD;
  using Problem = RmsProblem<X, Weight, Tile, Pads, false, added>;
  using Policy = ck_tile::Rmsnorm2dFwdPipelineDefaultPolicy;
  static constexpr bool whole = std::is_same_v<Code, ck_tile::int8_t>;
  static constexpr float largest = whole ? 127.f : CK_TILE_USE_OCP_FP8 ? 448.f : 240.f;
  static constexpr int vector = Tile::Vector_N, repeats = Tile::Repeat_N, threads = Tile::Block_N / (vector * repeats);
  static constexpr int sharers = Block / vector;  // threads side by side that share a scale
  static_assert(sharers <= 64 && (sharers & (sharers - 1)) == 0 && (Block == 0 || sharers > 0));

  // The rows of the workgroup in a matrix.
  template <class T>
  static __device__ auto window(T* matrix, int stride, const QuantisedRows& a) {
    constexpr auto lengths = ck_tile::make_tuple(ck_tile::number<Tile::Block_M>{}, ck_tile::number<Tile::Block_N>{});
    const auto all = ck_tile::make_naive_tensor_view<ck_tile::address_space_enum::global>(
        matrix, ck_tile::make_tuple(a.rows, a.columns), ck_tile::make_tuple(stride, 1), ck_tile::number<vector>{},
        ck_tile::number<1>{});
    return ck_tile::make_tile_window(
        ck_tile::pad_tensor_view(all, lengths, ck_tile::sequence<false, Pads>{}), lengths,
        {static_cast<int>(blockIdx.x) * Tile::Block_M, 0}, Policy::template MakeXBlockTileDistribution<Problem>());
  }

  static __device__ auto gain(const QuantisedRows& a) {
    constexpr auto lengths = ck_tile::make_tuple(ck_tile::number<Tile::Block_N>{});
    const auto all = ck_tile::make_naive_tensor_view<ck_tile::address_space_enum::global>(
        static_cast<const Weight*>(a.weight), ck_tile::make_tuple(a.columns), ck_tile::make_tuple(1),
        ck_tile::number<vector>{}, ck_tile::number<1>{});
    return ck_tile::load_tile(
        ck_tile::make_tile_window(ck_tile::pad_tensor_view(all, lengths, ck_tile::sequence<Pads>{}), lengths, {0},
                                  Policy::template MakeGammaBlockTileDistribution<Problem>()));
  }

  // x, or its sum with the residual, which is rounded and stored first; in float32.
  static __device__ auto values(const QuantisedRows& a) {
    auto found = ck_tile::cast_tile<float>(ck_tile::load_tile(window(static_cast<const X*>(a.x), a.x_stride, a)));
    if constexpr (Adds) {
      const auto residual = ck_tile::load_tile(window(static_cast<const X*>(a.residual), a.residual_stride, a));
      ck_tile::sweep_tile(found, [&](auto at) { found(at) += ck_tile::type_convert<float>(residual[at]); });
      const auto sum = ck_tile::cast_tile<X>(found);
      auto total = window(static_cast<X*>(a.total), a.total_stride, a);
      ck_tile::store_tile(total, sum);
      return ck_tile::cast_tile<float>(sum);
    } else {
      return found;
    }
  }

  // Reduces rows over the workgroup; LDS may be in use by the reduction before.
  template <class Values, class Within, class Across>
  static __device__ auto reduced(const Values& values, const Within& within, const Across& across, void* lds) {
    auto found = Policy::template GetBlockReduce2d<Problem>()(values, 0.f, within);
    Policy::template GetBlockReduce2dSync<Problem>()(found, across);
    ck_tile::block_sync_lds();
    Policy::template GetBlockReduce2dCrossWarpSync<Problem>()(found, lds, across);
    return found;
  }

  static __device__ float scale_of(float amax) {
    const float scale = amax / largest;
    return scale == 0.f ? 1.f : scale;
  }

  static __device__ void store_scale(float scale, int row, int block, int blocks, const QuantisedRows& a) {
    if (row < a.rows && block < blocks) a.scales[static_cast<long>(row) * blocks + block] = scale;
  }

  // The scale of each vector of the thread. NaN is ignored.
  template <class Values>
  static __device__ auto scales(const Values& values, const QuantisedRows& a, void* lds) {
    const auto wider = [](float size, float value) { return ck_tile::abs(value) > size ? ck_tile::abs(value) : size; };
    const int row = blockIdx.x * Tile::Block_M + threadIdx.x / threads, thread = threadIdx.x % threads;
    ck_tile::array<float, repeats> found;
    if constexpr (Block == 0) {
      const float scale = scale_of(reduced(values, wider, wider, lds).get_thread_buffer()[ck_tile::number<0>{}]);
      if (thread == 0) store_scale(scale, row, 0, 1, a);
      ck_tile::static_for<0, repeats, 1>{}([&](auto r) { found(r) = scale; });
    } else {
      const int blocks = ck_tile::integer_divide_ceil(a.columns, Block);
      ck_tile::static_for<0, repeats, 1>{}([&](auto r) {
        float amax = 0;
        ck_tile::static_for<0, vector, 1>{}([&](auto v) {
          amax = wider(amax, values.get_thread_buffer()[ck_tile::number<r * vector + v>{}]);
        });
#pragma unroll
        for (int other = 1; other < sharers; other *= 2)
          amax = wider(amax, ck_tile::warp_shuffle(amax, ck_tile::get_lane_id() ^ other));
        found(r) = scale_of(amax);
        if (thread % sharers == 0) store_scale(found[r], row, (r * threads + thread) / sharers, blocks, a);
      });
    }
    return found;
  }

  static __device__ void run(const QuantisedRows& a) {
    __shared__ char lds[Policy::template GetSmemSize<Problem>()];
    const auto gains = gain(a);
    auto rows = values(a);
    const auto add = ck_tile::ReduceOp::Add{};
    const auto squares = reduced(rows, ck_tile::ReduceOp::SquareAdd{}, add, lds);
    ck_tile::sweep_tile(rows, [&](auto at) {
      constexpr auto row = ck_tile::make_tuple(at[ck_tile::number<0>{}]);
      constexpr auto column = ck_tile::make_tuple(at[ck_tile::number<1>{}]);
      rows(at) = rows[at] * rsqrtf(squares[row] / a.columns + a.eps) * ck_tile::type_convert<float>(gains[column]);
    });
    const auto by = scales(rows, a, lds);
    ck_tile::static_for<0, repeats * vector, 1>{}([&](auto i) {
      const float code = rows.get_thread_buffer()[i] / by[ck_tile::number<i / vector>{}];
      // Saturates; NaN stays as it is.
      rows.get_thread_buffer()(i) = code > largest ? largest : code < -largest ? -largest : code;
    });
    auto q = window(static_cast<Code*>(a.q), a.q_stride, a);
    if constexpr (whole) {
      const auto nearest = [](float code) { return static_cast<Code>(code == code ? __builtin_rintf(code) : 0.f); };
      ck_tile::store_tile(q, ck_tile::tile_elementwise_in(nearest, rows));
    } else {
      ck_tile::store_tile(q, ck_tile::cast_tile<Code>(rows));
    }
  }
};

}  // namespace opmux_ck

#define OPMUX_CK_RMS_NORM_QUANTIZE(X, WEIGHT, CODE, BLOCK, ROWS, THREADS, REPEATS, VECTOR, PADS, TWO_PASSES)          \
  OPMUX_CK_TILE(ROWS, THREADS, REPEATS, VECTOR)                                                                      \
  extern "C" __global__ __launch_bounds__(ROWS* THREADS) void rms_norm_quantize(                                     \
      const void* x, const void* weight, void* q, float* scales, float eps, int rows, int columns, int x_stride,     \
      int q_stride, int, int, int) {                                                                                 \
    opmux_ck::NormThenQuantise<X, WEIGHT, CODE, Tile, PADS, false, BLOCK>::run(                                      \
        {x, nullptr, weight, q, nullptr, scales, eps, rows, columns, x_stride, 0, q_stride, 0});                     \
  }

#define OPMUX_CK_ADD_RMS_NORM_QUANTIZE(X, WEIGHT, CODE, BLOCK, ROWS, THREADS, REPEATS, VECTOR, PADS, TWO_PASSES)      \
  OPMUX_CK_TILE(ROWS, THREADS, REPEATS, VECTOR)                                                                      \
  extern "C" __global__ __launch_bounds__(ROWS* THREADS) void add_rms_norm_quantize(                                 \
      const void* x, const void* residual, const void* weight, void* q, float* scales, void* total, float eps,       \
      int rows, int columns, int x_stride, int residual_stride, int q_stride, int total_stride, int) {               \
    opmux_ck::NormThenQuantise<X, WEIGHT, CODE, Tile, PADS, true, BLOCK>::run(                                       \
        {x, residual, weight, q, total, scales, eps, rows, columns, x_stride, residual_stride, q_stride,             \
         total_stride});                                                                                             \
  }
