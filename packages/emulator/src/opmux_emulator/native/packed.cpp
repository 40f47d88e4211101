// Packed math (VOP3P): two halves, two 16-bit integers or two floats at once; mixed precision; dot products.
// CDNA3 ISA, section 6.7 "Packed math" and section 12.12.
#include "vector.h"
#include <algorithm>

namespace {
// Half h (0 low, 1 high) of source k of a packed instruction.
struct Packed {
  const u32* p;
  u32 low, high, flip_low, flip_high;
};
Packed packed(Wave& w, const Inst& i, int k, u32* buffer, int float_bits) {
  const u32* p = raw(w, i, k, buffer, float_bits);
  return {p, i.opsel >> k & 1 ? 16u : 0u, i.opsel_hi >> k & 1 ? 16u : 0u, i.neg >> k & 1 ? 0x8000u : 0u,
          i.neg_hi >> k & 1 ? 0x8000u : 0u};
}
template <bool FLOAT, class F>
void packed2(Wave& w, const Inst& i, int sources, F f) {
  start(w, i);
  alignas(64) u32 b[3][LANES], r[LANES];
  Packed s[3];
  for (int k = 0; k < sources; k++) s[k] = packed(w, i, k, b[k], 16);
  for (int l = 0; l < LANES; l++) {
    u32 lo[3] = {}, hi[3] = {};
    for (int k = 0; k < sources; k++) {
      lo[k] = s[k].p[l] >> s[k].low & 0xffff;
      hi[k] = s[k].p[l] >> s[k].high & 0xffff;
      if (FLOAT) {
        lo[k] ^= s[k].flip_low;
        hi[k] ^= s[k].flip_high;
      }
    }
    r[l] = (f(lo[0], lo[1], lo[2]) & 0xffff) | f(hi[0], hi[1], hi[2]) << 16;
  }
  write_lanes(w, i, i.dst, r);
}
u32 clamp16(const Inst& i, float x) { return to_half(i.clamp ? clamped(x, true) : x); }
float h(u32 x) { return half((u16)x); }
i32 s16(u32 x) { return (i16)x; }
// Packed float32: each half of an operand is a whole register; op_sel picks which of the pair.
template <class F>
void packed32(Wave& w, const Inst& i, int sources, F f) {
  start(w, i);
  alignas(64) u64 s[3][LANES];
  alignas(64) u64 r[LANES];
  for (int k = 0; k < sources; k++) {
    int code = i.src[k];
    if (code >= VGPR || code < 128) raw64(w, i, k, s[k], false);
    else {
      u64 x = (u32)constant(w, i, code, 32);
      for (int l = 0; l < LANES; l++) s[k][l] = x << 32 | x;
    }
  }
  for (int l = 0; l < LANES; l++) {
    float v[2][3] = {};
    for (int k = 0; k < sources; k++) {
      float lo = f32((u32)(i.opsel >> k & 1 ? s[k][l] >> 32 : s[k][l])),
            hi = f32((u32)(i.opsel_hi >> k & 1 ? s[k][l] >> 32 : s[k][l]));
      v[0][k] = i.neg >> k & 1 ? -lo : lo;
      v[1][k] = i.neg_hi >> k & 1 ? -hi : hi;
      if (!(w.mode >> 4 & 1)) {
        v[0][k] = flush(v[0][k]);
        v[1][k] = flush(v[1][k]);
      }
    }
    float lo = f(v[0][0], v[0][1], v[0][2]), hi = f(v[1][0], v[1][1], v[1][2]);
    if (!(w.mode >> 5 & 1)) {
      lo = flush(lo);
      hi = flush(hi);
    }
    if (i.clamp) {
      lo = quiet_min(quiet_max(lo, 0.f), 1.f);
      hi = quiet_min(quiet_max(hi, 0.f), 1.f);
    }
    r[l] = (u64)b32(hi) << 32 | b32(lo);
  }
  u64 low = 0;
  w.und = 0;
  for (int k = 0; k < sources; k++) {
    low |= half_unwritten(w, i, k, i.opsel >> k & 1);
    w.und |= half_unwritten(w, i, k, i.opsel_hi >> k & 1);
  }
  put64_halves(w, i, r, low);
}
// op_sel picks the half of each source: of the first for the low result, of the second for the high one (CDNA3 ISA,
// V_PK_MOV_B32). op_sel_hi has no meaning: compilers copy a pair with op_sel:[0,1].
void pk_mov(Wave& w, const Inst& i) {
  start(w, i);
  alignas(64) u64 a[LANES], b[LANES], r[LANES];
  raw64(w, i, 0, a, false);
  raw64(w, i, 1, b, false);
  for (int l = 0; l < LANES; l++)
    r[l] = (u32)(i.opsel & 1 ? a[l] >> 32 : a[l]) | (i.opsel & 2 ? b[l] & ~0xffffffffull : b[l] << 32);
  u64 low = half_unwritten(w, i, 0, i.opsel & 1);
  w.und = half_unwritten(w, i, 1, i.opsel >> 1 & 1);
  put64_halves(w, i, r, low);
}
// v_fma_mix: op_sel_hi says that an operand is a half, op_sel which half.
enum Result { FLOAT, LOW, HIGH };
void mixed(Wave& w, const Inst& i, Result out) {
  start(w, i);
  alignas(64) u32 b[3][LANES], r[LANES];
  const u32* s[3];
  for (int k = 0; k < 3; k++) s[k] = raw(w, i, k, b[k], i.opsel_hi >> k & 1 ? 16 : 32);
  const u32* d = out != FLOAT ? write_v(w, i, i.dst) : nullptr;
  for (int l = 0; l < LANES; l++) {
    float v[3];
    for (int k = 0; k < 3; k++) {
      float x = i.opsel_hi >> k & 1 ? h(s[k][l] >> (i.opsel >> k & 1 ? 16 : 0)) : f32(s[k][l]);
      if (i.neg_hi >> k & 1) x = std::fabs(x);
      v[k] = i.neg >> k & 1 ? -x : x;
    }
    float x = __builtin_fmaf(v[0], v[1], v[2]);
    if (i.clamp) x = quiet_min(quiet_max(x, 0.f), 1.f);
    switch (out) {
      case FLOAT: r[l] = b32(x); break;
      case LOW: r[l] = (d[l] & 0xffff0000) | to_half(x); break;
      case HIGH: r[l] = (d[l] & 0xffff) | (u32)to_half(x) << 16; break;
    }
  }
  write_lanes(w, i, i.dst, r);
}
template <class F>
void dot(Wave& w, const Inst& i, F f) {  // f(a, b, c) of whole registers
  start(w, i);
  FETCH(u32, a, 0);
  FETCH(u32, b, 1);
  FETCH(u32, c, 2);
  alignas(64) u32 r[LANES];
  for (int l = 0; l < LANES; l++) r[l] = f(a[l], b[l], c[l]);
  write_lanes(w, i, i.dst, r);
}
u32 dot2_half(u32 a, u32 b, u32 c) {
  return b32(__builtin_fmaf(h(a >> 16), h(b >> 16), __builtin_fmaf(h(a), h(b), f32(c))));
}
u32 dot2_bf16(u32 a, u32 b, u32 c) {
  return b32(__builtin_fmaf(bf16(a >> 16), bf16(b >> 16), __builtin_fmaf(bf16(a), bf16(b), f32(c))));
}
u32 dot4_i8(u32 a, u32 b, u32 c) {
  for (int k = 0; k < 32; k += 8) c += (u32)((i32)(i8)(a >> k) * (i32)(i8)(b >> k));
  return c;
}
u32 dot4_u8(u32 a, u32 b, u32 c) {
  for (int k = 0; k < 32; k += 8) c += (a >> k & 255) * (b >> k & 255);
  return c;
}
u32 dot2_i16(u32 a, u32 b, u32 c) { return c + (u32)(s16(a) * s16(b)) + (u32)(s16(a >> 16) * s16(b >> 16)); }
u32 dot2_u16(u32 a, u32 b, u32 c) { return c + (a & 0xffff) * (b & 0xffff) + (a >> 16) * (b >> 16); }
bool is_nan(u32 x) { return h(x) != h(x); }
// As IEEE 754-2019 has them: the first NaN wins, with its bits.
u32 minimum3(u32 a, u32 b, u32 c) {
  if (is_nan(a)) return a;
  if (is_nan(b)) return b;
  if (is_nan(c)) return c;
  return to_half(quiet_min(quiet_min(h(a), h(b)), h(c)));
}
u32 maximum3(u32 a, u32 b, u32 c) {
  if (is_nan(a)) return a;
  if (is_nan(b)) return b;
  if (is_nan(c)) return c;
  return to_half(quiet_max(quiet_max(h(a), h(b)), h(c)));
}
u32 fma3(u32 a, u32 b, u32 c) { return fma_half(h(a), h(b), h(c)); }
u32 clamped_fma3(const Inst& i, u32 a, u32 b, u32 c) {
  u32 r = fma3(a, b, c);
  return i.clamp ? clamp16(i, h(r)) : r;
}
void pk_fmac(Wave& w, const Inst& i) {  // VOP2: there is no op_sel_hi, and the high halves are those
  Inst copy = i;
  copy.opsel_hi = 7;
  packed2<true>(w, copy, 3, fma3);
}
u32 add_i16(u32 a, u32 b, bool clamp) { return clamp ? (u32)std::clamp(s16(a) + s16(b), -32768, 32767) : a + b; }
u32 sub_i16(u32 a, u32 b, bool clamp) { return clamp ? (u32)std::clamp(s16(a) - s16(b), -32768, 32767) : a - b; }
u32 add_u16(u32 a, u32 b, bool clamp) { return clamp ? std::min(a + b, 65535u) : a + b; }
u32 sub_u16(u32 a, u32 b, bool clamp) { return clamp && b > a ? 0 : a - b; }
}  // namespace

