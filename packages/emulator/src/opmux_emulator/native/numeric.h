// Number formats: conversions to and from float, each with the rounding of the architecture.
#pragma once
#include "machine.h"
#include <cmath>

template <class To, class From>
inline To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}
inline float f32(u32 x) { return bits<float>(x); }
inline u32 b32(float x) { return bits<u32>(x); }
inline double f64(u64 x) { return bits<double>(x); }
inline u64 b64(double x) { return bits<u64>(x); }

#ifdef __F16C__  // by builtins: immintrin.h takes longer to compile than most units
using FourFloats = float __attribute__((vector_size(16)));
using EightHalves = short __attribute__((vector_size(16)));
inline float half(u16 h) { return __builtin_ia32_vcvtph2ps(EightHalves{(short)h})[0]; }
inline u16 to_half(float x) { return (u16)__builtin_ia32_vcvtps2ph(FourFloats{x}, 0)[0]; }  // 0: to nearest even
#else
inline float half(u16 h) {
  u32 e = h >> 10 & 31, m = h & 1023, s = (u32)(h & 0x8000) << 16;
  if (e == 31) return f32(s | 0x7f800000 | m << 13 | (m ? 0x400000 : 0));
  if (e) return f32(s | (e + 112) << 23 | m << 13);
  float x = m * 0x1p-24f;
  return s ? -x : x;
}
inline u16 to_half(float x) {
  u32 b = b32(x), s = b >> 16 & 0x8000;
  b &= 0x7fffffff;
  if (b > 0x7f800000) return s | 0x7e00 | (b >> 13 & 0x1ff);
  if (b >= 0x477ff000) return s | 0x7c00;
  if (b < 0x38800000) {
    float y = f32(b) + 0.5f;
    return s | (u16)(b32(y) - 0x3f000000);
  }
  b += 0xfff + (b >> 13 & 1);
  return s | (u16)((b - 0x38000000) >> 13);
}
#endif
// A double to half with one rounding: float with its last bit made odd where it is inexact cannot be rounded twice.
inline u16 to_half(double x) {
  float y = (float)x;
  if ((double)y != x && y == y && !std::isinf(y)) {
    u32 b = b32(y);
    double d = (double)y;
    if ((d < 0 ? -d : d) > (x < 0 ? -x : x)) b -= 1;
    y = f32(b | 1);
  }
  return to_half(y);
}
inline u16 to_half_rtz(float x) {  // v_cvt_pkrtz_f16_f32
  u32 b = b32(x), s = b >> 16 & 0x8000;
  b &= 0x7fffffff;
  if (b > 0x7f800000) return s | 0x7e00 | (b >> 13 & 0x3ff);
  if (b == 0x7f800000) return s | 0x7c00;
  if (b >= 0x47800000) return s | 0x7bff;
  if (b < 0x33800000) return s;
  if (b < 0x38800000) return s | ((b & 0x7fffff) | 0x800000) >> (126 - (b >> 23));
  return s | (b - 0x38000000) >> 13;
}
inline float bf16(u16 h) { return f32((u32)h << 16); }
inline u16 to_bf16(float x) {
  u32 b = b32(x);
  if ((b & 0x7fffffff) > 0x7f800000) return b >> 16 | 0x40;
  return (b + 0x7fff + (b >> 16 & 1)) >> 16;
}

// 8-bit floats. FNUZ (gfx942): bias 8 for e4m3 and 16 for e5m2, 0x80 is NaN, no infinity, no negative zero. OCP
// (gfx950): bias 7 and 15; e4m3 has NaN at 0x7f and no infinity, e5m2 is half's upper byte.
inline float small_float(u32 x, int exponent_bits, int mantissa_bits, int bias, bool negative) {
  u32 e = x >> mantissa_bits & ((1 << exponent_bits) - 1), m = x & ((1 << mantissa_bits) - 1);
  float y = e ? std::ldexp((float)(m | 1 << mantissa_bits), (int)e - bias - mantissa_bits)
              : std::ldexp((float)m, 1 - bias - mantissa_bits);
  return negative ? -y : y;
}
inline float fp8(u8 x, bool fnuz) {
  if (fnuz) return x == 0x80 ? NAN : small_float(x, 4, 3, 8, x >> 7);
  return (x & 0x7f) == 0x7f ? NAN : small_float(x, 4, 3, 7, x >> 7);
}
inline float bf8(u8 x, bool fnuz) {
  if (fnuz) return x == 0x80 ? NAN : small_float(x, 5, 2, 16, x >> 7);
  return half((u16)x << 8);
}
inline float fp6(u8 x) { return small_float(x, 2, 3, 1, x >> 5 & 1); }
inline float bf6(u8 x) { return small_float(x, 3, 2, 3, x >> 5 & 1); }
inline float fp4(u8 x) { return small_float(x, 2, 1, 1, x >> 3 & 1); }
inline float e8m0(u8 x) { return x == 255 ? NAN : std::ldexp(1.0f, (int)x - 127); }

