// A product of codes with a scale for each 128 of k in each row of x, and for each 128 x 128 of w, as a kernel of plain
// arguments. CK's tiles, windows and products of a workgroup; the loop over k is of this package, since CK's pipelines
// have blocks of scales on one side only.
#pragma once
#include "gemm.h"

namespace opmux_ck {

constexpr int scale_block = 128;

template <class X, class Out, int M, int N, int K, int WavesM, int WavesN, int Mfma, int MfmaK, int Store, bool PadsN,
          bool PadsK>
struct BlockScaledLinear {
  static_assert(K == scale_block && scale_block % N == 0, "a step of k has one scale of each row, a tile one of w");
  using Sum = std::conditional_t<std::is_same_v<X, ck_tile::int8_t>, ck_tile::int32_t, float>;
  using Shape = ck_tile::TileGemmShape<ck_tile::sequence<M, N, K>, ck_tile::sequence<WavesM, WavesN, 1>,
                                       ck_tile::sequence<Mfma, Mfma, MfmaK>>;
  using Partitioner = ck_tile::GemmSpatiallyLocalTilePartitioner<Shape, 8, 4>;
  // Transposed: a thread has sums of few rows, and loads few scales.
  using Traits = ck_tile::TileGemmUniversalTraits<false, PadsN, PadsK, false, RowMajor, ColumnMajor, RowMajor, true>;
  using Problem = ck_tile::UniversalGemmPipelineProblem<X, X, Sum, Shape, Traits,
                                                        ck_tile::GemmPipelineScheduler::Intrawave, true,
                                                        ck_tile::TailNumber::Full>;
  using Policy = ck_tile::UniversalGemmPipelineAgBgCrPolicy;
  using Steps = ck_tile::GemmPipelineAgBgCrImplBase<Problem, Policy>;
  using Product = ck_tile::remove_cvref_t<decltype(Policy::template GetBlockGemm<Problem>())>;
  using Part = decltype(Product::MakeCBlockTile());
  using Epilogue = Gathered<ck_tile::fp8_t, Out, M, N, WavesM, WavesN, Mfma, MfmaK, Store, true>;
  static constexpr int threads = WavesM * WavesN * 64;
  static_assert(Problem::kBlockSize == threads);
  static constexpr int lds_bytes =
      ck_tile::max(Policy::template GetSmemSize<Problem>(), ck_tile::index_t(Epilogue::GetSmemSize()));

  struct Arguments {
    const void *x, *w;
    const float *x_scale, *w_scale;
    void* out;
    int rows, n, k, x_stride, w_stride, out_stride, x_scale_row, x_scale_k, w_scale_row, w_scale_k;
  };

  // The scales of a step of k for the rows of the tile, where the sums of these rows are.
  static __device__ auto scales(const float* at, const Arguments& a, int m) {
    constexpr auto of_rows = ck_tile::make_static_tile_distribution(ck_tile::detail::make_reduce_tile_distribution_encoding(
        Part::get_tile_distribution().get_static_tile_distribution_encoding(), ck_tile::sequence<1>{}));
    const auto all = ck_tile::make_naive_tensor_view<ck_tile::address_space_enum::global>(
        at, ck_tile::make_tuple(a.rows), ck_tile::make_tuple(a.x_scale_row), ck_tile::number<1>{}, ck_tile::number<1>{});
    const auto padded =
        ck_tile::pad_tensor_view(all, ck_tile::make_tuple(ck_tile::number<M>{}), ck_tile::sequence<true>{});
    return ck_tile::load_tile(
        ck_tile::make_tile_window(padded, ck_tile::make_tuple(ck_tile::number<M>{}), {m}, of_rows));
  }

  // A tile of a matrix of codes, from the row `first`.
  template <int Rows, int Vector>
  static __device__ auto window(const void* codes, int rows, int k, int stride, int first) {
    const auto all = ck_tile::make_naive_tensor_view<ck_tile::address_space_enum::global>(
        static_cast<const X*>(codes), ck_tile::make_tuple(rows, k), ck_tile::make_tuple(stride, 1),
        ck_tile::number<Vector>{}, ck_tile::number<1>{});
    constexpr auto lengths = ck_tile::make_tuple(ck_tile::number<Rows>{}, ck_tile::number<K>{});
    return ck_tile::make_tile_window(ck_tile::pad_tensor_view(all, lengths, ck_tile::sequence<false, PadsK>{}), lengths,
                                     {first, 0});
  }

