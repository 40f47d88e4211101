// Integer arithmetic, shifts and bits, in 16, 32 and 64 bits.
// CDNA3 ISA, sections 12.7 to 12.10; CDNA4 ISA for v_bitop3.
#include "vector.h"
#include <algorithm>

namespace {
u32 byte_of(u64 both, u32 s) {  // v_perm_b32
  if (s < 8) return both >> (8 * s) & 0xff;
  if (s < 12) return (both >> (16 * (s - 8) + 15) & 1) ? 0xff : 0;
  return s == 12 ? 0 : 0xff;
}
u32 perm(u32 a, u32 b, u32 s) {
  u64 both = (u64)a << 32 | b;
  u32 r = 0;
  for (int k = 0; k < 4; k++) r |= byte_of(both, s >> (8 * k) & 0xff) << (8 * k);
  return r;
}
i32 sign24(u32 x) { return (i32)(x << 8) >> 8; }
template <class T>
T middle(T a, T b, T c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}
// f(a, b, carry) gives 33 bits.
template <class F>
void carry(Wave& w, const Inst& i, bool takes, F f) {
  start(w, i);
  FETCH(u32, a, 0);
  FETCH(u32, b, 1);
  u64 in = 0, und = 0;
  if (takes) {
    int c = i.encoding == 1 ? i.src[2] : VCC;  // VOP3 names its carry, VOP2 takes vcc
    touch_s(w, i, c);
    touch_s(w, i, c + 1);
    in = w.pair(c);
    und = (u64)w.su[c + 1] << 32 | w.su[c];
  }
  w.und |= und;
  alignas(64) u32 r[LANES];
  u64 out = 0;
  for (int l = 0; l < LANES; l++) {
    u64 x = f((u64)a[l], (u64)b[l], in >> l & 1);
    r[l] = (u32)x;
    out |= (x >> 32 & 1) << l;
  }
  u64 unwritten = w.und;
  write_lanes(w, i, i.dst, r);
  w.und = unwritten;
  put_condition(w, i, out, false);
}
void mad64(Wave& w, const Inst& i, bool is_signed) {
  start(w, i);
  FETCH(u32, a, 0);
  FETCH(u32, b, 1);
  u64 low = w.und | low_unwritten(w, i, 2);
  FETCH(u64, c, 2);
  alignas(64) u64 r[LANES];
  u64 out = 0;
  for (int l = 0; l < LANES; l++) {
    if (is_signed) {
      __int128 x = (__int128)((i64)(i32)a[l] * (i64)(i32)b[l]) + (i64)c[l];
      r[l] = (u64)x;
      out |= (u64)(x != (i64)r[l]) << l;
    } else {
      unsigned __int128 x = (unsigned __int128)a[l] * b[l] + c[l];
      r[l] = (u64)x;
      out |= (u64)(x >> 64 & 1) << l;
    }
  }
  put64_halves(w, i, r, low);
  if (i.sdst >= 0) put_condition(w, i, out, false);
}
void shift_add64(Wave& w, const Inst& i) {
  start(w, i);
  FETCH(u32, b, 1);
  u64 low = w.und | low_unwritten(w, i, 0) | low_unwritten(w, i, 2);
  FETCH(u64, a, 0);
  FETCH(u64, c, 2);
  alignas(64) u64 r[LANES];
  for (int l = 0; l < LANES; l++) r[l] = (a[l] << (b[l] & 7)) + c[l];
  put64_halves(w, i, r, low);
}
void shift_left64(Wave& w, const Inst& i) {
  start(w, i);
  FETCH(u32, a, 0);
  u64 low = w.und | low_unwritten(w, i, 1);
  FETCH(u64, b, 1);
  alignas(64) u64 r[LANES];
  for (int l = 0; l < LANES; l++) r[l] = b[l] << (a[l] & 63);
  put64_halves(w, i, r, low);
}
u32 saturated_add(u32 a, u32 b, bool clamp) {
  u32 r = a + b;
  return clamp && r < a ? ~0u : r;
}
u32 saturated_sub(u32 a, u32 b, bool clamp) { return clamp && b > a ? 0 : a - b; }
i32 clamp64(i64 x) { return x > 0x7fffffffll ? 0x7fffffff : x < -0x80000000ll ? (i32)0x80000000 : (i32)x; }
u32 reversed(u32 x) {
  u32 r = 0;
  for (int k = 0; k < 32; k++) r |= (x >> k & 1) << (31 - k);
  return r;
}
int ffbh(u32 x) { return x ? __builtin_clz(x) : -1; }
u32 sad8(u32 a, u32 b, u32 c) {
  for (int k = 0; k < 32; k += 8) c += std::abs((int)(a >> k & 255) - (int)(b >> k & 255));
  return c;
}
u32 clamp16(i32 x, bool clamp) { return (clamp ? std::clamp(x, -32768, 32767) : x) & 0xffff; }
// v_bfe_i32: `width` bits from `offset` on, sign-extended.
i32 signed_field(i32 x, u32 offset, u32 width) {
  offset &= 31;
  width &= 31;
  if (!width) return 0;
  if (offset + width >= 32) return x >> offset;
  return (i32)((u32)x << (32 - offset - width)) >> (32 - width);
}
// v_bitop3: bit (a, b, c) of an eight-bit table that stands where other instructions have modifiers (CDNA4 ISA, VOP3).
u32 truth_table(const Inst& i, u32 a, u32 b, u32 c) {
  u32 table = (u32)(i.omod << 6 | i.abs << 3 | i.neg), found = 0;
  for (int k = 0; k < 8; k++)
    if (table >> k & 1) found |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  return found;
}
}  // namespace