// Round |x| to a grid of mantissa_bits with the least exponent 1 - bias; ties to even. `random` rounds stochastically
// with its upper bits instead. The result is the magnitude's code, which may exceed the format's largest.
inline u32 round_small(float x, int mantissa_bits, int bias, const u32* random = nullptr) {
  u32 b = b32(x) & 0x7fffffff;
  int e = (int)(b >> 23) - 127;
  u64 m = (b & 0x7fffff) | (b >> 23 ? 0x800000 : 0);
  if (!(b >> 23)) e = -126;
  int shift = 23 - mantissa_bits, least = 1 - bias;
  u32 field = e + bias;
  if (e < least) {
    shift += least - e;
    field = 0;
  } else m &= 0x7fffff;
  if (shift > 40) return 0;
  u64 q = m >> shift, rest = m & ((1ull << shift) - 1), half_way = 1ull << (shift - 1);
  if (random) {
    u64 add = shift >= 32 ? (u64)*random << (shift - 32) : *random >> (32 - shift);
    if (rest + add >> shift) q++;
  } else if (rest > half_way || (rest == half_way && (q & 1))) q++;
  return (field << mantissa_bits) + (u32)q;
}
inline u8 to_fp8(float x, bool fnuz, bool saturate, const u32* random = nullptr) {
  u8 s = b32(x) >> 31 ? 0x80 : 0, nan = fnuz ? 0x80 : s | 0x7f;
  if (x != x || std::isinf(x)) return nan;
  u32 largest = fnuz ? 0x7f : 0x7e;
  u32 c = round_small(x, 3, fnuz ? 8 : 7, random);
  if (c > largest) return saturate ? s | largest : nan;
  return fnuz && !c ? 0 : s | c;
}
inline u8 to_bf8(float x, bool fnuz, bool saturate, const u32* random = nullptr) {
  u8 s = b32(x) >> 31 ? 0x80 : 0, nan = fnuz ? 0x80 : s | 0x7f, infinity = fnuz ? 0x80 : s | 0x7c;
  if (x != x) return nan;
  if (std::isinf(x)) return infinity;
  u32 largest = fnuz ? 0x7f : 0x7b;
  u32 c = round_small(x, 2, fnuz ? 16 : 15, random);
  if (c > largest) return saturate ? s | largest : infinity;
  return fnuz && !c ? 0 : s | c;
}
// The scale of block-scaled instructions: the exponent of a float32.
inline float scale_of(u32 x) { return e8m0(x >> 23 & 0xff); }
inline float flush(float x) { return (b32(x) & 0x7f800000) ? x : f32(b32(x) & 0x80000000); }
// Minimum and maximum as IEEE 754-2008 has them: of a number and a NaN the number, and -0 is less than +0.
template <class T>
inline T quiet_min(T a, T b) {
  if (a != a) return b;
  if (b != b) return a;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}
template <class T>
inline T quiet_max(T a, T b) {
  if (a != a) return b;
  if (b != b) return a;
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

// Half's fused multiply-add. The product is exact in double; the sum is made odd where it is not, so that rounding to
// half rounds once.
inline u16 fma_half(float a, float b, float c) {
  double p = (double)a * b, s = p + c;
  if (std::isfinite(s)) {
    double bb = s - p, e = (p - (s - bb)) + (c - bb);
    if (e != 0 && !(b64(s) & 1)) {
      bool up = (e > 0) == (s > 0);
      s = f64(b64(s) + (up ? 1 : -1));
    }
  }
  return to_half(s);
}
// Two 16-bit floats in each register, as atomics add them.
inline u32 pk_add_f16(u32 a, u32 b) {
  return to_half(half(a) + half(b)) | (u32)to_half(half(a >> 16) + half(b >> 16)) << 16;
}
inline u32 pk_add_bf16(u32 a, u32 b) {
  return to_bf16(bf16(a) + bf16(b)) | (u32)to_bf16(bf16(a >> 16) + bf16(b >> 16)) << 16;
}

// Tags of operands that lie in half of a register: the low one, or the one that op_sel names.
struct Half {};      // a 16-bit float
struct Short {};     // a 16-bit integer
struct Signed16 {};  // a 16-bit integer, sign-extended; a source only
// Results that leave the other half as it was.
struct HalfKept {};
struct ShortKept {};
