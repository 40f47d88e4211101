// Vector operands: constants, modifiers, DPP and SDWA of a source; write masks, clamp, omod, halves of a destination.
#pragma once
#include "machine.h"
#include "numeric.h"

struct Half {};   // tag: 16-bit float in the low or selected half
struct Short {};  // tag: 16-bit integer there

inline u64 constant(Wave& w, const Inst& i, int code, int float_bits) {
  // Inline constants (CDNA3 ISA, section 5.1 "SGPR and scalar source operands").
  if (code <= 192) return (u64)(i64)(code - 128);
  if (code <= 208) return (u64)(i64)(192 - code);
  static const double table[] = {0.5, -0.5, 1, -1, 2, -2, 4, -4, 0.15915494309189532};
  if (code >= 240 && code <= 248) {
    double x = table[code - 240];
    if (float_bits == 16) return code == 248 ? 0x3118 : to_half((float)x);
    if (float_bits == 64) return code == 248 ? 0x3fc45f306dc9c882ull : b64(x);
    return code == 248 ? 0x3e22f983 : b32((float)x);
  }
  switch (code) {
    case 235: return w.m->lds_aperture >> 32;  // src_shared_base
    case 236: return 0xffffffff;
    case 237: return w.m->scratch_aperture >> 32;  // src_private_base
    case 238: return 0xffffffff;
    case 239: return 0;
    case 251: check_flag_source(w, i, false); return w.pair(VCC) == 0;
    case 252: check_flag_source(w, i, true); return w.exec() == 0;
    case 253: return w.scc;
    case 255: return float_bits == 64 ? (u64)(u32)i.literal << 32 : (u32)i.literal;
  }
  report(w, i, UNSUPPORTED, -1, code, 1);
  return 0;
}

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

int dpp_lane(int control, int lane);  // the lane that `lane` reads, or -1

inline void select_dpp(Wave& w, const Inst& i, const u32* p, u64 unwritten, u32* out) {
  u64 exec = w.exec();
  w.und = 0;
  for (int l = 0; l < LANES; l++) {
    if (!(i.row_mask >> (l >> 4) & 1) || !(i.bank_mask >> (l >> 2 & 3) & 1)) w.mask &= ~(1ull << l);
    int from = dpp_lane(i.dpp, l);
    if (from < 0 || !(exec >> from & 1)) {
      out[l] = 0;
      if (!i.bound) w.mask &= ~(1ull << l);
    } else {
      out[l] = p[from];
      if (unwritten >> from & 1) w.und |= 1ull << l;
    }
  }
}
inline u32 select_part(u32 x, int select, bool sign) {
  if (select < 4) {
    x = x >> (8 * select) & 0xff;
    return sign ? (u32)(i32)(i8)x : x;
  }
  if (select < 6) {
    x = x >> (16 * (select - 4)) & 0xffff;
    return sign ? (u32)(i32)(i16)x : x;
  }
  return x;
}

