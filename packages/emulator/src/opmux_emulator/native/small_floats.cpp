// 8- and 4-bit floats: conversions from and to them, plain, with stochastic rounding, and with a scale for each block.
// CDNA3 ISA, sections 12.8 to 12.10; CDNA4 ISA, V_CVT_SCALEF32_*. The formats themselves are in numeric.h.
#include "vector.h"
#include <algorithm>

namespace {
bool fnuz(const Wave& w) { return w.m->arch != GFX950; }
bool saturates(const Wave& w) { return w.mode >> 23 & 1; }  // MODE.FP16_OVFL
// The block-scaled instructions have the OCP formats.
auto into_fp8(const Wave& w) {
  return [saturate = saturates(w)](float x) { return to_fp8(x, false, saturate); };
}
auto into_bf8(const Wave& w) {
  return [saturate = saturates(w)](float x) { return to_bf8(x, false, saturate); };
}
constexpr auto from_fp8 = [](u8 x) { return fp8(x, false); };
constexpr auto from_bf8 = [](u8 x) { return bf8(x, false); };
constexpr auto from_half = [](u16 x) { return half(x); };
constexpr auto from_bf16 = [](u16 x) { return bf16(x); };
constexpr auto half_of = [](float x) { return to_half(x); };
constexpr auto bf16_of = [](float x) { return to_bf16(x); };

// 8-bit floats. The selected byte or word of the source comes through SDWA or op_sel.
u32 byte_select(const Inst& i) { return i.variant == SDWA_ ? 0 : (u32)((i.opsel & 1) << 1 | (i.opsel >> 1 & 1)); }
template <class F>
void from_byte(Wave& w, const Inst& i, F f) {
  u32 shift = 8 * byte_select(i);
  unary<float, u32>(w, i, [&](u32 x) { return f((u8)(x >> shift)); });
}
template <class F>
void from_bytes(Wave& w, const Inst& i, F f) {
  start(w, i);
  FETCH(u32, a, 0);
  alignas(64) u64 r[LANES];
  u32 shift = i.variant != SDWA_ && i.opsel & 1 ? 16 : 0;
  for (int l = 0; l < LANES; l++) r[l] = (u64)b32(f((u8)(a[l] >> (shift + 8)))) << 32 | b32(f((u8)(a[l] >> shift)));
  put64(w, i, r);
}
template <class F>
void to_bytes(Wave& w, const Inst& i, F f) {
  start(w, i);
  FETCH(float, a, 0);
  FETCH(float, b, 1);
  alignas(64) u32 r[LANES];
  const u32* d = write_v(w, i, i.dst);
  bool high = i.opsel & 8;
  for (int l = 0; l < LANES; l++) {
    u32 x = f(a[l]) | (u32)f(b[l]) << 8;
    r[l] = high ? (d[l] & 0xffff) | x << 16 : (d[l] & 0xffff0000) | x;
  }
  w.part_v[i.dst - VGPR] = w.slot;
  w.vflag[i.dst - VGPR] |= 2;
  write_lanes(w, i, i.dst, r);
}
template <class F>
void to_byte_sr(Wave& w, const Inst& i, F f) {
  start(w, i);
  FETCH(float, a, 0);
  FETCH(u32, b, 1);
  alignas(64) u32 r[LANES];
  const u32* d = write_v(w, i, i.dst);
  u32 shift = 8 * (i.opsel >> 2 & 3);
  for (int l = 0; l < LANES; l++) r[l] = (d[l] & ~(0xffu << shift)) | (u32)f(a[l], b[l]) << shift;
  w.part_v[i.dst - VGPR] = w.slot;
  w.vflag[i.dst - VGPR] |= 2;
  write_lanes(w, i, i.dst, r);
}

// CDNA4 ISA: V_CVT_SCALEF32_PK_*.
template <class F>
void scaled_to_bytes(Wave& w, const Inst& i, F f) {
  start(w, i);
  FETCH(float, a, 0);
  FETCH(float, b, 1);
  FETCH(u32, s, 2);
  alignas(64) u32 r[LANES];
  const u32* d = write_v(w, i, i.dst);
  bool high = i.opsel & 8;
  for (int l = 0; l < LANES; l++) {
    float scale = scale_of(s[l]);
    u32 x = f(a[l] / scale) | (u32)f(b[l] / scale) << 8;
    r[l] = high ? (d[l] & 0xffff) | x << 16 : (d[l] & 0xffff0000) | x;
  }
  write_lanes(w, i, i.dst, r);
}
// The same from halves of one register, and the other way.
template <class F, class G>
void scaled_halves_to_bytes(Wave& w, const Inst& i, F from, G into) {
  start(w, i);
  FETCH(u32, a, 0);
  FETCH(u32, s, 1);
  alignas(64) u32 r[LANES];
  const u32* d = write_v(w, i, i.dst);
  bool high = i.opsel & 8;
  for (int l = 0; l < LANES; l++) {
    float scale = scale_of(s[l]);
    u32 x = into(from((u16)a[l]) / scale) | (u32)into(from((u16)(a[l] >> 16)) / scale) << 8;
    r[l] = high ? (d[l] & 0xffff) | x << 16 : (d[l] & 0xffff0000) | x;
  }
  write_lanes(w, i, i.dst, r);
}
template <class F>
void scaled_from_bytes(Wave& w, const Inst& i, F f) {  // two floats
  start(w, i);
  FETCH(u32, a, 0);
  FETCH(u32, s, 1);
  alignas(64) u64 r[LANES];
  u32 shift = i.opsel & 1 ? 16 : 0;
  for (int l = 0; l < LANES; l++) {
    float scale = scale_of(s[l]);
    r[l] = (u64)b32(f((u8)(a[l] >> (shift + 8))) * scale) << 32 | b32(f((u8)(a[l] >> shift)) * scale);
  }
  put64(w, i, r);
}
template <class F, class G>
void scaled_to_halves(Wave& w, const Inst& i, F f, G g) {  // two halves
  start(w, i);
  FETCH(u32, a, 0);
  FETCH(u32, s, 1);
  alignas(64) u32 r[LANES];
  u32 shift = i.opsel & 1 ? 16 : 0;
  for (int l = 0; l < LANES; l++) {
    float scale = scale_of(s[l]);
    r[l] = g(f((u8)(a[l] >> shift)) * scale) | (u32)g(f((u8)(a[l] >> (shift + 8))) * scale) << 16;
  }
  write_lanes(w, i, i.dst, r);
}
template <class F>
void scaled_from_byte(Wave& w, const Inst& i, F f) {
  start(w, i);
  FETCH(u32, a, 0);
  FETCH(u32, s, 1);
  alignas(64) float r[LANES];
  u32 shift = 8 * (i.opsel & 3);
  for (int l = 0; l < LANES; l++) r[l] = f((u8)(a[l] >> shift)) * scale_of(s[l]);
  Destination<float>::put(w, i, r);
}
// 4-bit floats, two a byte: the byte is chosen by op_sel.
template <class F>
void scaled_from_fp4(Wave& w, const Inst& i, F f) {  // two halves
  start(w, i);
  FETCH(u32, a, 0);
  FETCH(u32, s, 1);
  alignas(64) u32 r[LANES];
  u32 shift = 8 * (i.opsel & 3);
  for (int l = 0; l < LANES; l++) {
    float scale = scale_of(s[l]);
    u8 x = a[l] >> shift;
    r[l] = f(fp4(x & 15) * scale) | (u32)f(fp4(x >> 4) * scale) << 16;
  }
  write_lanes(w, i, i.dst, r);
}
void scaled_from_fp4_to_floats(Wave& w, const Inst& i) {
  start(w, i);
  FETCH(u32, a, 0);
  FETCH(u32, s, 1);
  alignas(64) u64 r[LANES];
  u32 shift = 8 * (i.opsel & 3);
  for (int l = 0; l < LANES; l++) {
    float scale = scale_of(s[l]);
    u8 x = a[l] >> shift;
    r[l] = (u64)b32(fp4(x >> 4) * scale) << 32 | b32(fp4(x & 15) * scale);
  }
  put64(w, i, r);
}
u8 to_fp4(float x) {
  if (x != x) return 7;
  u32 c = std::isinf(x) ? 7 : round_small(x, 1, 1);
  return (b32(x) >> 31 ? 8 : 0) | std::min(c, 7u);
}
void scaled_to_fp4(Wave& w, const Inst& i) {
  start(w, i);
  FETCH(float, a, 0);
  FETCH(float, b, 1);
  FETCH(u32, s, 2);
  alignas(64) u32 r[LANES];
  const u32* d = write_v(w, i, i.dst);
  u32 shift = 8 * (i.opsel >> 2 & 3);
  for (int l = 0; l < LANES; l++) {
    float scale = scale_of(s[l]);
    r[l] = (d[l] & ~(255u << shift)) | (u32)(to_fp4(a[l] / scale) | to_fp4(b[l] / scale) << 4) << shift;
  }
  write_lanes(w, i, i.dst, r);
}
}  // namespace

