// Sources of vector instructions: registers and constants, with the modifiers, DPP and SDWA of each.
// CDNA3 ISA, chapter 5 "Scalar ALU operations" for constants, sections 6.2 to 6.4 for the rest.
#pragma once
#include "machine.h"
#include "numeric.h"

u64 constant(Wave& w, const Inst& i, int code, int float_bits);

// A scalar or constant source of 32 bits.
inline u32 scalar(Wave& w, const Inst& i, int code, int float_bits = 32, u32* unwritten = nullptr) {
  if (code < 128) {
    touch_s(w, i, code);
    if (unwritten) *unwritten |= w.su[code];
    return w.s[code];
  }
  if (unwritten && code == 253) *unwritten |= w.sccu;
  return (u32)constant(w, i, code, float_bits);
}
inline u64 scalar64(Wave& w, const Inst& i, int code, bool is_float, u64* unwritten = nullptr) {
  if (code < 128) {
    touch_s(w, i, code);
    touch_s(w, i, code + 1);
    if (unwritten) *unwritten |= (u64)w.su[code + 1] << 32 | w.su[code];
    return w.pair(code);
  }
  if (code == 255 && !is_float) return (u32)i.literal;  // zero-extended for b64 and u64
  if (code >= 235 && code <= 238) return constant(w, i, code, 32) << 32;
  return constant(w, i, code, is_float ? 64 : 32);
}

// The 32 or 64 bits of source k in every lane, before float modifiers. They may lie in `buffer`.
const u32* raw(Wave& w, const Inst& i, int k, u32* buffer, int float_bits);
void raw64(Wave& w, const Inst& i, int k, u64* buffer, bool is_float);

// Sources by their type: `get` gives one value a lane, with the modifiers of floats applied.
template <class T>
struct Source;
template <>
struct Source<u32> {
  using type = u32;
  static const u32* get(Wave& w, const Inst& i, int k, u32* b) { return raw(w, i, k, b, 32); }
};
template <>
struct Source<i32> {
  using type = i32;
  static const i32* get(Wave& w, const Inst& i, int k, i32* b) { return (const i32*)raw(w, i, k, (u32*)b, 32); }
};
template <>
struct Source<float> {
  using type = float;
  static const float* get(Wave& w, const Inst& i, int k, float* b);
};
template <>
struct Source<Half> {
  using type = float;
  static const float* get(Wave& w, const Inst& i, int k, float* b);
};
template <>
struct Source<Short> {
  using type = u32;
  static const u32* get(Wave& w, const Inst& i, int k, u32* b) {
    alignas(64) u32 t[LANES];
    const u32* p = raw(w, i, k, t, 16);
    int shift = i.opsel >> k & 1 ? 16 : 0;
    for (int l = 0; l < LANES; l++) b[l] = p[l] >> shift & 0xffff;
    return b;
  }
};
template <>
struct Source<Signed16> {
  using type = i32;
  static const i32* get(Wave& w, const Inst& i, int k, i32* b) {
    Source<Short>::get(w, i, k, (u32*)b);
    for (int l = 0; l < LANES; l++) b[l] = (i16)b[l];
    return b;
  }
};
template <>
struct Source<u64> {
  using type = u64;
  static const u64* get(Wave& w, const Inst& i, int k, u64* b) {
    raw64(w, i, k, b, false);
    return b;
  }
};
template <>
struct Source<i64> {
  using type = i64;
  static const i64* get(Wave& w, const Inst& i, int k, i64* b) {
    raw64(w, i, k, (u64*)b, false);
    return b;
  }
};
template <>
struct Source<double> {
  using type = double;
  static const double* get(Wave& w, const Inst& i, int k, double* b);
};

// The lanes in which nothing wrote a half of 64-bit source k: 0 the low, 1 the high one. To be asked before the
// destination is written.
inline u64 half_unwritten(Wave& w, const Inst& i, int k, int which) {
  int code = i.src[k];
  return code >= VGPR ? w.vu[code - VGPR + which] : code < 128 && w.su[code + which] ? ~0ull : 0;
}
inline u64 low_unwritten(Wave& w, const Inst& i, int k) { return half_unwritten(w, i, k, 0); }
