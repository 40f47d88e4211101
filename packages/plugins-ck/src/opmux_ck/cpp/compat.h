// What differs between versions of CK, and nothing else: the templates include this header first and write against CK 1.2.
// An older CK, as of the middle of 2025, is told by what it lacks, since its sources do not always state a version.
#pragma once
#include <hip/hip_runtime.h>

#include <cstring>

#if !__has_include("ck_tile/ops/gemm_quant.hpp")
#define OPMUX_CK_OLDER 1
#endif

#if defined(OPMUX_CK_OLDER) && defined(OPMUX_DEVICE)
// Names of HIP that the older headers use, where hip_subset stands for HIP.
OPMUX_DEVICE void* memcpy(void* to, const void* from, size_t count) { return __builtin_memcpy(to, from, count); }
__device__ constexpr int warpSize = 64;
OPMUX_DEVICE unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  return __builtin_amdgcn_perm(high, low, selector);
}
#endif

#include "ck_tile/core.hpp"
#include "ck_tile/ops/common.hpp"
#include "ck_tile/ops/elementwise/unary_element_wise_operation.hpp"
#include "ck_tile/ops/epilogue.hpp"

#ifdef OPMUX_CK_OLDER
namespace ck_tile {
// What all lanes of a wave agree on, in a scalar register.
CK_TILE_DEVICE int amd_wave_read_first_lane(int value) { return __builtin_amdgcn_readfirstlane(value); }
}  // namespace ck_tile
#endif

namespace opmux_ck {

// A tile of rows: `Rows` rows of `Threads` threads each, of which every one has `Repeats` vectors of `Vector` elements.
#ifdef OPMUX_CK_OLDER
template <int Rows, int Threads, int Repeats, int Vector>
using RowTile = ck_tile::Generic2dBlockShape<ck_tile::sequence<Rows, Threads * Repeats * Vector>,
                                             ck_tile::sequence<Rows, Threads / 64>, ck_tile::sequence<1, 64 * Vector>,
                                             ck_tile::sequence<1, Vector>>;
#else
template <int Rows, int Threads, int Repeats, int Vector>
using RowTile = ck_tile::Generic2dBlockShape<ck_tile::sequence<Rows, Threads * Repeats * Vector>,
                                             ck_tile::sequence<Rows, Threads>, ck_tile::sequence<1, Vector>>;
#endif

// The end of a product that rounds the sums, gathers rows of them in LDS, and stores.
template <class X, class Out, int M, int N, int WavesM, int WavesN, int Mfma, int MfmaK, int Store, bool Transposed = false>
using Gathered = ck_tile::CShuffleEpilogue<ck_tile::CShuffleEpilogueProblem<
    X, X, ck_tile::tuple<>, float, Out, ck_tile::tuple<>, ck_tile::tensor_layout::gemm::RowMajor,
    ck_tile::element_wise::PassThrough,
#ifdef OPMUX_CK_OLDER
    WavesM * WavesN * 64,
#endif
    M, N, WavesM, WavesN, Mfma, Mfma, MfmaK, Transposed, ck_tile::memory_operation_enum::set, 1, true, Store>>;

#ifdef OPMUX_CK_OLDER
template <class Kernel>
constexpr int threads_of = Kernel::KernelBlockSize;
#else
template <class Kernel>
constexpr int threads_of = Kernel::kBlockSize;

// The end of a product that adds a bias before it rounds, and stores from registers; an older CK has none that adds.
template <class X, class Out, class Add, int M, int N, bool PadsN, int Mfma, int MfmaK, bool Transposed>
using Added = ck_tile::DefaultGemm2DEpilogue<ck_tile::DefaultGemm2DEpilogueProblem<
    X, X, ck_tile::tuple<Out>, float, Out, ck_tile::tuple<ck_tile::tensor_layout::gemm::RowMajor>,
    ck_tile::tensor_layout::gemm::RowMajor, Add, M, N, false, PadsN, Mfma, Mfma, MfmaK, Transposed, false>>;
#endif

}  // namespace opmux_ck
