// Vector instructions that move values: between registers, and between the lanes of a wave (readlane, permlane, DPP's
// patterns, what counts the lanes below).
// CDNA3 ISA, section 6.4 and sections 12.8 to 12.10.
#include "vector.h"
#include <algorithm>

namespace {
void write_scalar(Wave& w, const Inst& i, int d, u32 x, u32 und) {
  write_s(w, i, d, x, und);
  w.valu_s[d] = w.slot;
  w.sflag[d] |= 2;
  if (d == EXEC || d == EXEC + 1) w.valu_exec = w.slot;
}
void readlane(Wave& w, const Inst& i) {
  start(w, i);
  u32 und = 0;
  u32 lane = scalar(w, i, i.src[1], 32, &und) & 63;
  alignas(64) u32 b[LANES];
  const u32* a = raw(w, i, 0, b, 32);
  write_scalar(w, i, i.dst, a[lane], w.und >> lane & 1 ? ~0u : 0);
}
void readfirstlane(Wave& w, const Inst& i) {
  start(w, i);
  alignas(64) u32 b[LANES];
  const u32* a = raw(w, i, 0, b, 32);
  u64 e = w.exec();
  int lane = e ? __builtin_ctzll(e) : 0;
  write_scalar(w, i, i.dst, a[lane], w.und >> lane & 1 ? ~0u : 0);
}
void writelane(Wave& w, const Inst& i) {
  start(w, i);
  u32 und = 0, other = 0;
  u32 x = scalar(w, i, i.src[0], 32, &und), lane = scalar(w, i, i.src[1], 32, &other) & 63;
  u32* d = write_v(w, i, i.dst);
  d[lane] = x;
  int r = i.dst - VGPR;
  w.vu[r] = (w.vu[r] & ~(1ull << lane)) | (u64)(und != 0) << lane;
  w.valu_v[r] = w.slot;
}
void swap(Wave& w, const Inst& i) {
  start(w, i);
  read_v(w, i, i.dst);
  read_v(w, i, i.src[0]);
  u32 *a = write_v(w, i, i.dst), *b = write_v(w, i, i.src[0]);
  for (int l = 0; l < LANES; l++)
    if (w.mask >> l & 1) std::swap(a[l], b[l]);
  u64 &ua = w.vu[i.dst - VGPR], &ub = w.vu[i.src[0] - VGPR], x = (ua ^ ub) & w.mask;
  ua ^= x;
  ub ^= x;
  w.valu_v[i.dst - VGPR] = w.valu_v[i.src[0] - VGPR] = w.slot;
}
template <int ROW>
void permlane_swap(Wave& w, const Inst& i) {  // CDNA4 ISA: V_PERMLANE16_SWAP, V_PERMLANE32_SWAP
  start(w, i);
  read_v(w, i, i.dst);
  read_v(w, i, i.src[0]);
  u32 *d = write_v(w, i, i.dst), *s = write_v(w, i, i.src[0]);
  u64 exec = w.exec();
  u64 &ud = w.vu[i.dst - VGPR], &us = w.vu[i.src[0] - VGPR];
  for (int l = 0; l < LANES; l++) {
    if (l & ROW) continue;
    int o = l | ROW;
    if (!(exec >> l & 1) && !(exec >> o & 1)) continue;
    std::swap(s[l], d[o]);
    u64 a = us >> l & 1, b = ud >> o & 1;
    us = (us & ~(1ull << l)) | b << l;
    ud = (ud & ~(1ull << o)) | a << o;
  }
  w.valu_v[i.dst - VGPR] = w.valu_v[i.src[0] - VGPR] = w.slot;
}
void mov_b64(Wave& w, const Inst& i) {
  if (i.variant == DPP16) {
    unary<u64, u64>(w, i, [](u64 a) { return a; });
    return;
  }
  start(w, i);
  FETCH(u64, a, 0);
  u64 low = half_unwritten(w, i, 0, 0);
  w.und = half_unwritten(w, i, 0, 1);
  put64_halves(w, i, a, low);
}
void nop(Wave&, const Inst&) {}
// v_mbcnt: how many lanes below this one a mask has, of the lanes from `first` on.
void count_below(Wave& w, const Inst& i, int first) {
  int lane = 0;
  binary<u32, u32, u32>(w, i, [&](u32 a, u32 b) {
    int n = std::clamp(lane++ - first, 0, 32);
    u32 below = n < 32 ? (1u << n) - 1 : ~0u;
    return b + (u32)__builtin_popcount(a & below);
  });
}
}  // namespace

std::vector<Op> lane_ops() {
  return {
      // Moves.
      {"v_nop", nop, VALU, 0},
      ROW1("v_mov_b32", u32, u32, a),
      {"v_mov_b64", mov_b64, VALU, 0},
      ROW1("v_accvgpr_read", u32, u32, a),
      ROW1("v_accvgpr_write", u32, u32, a),
      ROW1("v_accvgpr_mov_b32", u32, u32, a),
      ROW1("v_accvgpr_read_b32", u32, u32, a),
      ROW1("v_accvgpr_write_b32", u32, u32, a),
      // Between lanes.
      {"v_readfirstlane_b32", readfirstlane, VALU, 0},
      {"v_readlane_b32", readlane, VALU, 0},
      {"v_writelane_b32", writelane, VALU, 0},
      {"v_swap_b32", swap, VALU, 0},
      {"v_permlane16_swap_b32", permlane_swap<16>, VALU, 0},
      {"v_permlane32_swap_b32", permlane_swap<32>, VALU, 0},
      ROW("v_mbcnt_lo_u32_b32", count_below(w, i, 0)),
      ROW("v_mbcnt_hi_u32_b32", count_below(w, i, 32)),
  };
}