  static __device__ auto product(const Arguments& a, int m, int n, void* lds) {
    constexpr auto x_in_lds = ck_tile::make_static_tile_distribution(Product::MakeABlockDistributionEncode());
    constexpr auto w_in_lds = ck_tile::make_static_tile_distribution(Product::MakeBBlockDistributionEncode());
    const Steps steps;
    auto views = steps.GetABLdsTensorViews(lds);
    auto x = steps.GetAWindows(
        window<M, Policy::template GetVectorSizeA<Problem>()>(a.x, a.rows, a.k, a.x_stride, m),
        views.at(ck_tile::number<0>{}), x_in_lds);
    auto w = steps.GetBWindows(
        window<N, Policy::template GetVectorSizeB<Problem>()>(a.w, a.n, a.k, a.w_stride, n),
        views.at(ck_tile::number<1>{}), w_in_lds);
    constexpr ck_tile::number<0> from;
    constexpr ck_tile::number<1> to;
    constexpr ck_tile::number<2> local;
    const auto step = ck_tile::make_array(0, K);

    Product multiply;
    auto sums = ck_tile::cast_tile<float>(Product::MakeCBlockTile());
    ck_tile::clear_tile(sums);
    auto x_codes = ck_tile::load_tile(x.at(from));
    auto w_codes = ck_tile::load_tile(w.at(from));
    const float* w_scale = a.w_scale + static_cast<long>(n / scale_block) * a.w_scale_row;
    const int count = ck_tile::integer_divide_ceil(a.k, K);
    for (int i = 0; i < count; ++i) {
      const auto x_scales = scales(a.x_scale + static_cast<long>(i) * a.x_scale_k, a, m);
      const float scale = w_scale[static_cast<long>(i) * a.w_scale_k];
      if (i) ck_tile::block_sync_lds();  // the step before has been read
      ck_tile::store_tile(x.at(to), x_codes);
      ck_tile::store_tile(w.at(to), w_codes);
      if (i + 1 < count) {
        ck_tile::move_tile_window(x.at(from), step);
        ck_tile::move_tile_window(w.at(from), step);
        x_codes = ck_tile::load_tile(x.at(from));
        w_codes = ck_tile::load_tile(w.at(from));
      }
      ck_tile::block_sync_lds();
      auto part = Product::MakeCBlockTile();
      ck_tile::clear_tile(part);
      multiply.LocalPrefetch(x.at(local), w.at(local));
      multiply(part, x.at(local), w.at(local));
      constexpr auto spans = Part::get_distributed_spans();
      ck_tile::sweep_tile_span(spans[ck_tile::number<0>{}], [&](auto row) {
        const float both = x_scales[ck_tile::make_tuple(row)] * scale;
        ck_tile::sweep_tile_span(spans[ck_tile::number<1>{}], [&](auto column) {
          constexpr auto at = ck_tile::make_tuple(row, column);
          sums(at) += ck_tile::type_convert<float>(part[at]) * both;
        });
      });
    }
    return sums;
  }

  static __device__ void run(const Arguments& a) {
    const auto [tile_m, tile_n] =
        Partitioner{a.rows, a.n}.GetOutputTileIndex(ck_tile::amd_wave_read_first_lane(blockIdx.x));
    run_tile(a, ck_tile::amd_wave_read_first_lane(tile_m * M), ck_tile::amd_wave_read_first_lane(tile_n * N));
  }

  // The tile whose first row and column these are.
  static __device__ void run_tile(const Arguments& a, int m, int n) {
    __shared__ char lds[lds_bytes];
    const auto sums = product(a, m, n, lds);
    const auto all = ck_tile::make_naive_tensor_view<ck_tile::address_space_enum::global>(
        static_cast<Out*>(a.out), ck_tile::make_tuple(a.rows, a.n), ck_tile::make_tuple(a.out_stride, 1),
        ck_tile::number<Epilogue::GetVectorSizeC()>{}, ck_tile::number<1>{});
    constexpr auto lengths = ck_tile::make_tuple(ck_tile::number<M>{}, ck_tile::number<N>{});
    auto out = ck_tile::make_tile_window(ck_tile::pad_tensor_view(all, lengths, ck_tile::sequence<false, PadsN>{}),
                                         lengths, {m, n});
    ck_tile::block_sync_lds();  // the last step has been read; the sums are gathered in the same LDS
    Epilogue{}(out, sums, ck_tile::tuple<>{}, lds);
  }
};

}  // namespace opmux_ck

#define OPMUX_CK_BLOCK_SCALED_LINEAR(X, OUT, M, N, K, WAVES_M, WAVES_N, MFMA, MFMA_K, STORE, PADS_N, PADS_K)            \
  extern "C" __global__ __launch_bounds__(WAVES_M* WAVES_N * 64) void block_scaled_linear(                            \
      const void* x, const void* w, const float* x_scale, const float* w_scale, void* out, int rows, int n, int k,    \
      int x_stride, int w_stride, int out_stride, int x_scale_row, int x_scale_k, int w_scale_row, int w_scale_k,     \
      int, int, int, int, int, int) {                                                                                 \
    using Of = opmux_ck::BlockScaledLinear<X, OUT, M, N, K, WAVES_M, WAVES_N, MFMA, MFMA_K, STORE, PADS_N, PADS_K>;   \
    Of::run({x, w, x_scale, w_scale, out, rows, n, k, x_stride, w_stride, out_stride, x_scale_row, x_scale_k,         \
             w_scale_row, w_scale_k});                                                                                \
  }
