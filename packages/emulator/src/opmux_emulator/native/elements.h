// Elements of matrix instructions: their types, and what a lane's registers hold of them.
#pragma once
#include "numeric.h"
#ifdef __F16C__
#include <immintrin.h>
#endif

// Element types, as isa/matrix.py numbers them.
enum Type { F32, F16, BF16, I8, FP8, BF8, FP6, BF6, FP4, XF32, F64 };
inline int bits_of(int type) {
  switch (type) {
    case F64: return 64;
    case F32:
    case XF32: return 32;
    case F16:
    case BF16: return 16;
    case FP6:
    case BF6: return 6;
    case FP4: return 4;
  }
  return 8;
}
inline float value_of(u32 x, int t, bool fnuz) {
  switch (t) {
    case F32: return f32(x);
    case XF32: {
      u32 r = x + 0xfff + (x >> 13 & 1);
      return (x & 0x7f800000) == 0x7f800000 ? f32(x) : f32(r & ~0x1fffu);
    }
    case F16: return half(x);
    case BF16: return bf16(x);
    case FP8: return fp8(x, fnuz);
    case BF8: return bf8(x, fnuz);
    case FP6: return fp6(x);
    case BF6: return bf6(x);
    case FP4: return fp4(x);
  }
  return 0;
}
// Of the 8-bit formats, by whether they are FNUZ.
struct Tables {
  float fp8[2][256], bf8[2][256];
  Tables() {
    for (int x = 0; x < 256; x++)
      for (int f = 0; f < 2; f++) {
        fp8[f][x] = ::fp8(x, f);
        bf8[f][x] = ::bf8(x, f);
      }
  }
};
inline const Tables tables;
// Element e of a lane's source registers.
inline u32 element(const u32 (*s)[LANES], int lane, int e, int bits) {
  int at = e * bits, word = at / 32, shift = at % 32;
  u64 x = s[word][lane];
  if (shift + bits > 32) x |= (u64)s[word + 1][lane] << 32;
  return (u32)(x >> shift) & (bits == 32 ? ~0u : (1u << bits) - 1);
}

// The elements of every lane as float, by element and lane; integers keep their bits.
inline void convert(int type, const u32 (*s)[LANES], int bits, int per, bool fnuz, float (*out)[LANES]) {
  if (type == F16 || type == BF16) {
    for (int e = 0; e < per; e++) {
      const u32* from = s[e / 2];
      int shift = e & 1 ? 16 : 0;
      u32* to = (u32*)out[e];
      if (type == BF16) {
        for (int l = 0; l < LANES; l++) to[l] = from[l] >> shift << 16;
        continue;
      }
      alignas(32) u16 halves[LANES];
      for (int l = 0; l < LANES; l++) halves[l] = (u16)(from[l] >> shift);
#ifdef __F16C__
      for (int l = 0; l < LANES; l += 8)
        _mm256_storeu_ps(out[e] + l, _mm256_cvtph_ps(_mm_load_si128((const __m128i*)(halves + l))));
#else
      for (int l = 0; l < LANES; l++) out[e][l] = half(halves[l]);
#endif
    }
  } else if (type == F32) memcpy(out, s, (size_t)per * 4 * LANES);
  else if (bits == 8) {
    const float* table = type == FP8 ? tables.fp8[fnuz] : tables.bf8[fnuz];
    for (int e = 0; e < per; e++)
      for (int l = 0; l < LANES; l++) {
        u8 x = s[e / 4][l] >> (8 * (e % 4));
        out[e][l] = type == I8 ? f32((u32)(i32)(i8)x) : table[x];
      }
  } else
    for (int e = 0; e < per; e++)
      for (int l = 0; l < LANES; l++) out[e][l] = value_of(element(s, l, e, bits), type, fnuz);
}