// Rows of two halves and of two integers: how many sources, and a result's half as an expression of a, b and c.
#define HALF(name, n, expr) \
  ROW("v_pk_" name "_f16", packed2<true>(w, i, n, [&](u32 a, u32 b, [[maybe_unused]] u32 c) -> u32 { return expr; }))
#define WORD(name, n, expr) \
  ROW("v_pk_" name, packed2<false>(w, i, n, [&](u32 a, u32 b, [[maybe_unused]] u32 c) -> u32 { return expr; }))

std::vector<Op> packed_ops() {
  return {
      HALF("add", 2, clamp16(i, h(a) + h(b))),
      HALF("mul", 2, clamp16(i, h(a) * h(b))),
      HALF("min", 2, clamp16(i, quiet_min(h(a), h(b)))),
      HALF("max", 2, clamp16(i, quiet_max(h(a), h(b)))),
      HALF("fma", 3, clamped_fma3(i, a, b, c)),
      {"v_pk_fmac_f16", pk_fmac, VALU, 0},
      HALF("minimum3", 3, minimum3(a, b, c)),
      HALF("maximum3", 3, maximum3(a, b, c)),
      WORD("mad_i16", 3, a * b + c),
      WORD("mad_u16", 3, a * b + c),
      WORD("mul_lo_u16", 2, a * b),
      WORD("add_i16", 2, add_i16(a, b, i.clamp)),
      WORD("add_u16", 2, add_u16(a, b, i.clamp)),
      WORD("sub_i16", 2, sub_i16(a, b, i.clamp)),
      WORD("sub_u16", 2, sub_u16(a, b, i.clamp)),
      WORD("lshlrev_b16", 2, b << (a & 15)),
      WORD("lshrrev_b16", 2, b >> (a & 15)),
      WORD("ashrrev_i16", 2, (u32)(s16(b) >> (a & 15))),
      WORD("max_i16", 2, (u32)std::max(s16(a), s16(b))),
      WORD("min_i16", 2, (u32)std::min(s16(a), s16(b))),
      WORD("max_u16", 2, std::max(a, b)),
      WORD("min_u16", 2, std::min(a, b)),
      ROW("v_pk_fma_f32", packed32(w, i, 3, [](float a, float b, float c) { return __builtin_fmaf(a, b, c); })),
      ROW("v_pk_mul_f32", packed32(w, i, 2, [](float a, float b, float) { return a * b; })),
      ROW("v_pk_add_f32", packed32(w, i, 2, [](float a, float b, float) { return a + b; })),
      {"v_pk_mov_b32", pk_mov, VALU, 0},
      ROW("v_fma_mix_f32", mixed(w, i, FLOAT)),
      ROW("v_fma_mixlo_f16", mixed(w, i, LOW)),
      ROW("v_fma_mixhi_f16", mixed(w, i, HIGH)),
      ROW("v_mad_mix_f32", mixed(w, i, FLOAT)),
      ROW("v_mad_mixlo_f16", mixed(w, i, LOW)),
      ROW("v_mad_mixhi_f16", mixed(w, i, HIGH)),
      ROW("v_dot2_f32_f16", dot(w, i, dot2_half)),
      ROW("v_dot2c_f32_f16", dot(w, i, dot2_half)),
      ROW("v_dot2_f32_bf16", dot(w, i, dot2_bf16)),
      ROW("v_dot2c_f32_bf16", dot(w, i, dot2_bf16)),
      ROW("v_dot4_i32_i8", dot(w, i, dot4_i8)),
      ROW("v_dot4c_i32_i8", dot(w, i, dot4_i8)),
      ROW("v_dot4_u32_u8", dot(w, i, dot4_u8)),
      ROW("v_dot2_i32_i16", dot(w, i, dot2_i16)),
      ROW("v_dot2_u32_u16", dot(w, i, dot2_u16)),
  };
}
