// What the kernels of attention's forward share: CK's tile of a workgroup, and how exponentials are taken.
#pragma once
#include <hip/hip_runtime.h>

#define CK_TILE_FMHA_FWD_FAST_EXP2 1  // exponentials of base 2: the scale comes times log2(e)
// A score times the scale, less the largest score times the scale: in one fused operation, the largest gives what was lost
// in rounding instead of 0, and large scores an infinity.
#pragma clang fp contract(off)
#include "ck_tile/core.hpp"
#include "ck_tile/ops/common.hpp"
#include "ck_tile/ops/epilogue.hpp"
#include "ck_tile/ops/fmha/block/block_attention_bias_enum.hpp"
#include "ck_tile/ops/fmha/block/block_dropout.hpp"
#include "ck_tile/ops/fmha/block/block_masking.hpp"
#include "ck_tile/ops/fmha/block/block_position_encoding.hpp"
#include "ck_tile/ops/fmha/block/variants.hpp"
#include "ck_tile/ops/fmha/pipeline/block_fmha_pipeline_problem.hpp"
#include "ck_tile/ops/fmha/pipeline/tile_fmha_shape.hpp"
#include "ck_tile/ops/fmha/pipeline/tile_fmha_traits.hpp"

namespace opmux_ck {

// `Queries` and `Keys` of a tile, which advances by `DimStep` of `HeadDim` in the first product and by `KeyStep` of the keys
// in the second; `Waves` share the queries.
template <int Queries, int Keys, int DimStep, int ValueDim, int KeyStep, int HeadDim, int Waves, int Mfma, int MfmaK>
using AttentionTile =
    ck_tile::TileFmhaShape<ck_tile::sequence<Queries, Keys, DimStep, ValueDim, KeyStep, HeadDim>,
                           ck_tile::sequence<Waves, 1, 1>, ck_tile::sequence<Mfma, Mfma, MfmaK>,
                           ck_tile::sequence<Waves, 1, 1>, ck_tile::sequence<Mfma, Mfma, MfmaK>, true>;

// What CK composes a variant of scores by: plain ones, or with their absolute value capped.
template <bool Capped>
using Scores = ck_tile::ComposedAttention<Capped ? ck_tile::LOGITS_SOFT_CAP : 0, true>;

}  // namespace opmux_ck
