// What the templates of norms share.
#pragma once
#include "compat.h"

namespace opmux_ck {

// The end of a norm: rounds to the result's type and stores.
template <class Y, bool Pads>
using Store = ck_tile::Default2DEpilogue<ck_tile::Default2DEpilogueProblem<float, Y, false, Pads, false>>;

}  // namespace opmux_ck

// The launching code counts threads and rows of a workgroup by itself, and must arrive at what CK does.
#define OPMUX_CK_TILE(ROWS, THREADS, REPEATS, VECTOR)                                                \
  using Tile = opmux_ck::RowTile<ROWS, THREADS, REPEATS, VECTOR>;                                    \
  static_assert(Tile::BlockSize == ROWS * THREADS && Tile::Block_M == ROWS && Tile::Repeat_M == 1);