std::vector<Op> integer_ops() {
  return {
      ROW2("v_add_u32", u32, u32, u32, saturated_add(a, b, i.clamp)),
      ROW2("v_sub_u32", u32, u32, u32, saturated_sub(a, b, i.clamp)),
      ROW2("v_subrev_u32", u32, u32, u32, saturated_sub(b, a, i.clamp)),
      ROW2("v_add_i32", i32, i32, i32, i.clamp ? clamp64((i64)a + b) : (i32)((u32)a + b)),
      ROW2("v_sub_i32", i32, i32, i32, i.clamp ? clamp64((i64)a - b) : (i32)((u32)a - b)),
      ROW("v_add_co_u32", carry(w, i, false, [](u64 a, u64 b, u64) { return a + b; })),
      ROW("v_sub_co_u32", carry(w, i, false, [](u64 a, u64 b, u64) { return a - b; })),
      ROW("v_subrev_co_u32", carry(w, i, false, [](u64 a, u64 b, u64) { return b - a; })),
      ROW("v_addc_co_u32", carry(w, i, true, [](u64 a, u64 b, u64 c) { return a + b + c; })),
      ROW("v_subb_co_u32", carry(w, i, true, [](u64 a, u64 b, u64 c) { return a - b - c; })),
      ROW("v_subbrev_co_u32", carry(w, i, true, [](u64 a, u64 b, u64 c) { return b - a - c; })),
      ROW2("v_mul_i32_i24", i32, u32, u32, (i32)((u32)sign24(a) * (u32)sign24(b))),
      ROW2("v_mul_hi_i32_i24", i32, u32, u32, (i32)(((i64)sign24(a) * sign24(b)) >> 32)),
      ROW2("v_mul_u32_u24", u32, u32, u32, (a & 0xffffff) * (b & 0xffffff)),
      ROW2("v_mul_hi_u32_u24", u32, u32, u32, (u32)(((u64)(a & 0xffffff) * (b & 0xffffff)) >> 32)),
      ROW3("v_mad_i32_i24", u32, u32, u32, u32, (u32)sign24(a) * (u32)sign24(b) + c),
      ROW3("v_mad_u32_u24", u32, u32, u32, u32, (a & 0xffffff) * (b & 0xffffff) + c),
      ROW2("v_mul_lo_u32", u32, u32, u32, a * b),
      ROW2("v_mul_hi_u32", u32, u32, u32, (u32)((u64)a * b >> 32)),
      ROW2("v_mul_hi_i32", i32, i32, i32, (i32)((i64)a * b >> 32)),
      ROW("v_mad_u64_u32", mad64(w, i, false)),
      ROW("v_mad_i64_i32", mad64(w, i, true)),
      ROW2("v_min_i32", i32, i32, i32, std::min(a, b)),
      ROW2("v_max_i32", i32, i32, i32, std::max(a, b)),
      ROW2("v_min_u32", u32, u32, u32, std::min(a, b)),
      ROW2("v_max_u32", u32, u32, u32, std::max(a, b)),
      ROW3("v_min3_i32", i32, i32, i32, i32, std::min({a, b, c})),
      ROW3("v_max3_i32", i32, i32, i32, i32, std::max({a, b, c})),
      ROW3("v_min3_u32", u32, u32, u32, u32, std::min({a, b, c})),
      ROW3("v_max3_u32", u32, u32, u32, u32, std::max({a, b, c})),
      ROW3("v_med3_i32", i32, i32, i32, i32, middle(a, b, c)),
      ROW3("v_med3_u32", u32, u32, u32, u32, middle(a, b, c)),
      ROW2("v_lshrrev_b32", u32, u32, u32, b >> (a & 31)),
      ROW2("v_ashrrev_i32", i32, u32, i32, b >> (a & 31)),
      ROW2("v_lshlrev_b32", u32, u32, u32, b << (a & 31)),
      ROW("v_lshlrev_b64", shift_left64(w, i)),
      ROW2("v_lshrrev_b64", u64, u32, u64, b >> (a & 63)),
      ROW2("v_ashrrev_i64", i64, u32, i64, b >> (a & 63)),
      // Bits.
      ROW1("v_not_b32", u32, u32, ~a),
      ROW2("v_and_b32", u32, u32, u32, a & b),
      ROW2("v_or_b32", u32, u32, u32, a | b),
      ROW2("v_xor_b32", u32, u32, u32, a ^ b),
      ROW2("v_xnor_b32", u32, u32, u32, ~(a ^ b)),
      ROW1("v_bfrev_b32", u32, u32, reversed(a)),
      ROW1("v_ffbh_u32", u32, u32, (u32)ffbh(a)),
      ROW1("v_ffbl_b32", u32, u32, a ? (u32)__builtin_ctz(a) : ~0u),
      ROW1("v_ffbh_i32", u32, i32, a == 0 || a == -1 ? ~0u : (u32)__builtin_clz(a < 0 ? ~a : a)),
      ROW2("v_bfm_b32", u32, u32, u32, ((1u << (a & 31)) - 1) << (b & 31)),
      ROW2("v_bcnt_u32_b32", u32, u32, u32, (u32)__builtin_popcount(a) + b),
      ROW3("v_bfe_u32", u32, u32, u32, u32, a >> (b & 31) & ((1u << (c & 31)) - 1)),
      ROW3("v_bfe_i32", i32, i32, u32, u32, signed_field(a, b, c)),
      ROW3("v_bfi_b32", u32, u32, u32, u32, (a & b) | (~a & c)),
      ROW3("v_alignbit_b32", u32, u32, u32, u32, (u32)(((u64)a << 32 | b) >> (c & 31))),
      ROW3("v_alignbyte_b32", u32, u32, u32, u32, (u32)(((u64)a << 32 | b) >> 8 * (c & 3))),
      ROW3("v_perm_b32", u32, u32, u32, u32, perm(a, b, c)),
      ROW3("v_lshl_add_u32", u32, u32, u32, u32, (a << (b & 31)) + c),
      ROW3("v_add_lshl_u32", u32, u32, u32, u32, (a + b) << (c & 31)),
      ROW3("v_add3_u32", u32, u32, u32, u32, a + b + c),
      ROW3("v_lshl_or_b32", u32, u32, u32, u32, (a << (b & 31)) | c),
      ROW3("v_and_or_b32", u32, u32, u32, u32, (a & b) | c),
      ROW3("v_or3_b32", u32, u32, u32, u32, a | b | c),
      ROW3("v_xad_u32", u32, u32, u32, u32, (a ^ b) + c),
      ROW("v_lshl_add_u64", shift_add64(w, i)),
      ROW3("v_sad_u32", u32, u32, u32, u32, (a > b ? a - b : b - a) + c),
      ROW3("v_sad_u8", u32, u32, u32, u32, sad8(a, b, c)),
      ROW3("v_bitop3_b32", u32, u32, u32, u32, truth_table(i, a, b, c)),
      // 16-bit integers.
      ROW2("v_add_u16", Short, Short, Short, a + b & 0xffff),
      ROW2("v_sub_u16", Short, Short, Short, a - b & 0xffff),
      ROW2("v_subrev_u16", Short, Short, Short, b - a & 0xffff),
      ROW2("v_mul_lo_u16", Short, Short, Short, a * b & 0xffff),
      ROW2("v_lshlrev_b16", Short, Short, Short, b << (a & 15) & 0xffff),
      ROW2("v_lshrrev_b16", Short, Short, Short, b >> (a & 15)),
      ROW2("v_ashrrev_i16", Short, Short, Signed16, (u32)(b >> (a & 15)) & 0xffff),
      ROW2("v_max_u16", Short, Short, Short, std::max(a, b)),
      ROW2("v_min_u16", Short, Short, Short, std::min(a, b)),
      ROW2("v_max_i16", Short, Signed16, Signed16, (u32)std::max(a, b) & 0xffff),
      ROW2("v_min_i16", Short, Signed16, Signed16, (u32)std::min(a, b) & 0xffff),
      ROW2("v_add_i16", Short, Signed16, Signed16, clamp16(a + b, i.clamp)),
      ROW2("v_sub_i16", Short, Signed16, Signed16, clamp16(a - b, i.clamp)),
      ROW3("v_mad_u16", ShortKept, Short, Short, Short, a * b + c & 0xffff),
      ROW3("v_mad_i16", ShortKept, Short, Short, Short, a * b + c & 0xffff),
      ROW3("v_mad_legacy_u16", Short, Short, Short, Short, a * b + c & 0xffff),
      ROW3("v_mad_legacy_i16", Short, Short, Short, Short, a * b + c & 0xffff),
      ROW3("v_mad_u32_u16", u32, Short, Short, u32, a * b + c),
      ROW3("v_mad_i32_i16", i32, Signed16, Signed16, i32, a * b + c),
      ROW3("v_min3_u16", ShortKept, Short, Short, Short, std::min({a, b, c})),
      ROW3("v_max3_u16", ShortKept, Short, Short, Short, std::max({a, b, c})),
      ROW3("v_bitop3_b16", ShortKept, Short, Short, Short, truth_table(i, a, b, c) & 0xffff),
      ROW3("v_min3_i16", ShortKept, Signed16, Signed16, Signed16, (u32)std::min({a, b, c}) & 0xffff),
      ROW3("v_max3_i16", ShortKept, Signed16, Signed16, Signed16, (u32)std::max({a, b, c}) & 0xffff),
      ROW2("v_pack_b32_f16", u32, Short, Short, a | b << 16),
  };
}