// The 32 bits of source k in every lane, before float modifiers.
inline const u32* raw(Wave& w, const Inst& i, int k, u32* buffer, int float_bits) {
  int code = i.src[k];
  if (code >= VGPR) {
    const u32* p = read_v(w, i, code);
    u64 unwritten = w.vu[code - VGPR];
    if (i.variant == DPP16 && k == 0) {
      u64 before = w.und;
      select_dpp(w, i, p, unwritten, buffer);
      w.und |= before;
      return buffer;
    }
    w.und |= unwritten;
    if (i.variant == SDWA_ && k < 2 && i.src_sel[k] != 6) {
      for (int l = 0; l < LANES; l++) buffer[l] = select_part(p[l], i.src_sel[k], i.sext >> k & 1);
      return buffer;
    }
    return p;
  }
  u32 unwritten = 0, x = scalar(w, i, code, float_bits, &unwritten);
  if (unwritten) w.und = ~0ull;
  if (i.variant == SDWA_ && k < 2) x = select_part(x, i.src_sel[k], i.sext >> k & 1);
  for (int l = 0; l < LANES; l++) buffer[l] = x;
  return buffer;
}

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
  static const float* get(Wave& w, const Inst& i, int k, float* b) {
    const u32* p = raw(w, i, k, (u32*)b, 32);
    bool negate = i.neg >> k & 1, absolute = i.abs >> k & 1, flushes = !(w.mode >> 4 & 1);
    if (!negate && !absolute && !flushes) return (const float*)p;
    u32* o = (u32*)b;
    u32 keep = absolute ? 0x7fffffff : ~0u, flip = negate ? 0x80000000 : 0;
    for (int l = 0; l < LANES; l++) o[l] = (p[l] & keep) ^ flip;
    if (flushes)
      for (int l = 0; l < LANES; l++) o[l] = (o[l] & 0x7f800000) ? o[l] : o[l] & 0x80000000;
    return b;
  }
};
template <>
struct Source<Half> {
  using type = float;
  static const float* get(Wave& w, const Inst& i, int k, float* b) {
    alignas(64) u32 t[LANES];
    const u32* p = raw(w, i, k, t, 16);
    int shift = i.opsel >> k & 1 ? 16 : 0;
    u32 keep = i.abs >> k & 1 ? 0x7fff : 0xffff, flip = i.neg >> k & 1 ? 0x8000 : 0;
    bool flushes = !(w.mode >> 6 & 1);
    for (int l = 0; l < LANES; l++) {
      u16 h = ((p[l] >> shift) & keep) ^ flip;
      if (flushes && !(h & 0x7c00)) h &= 0x8000;
      b[l] = half(h);
    }
    return b;
  }
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
inline void raw64(Wave& w, const Inst& i, int k, u64* b, bool is_float) {
  int code = i.src[k];
  if (code >= VGPR) {
    const u32 *lo = read_v(w, i, code), *hi = read_v(w, i, code + 1);
    u64 ulo = w.vu[code - VGPR], uhi = w.vu[code - VGPR + 1];
    if (i.variant == DPP16 && k == 0) {
      alignas(64) u32 a[LANES], c[LANES];
      u64 und = w.und;
      select_dpp(w, i, lo, ulo, a);
      und |= w.und;
      select_dpp(w, i, hi, uhi, c);
      w.und |= und;
      for (int l = 0; l < LANES; l++) b[l] = (u64)c[l] << 32 | a[l];
      return;
    }
    w.und |= ulo | uhi;
    for (int l = 0; l < LANES; l++) b[l] = (u64)hi[l] << 32 | lo[l];
    return;
  }
  u64 unwritten = 0, x = scalar64(w, i, code, is_float, &unwritten);
  if (unwritten) w.und = ~0ull;
  for (int l = 0; l < LANES; l++) b[l] = x;
}
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
  static const double* get(Wave& w, const Inst& i, int k, double* b) {
    raw64(w, i, k, (u64*)b, true);
    u64* o = (u64*)b;
    if (i.abs >> k & 1)
      for (int l = 0; l < LANES; l++) o[l] &= ~(1ull << 63);
    if (i.neg >> k & 1)
      for (int l = 0; l < LANES; l++) o[l] ^= 1ull << 63;
    return b;
  }
};

inline void start(Wave& w, const Inst& i) {
  w.und = 0;
  w.mask = w.exec();
}