std::vector<Op> small_float_ops() {
  return {
      ROW("v_cvt_f32_fp8", from_byte(w, i, [&](u8 x) { return fp8(x, fnuz(w)); })),
      ROW("v_cvt_f32_bf8", from_byte(w, i, [&](u8 x) { return bf8(x, fnuz(w)); })),
      ROW("v_cvt_pk_f32_fp8", from_bytes(w, i, [&](u8 x) { return fp8(x, fnuz(w)); })),
      ROW("v_cvt_pk_f32_bf8", from_bytes(w, i, [&](u8 x) { return bf8(x, fnuz(w)); })),
      ROW("v_cvt_pk_fp8_f32", to_bytes(w, i, [&](float x) { return to_fp8(x, fnuz(w), saturates(w)); })),
      ROW("v_cvt_pk_bf8_f32", to_bytes(w, i, [&](float x) { return to_bf8(x, fnuz(w), saturates(w)); })),
      ROW("v_cvt_sr_fp8_f32", to_byte_sr(w, i, [&](float x, u32 r) { return to_fp8(x, fnuz(w), saturates(w), &r); })),
      ROW("v_cvt_sr_bf8_f32", to_byte_sr(w, i, [&](float x, u32 r) { return to_bf8(x, fnuz(w), saturates(w), &r); })),
      ROW("v_cvt_scalef32_pk_fp8_f32", scaled_to_bytes(w, i, into_fp8(w))),
      ROW("v_cvt_scalef32_pk_bf8_f32", scaled_to_bytes(w, i, into_bf8(w))),
      ROW("v_cvt_scalef32_pk_fp8_f16", scaled_halves_to_bytes(w, i, from_half, into_fp8(w))),
      ROW("v_cvt_scalef32_pk_bf8_f16", scaled_halves_to_bytes(w, i, from_half, into_bf8(w))),
      ROW("v_cvt_scalef32_pk_fp8_bf16", scaled_halves_to_bytes(w, i, from_bf16, into_fp8(w))),
      ROW("v_cvt_scalef32_pk_bf8_bf16", scaled_halves_to_bytes(w, i, from_bf16, into_bf8(w))),
      ROW("v_cvt_scalef32_pk_f32_fp8", scaled_from_bytes(w, i, from_fp8)),
      ROW("v_cvt_scalef32_pk_f32_bf8", scaled_from_bytes(w, i, from_bf8)),
      ROW("v_cvt_scalef32_f32_fp8", scaled_from_byte(w, i, from_fp8)),
      ROW("v_cvt_scalef32_f32_bf8", scaled_from_byte(w, i, from_bf8)),
      ROW("v_cvt_scalef32_pk_f16_fp8", scaled_to_halves(w, i, from_fp8, half_of)),
      ROW("v_cvt_scalef32_pk_f16_bf8", scaled_to_halves(w, i, from_bf8, half_of)),
      ROW("v_cvt_scalef32_pk_bf16_fp8", scaled_to_halves(w, i, from_fp8, bf16_of)),
      ROW("v_cvt_scalef32_pk_bf16_bf8", scaled_to_halves(w, i, from_bf8, bf16_of)),
      ROW("v_cvt_scalef32_pk_f32_fp4", scaled_from_fp4_to_floats(w, i)),
      ROW("v_cvt_scalef32_pk_f16_fp4", scaled_from_fp4(w, i, half_of)),
      ROW("v_cvt_scalef32_pk_bf16_fp4", scaled_from_fp4(w, i, bf16_of)),
      ROW("v_cvt_scalef32_pk_fp4_f32", scaled_to_fp4(w, i)),
      ROW1("v_prng_b32", u32, u32, (a << 1) ^ (a >> 31 ? 197u : 0u)),
  };
}