// Write 32 bits a lane under the mask; SDWA selects the part that is written.
inline void write_lanes(Wave& w, const Inst& i, int code, const u32* r) {
  u32* d = write_v(w, i, code);
  u64 mask = w.mask;
  int reg = code - VGPR;
  if (i.variant == SDWA_ && i.dst_sel != 6) {
    int shift = i.dst_sel < 4 ? 8 * i.dst_sel : 16 * (i.dst_sel - 4);
    u32 field = i.dst_sel < 4 ? 0xff : 0xffff;
    for (int l = 0; l < LANES; l++)
      if (mask >> l & 1) {
        u32 x = r[l] & field, keep = 0;
        if (i.dst_unused == 2) keep = d[l] & ~(field << shift);
        else if (i.dst_unused == 1 && (x & (field >> 1) + 1)) keep = ~((field << shift) | ((1u << shift) - 1));
        d[l] = keep | x << shift;
      }
    w.part_v[reg] = w.slot;
    w.vflag[reg] |= 2;
  } else if (mask == ~0ull) memcpy(d, r, 4 * LANES);
  else
    for (int l = 0; l < LANES; l++) d[l] = mask >> l & 1 ? r[l] : d[l];
  w.vu[reg] = (w.vu[reg] & ~mask) | (w.und & mask);
  w.valu_v[reg] = w.slot;
}
template <class T>
struct Destination;
template <>
struct Destination<u32> {
  using type = u32;
  static void put(Wave& w, const Inst& i, u32* r) { write_lanes(w, i, i.dst, r); }
};
template <>
struct Destination<i32> {
  using type = i32;
  static void put(Wave& w, const Inst& i, i32* r) { write_lanes(w, i, i.dst, (u32*)r); }
};
template <>
struct Destination<float> {
  using type = float;
  static void put(Wave& w, const Inst& i, float* r) {
    if (!(w.mode >> 5 & 1))
      for (int l = 0; l < LANES; l++) r[l] = flush(r[l]);
    if (i.omod) {
      float f = i.omod == 1 ? 2.0f : i.omod == 2 ? 4.0f : 0.5f;
      for (int l = 0; l < LANES; l++) r[l] = flush(r[l] * f);
    }
    if (i.clamp)
      for (int l = 0; l < LANES; l++)
        r[l] = r[l] != r[l] ? (w.mode >> 8 & 1 ? 0.0f : r[l]) : r[l] < 0 ? 0.0f : r[l] > 1 ? 1.0f : r[l];
    write_lanes(w, i, i.dst, (u32*)r);
  }
};
// 16-bit results: the other half is zeroed by most of GFX9's instructions, and kept where op_sel writes the upper one.
inline void put_half(Wave& w, const Inst& i, u32* r, bool keeps) {
  if (i.variant == SDWA_) {
    write_lanes(w, i, i.dst, r);
    return;
  }
  if (i.opsel & 8 || keeps) {
    const u32* d = write_v(w, i, i.dst);
    bool high = i.opsel & 8;
    for (int l = 0; l < LANES; l++) r[l] = high ? r[l] << 16 | (d[l] & 0xffff) : (d[l] & 0xffff0000) | (r[l] & 0xffff);
    if (high) {
      int reg = i.dst - VGPR;
      w.part_v[reg] = w.slot;
      w.vflag[reg] |= 2;
    }  // the rule is of op_sel: a kept upper half waits for nothing
  }
  write_lanes(w, i, i.dst, r);
}
template <bool KEEPS>
inline void put_float16(Wave& w, const Inst& i, u32* r) {
  for (int l = 0; l < LANES; l++) {
    u16 h = r[l];
    if (!(w.mode >> 7 & 1) && !(h & 0x7c00)) h &= 0x8000;
    if (i.omod) h = to_half(half(h) * (i.omod == 1 ? 2.0f : i.omod == 2 ? 4.0f : 0.5f));
    if (i.clamp) {
      float x = half(h);
      h = x != x ? (w.mode >> 8 & 1 ? 0 : h) : x < 0 ? 0 : x > 1 ? 0x3c00 : h;
    }
    r[l] = h;
  }
  put_half(w, i, r, KEEPS);
}
template <>
struct Destination<Half> {
  using type = u32;
  static void put(Wave& w, const Inst& i, u32* r) { put_float16<false>(w, i, r); }
};
struct HalfKept {};
template <>
struct Destination<HalfKept> {
  using type = u32;
  static void put(Wave& w, const Inst& i, u32* r) { put_float16<true>(w, i, r); }
};
template <>
struct Destination<Short> {
  using type = u32;
  static void put(Wave& w, const Inst& i, u32* r) { put_half(w, i, r, false); }
};
struct ShortKept {};
template <>
struct Destination<ShortKept> {
  using type = u32;
  static void put(Wave& w, const Inst& i, u32* r) { put_half(w, i, r, true); }
};
inline void put64(Wave& w, const Inst& i, const u64* r) {
  alignas(64) u32 t[LANES];
  for (int l = 0; l < LANES; l++) t[l] = (u32)r[l];
  write_lanes(w, i, i.dst, t);
  for (int l = 0; l < LANES; l++) t[l] = r[l] >> 32;
  write_lanes(w, i, i.dst + 1, t);
}
// The lanes in which nothing wrote a half of 64-bit source k: 0 the low, 1 the high one. To be asked before the
// destination is written.
inline u64 half_unwritten(Wave& w, const Inst& i, int k, int which) {
  int code = i.src[k];
  return code >= VGPR ? w.vu[code - VGPR + which] : code < 128 && w.su[code + which] ? ~0ull : 0;
}
inline u64 low_unwritten(Wave& w, const Inst& i, int k) { return half_unwritten(w, i, k, 0); }
// Write 64 bits a lane whose halves depend on different halves of the sources: compilers leave those undefined that
// they do not use. `low` has the lanes in which the low half is undefined, and the wave's `und` those of the high one.
inline void put64_halves(Wave& w, const Inst& i, const u64* r, u64 low) {
  alignas(64) u32 t[LANES];
  u64 high = w.und;
  for (int l = 0; l < LANES; l++) t[l] = (u32)r[l];
  w.und = low;
  write_lanes(w, i, i.dst, t);
  for (int l = 0; l < LANES; l++) t[l] = r[l] >> 32;
  w.und = high;
  write_lanes(w, i, i.dst + 1, t);
}
template <>
struct Destination<u64> {
  using type = u64;
  static void put(Wave& w, const Inst& i, u64* r) { put64(w, i, r); }
};
template <>
struct Destination<i64> {
  using type = i64;
  static void put(Wave& w, const Inst& i, i64* r) { put64(w, i, (u64*)r); }
};
template <>
struct Destination<double> {
  using type = double;
  static void put(Wave& w, const Inst& i, double* r) {
    if (i.omod)
      for (int l = 0; l < LANES; l++) r[l] *= i.omod == 1 ? 2.0 : i.omod == 2 ? 4.0 : 0.5;
    if (i.clamp)
      for (int l = 0; l < LANES; l++) r[l] = r[l] != r[l] ? 0.0 : r[l] < 0 ? 0.0 : r[l] > 1 ? 1.0 : r[l];
    put64(w, i, (u64*)r);
  }
};

#define BUFFER(T, name) alignas(64) typename Source<T>::type name##_buffer[LANES]
#define FETCH(T, name, k) \
  BUFFER(T, name);        \
  auto name = Source<T>::get(w, i, k, name##_buffer)

template <class D, class A, class F>
inline void unary(Wave& w, const Inst& i, F f) {
  start(w, i);
  FETCH(A, a, 0);
  alignas(64) typename Destination<D>::type r[LANES];
  for (int l = 0; l < LANES; l++) r[l] = f(a[l]);
  Destination<D>::put(w, i, r);
}
template <class D, class A, class B, class F>
inline void binary(Wave& w, const Inst& i, F f) {
  start(w, i);
  FETCH(A, a, 0);
  FETCH(B, b, 1);
  alignas(64) typename Destination<D>::type r[LANES];
  for (int l = 0; l < LANES; l++) r[l] = f(a[l], b[l]);
  Destination<D>::put(w, i, r);
}
template <class D, class A, class B, class C, class F>
inline void ternary(Wave& w, const Inst& i, F f) {
  start(w, i);
  FETCH(A, a, 0);
  FETCH(B, b, 1);
  FETCH(C, c, 2);
  alignas(64) typename Destination<D>::type r[LANES];
  for (int l = 0; l < LANES; l++) r[l] = f(a[l], b[l], c[l]);
  Destination<D>::put(w, i, r);
}
