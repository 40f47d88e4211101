// Packed math (VOP3P), dot products and matrix instructions. CDNA3 ISA, section 6.7 "Packed math", chapter 7 "Matrix
// arithmetic instructions"; CDNA4 ISA, section 7.2 for the block-scaled ones. Layouts as AMD's matrix instruction
// calculator prints them.
#include "operands.h"
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
u32 clamp16(const Inst& i, float x) {
  if (i.clamp) x = x != x ? 0 : x < 0 ? 0 : x > 1 ? 1 : x;
  return to_half(x);
}
float h(u32 x) { return half((u16)x); }
i32 s16(u32 x) { return (i16)x; }
u32 fma_half(float a, float b, float c) {
  double p = (double)a * b, s = p + c;
  if (std::isfinite(s)) {
    double bb = s - p, e = (p - (s - bb)) + (c - bb);
    if (e != 0 && !(b64(s) & 1)) s = f64(b64(s) + ((e > 0) == (s > 0) ? 1 : -1));
  }
  return to_half(s);
}
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
void mixed(Wave& w, const Inst& i, int out) {
  start(w, i);
  alignas(64) u32 b[3][LANES], r[LANES];
  const u32* s[3];
  for (int k = 0; k < 3; k++) s[k] = raw(w, i, k, b[k], i.opsel_hi >> k & 1 ? 16 : 32);
  const u32* d = out ? write_v(w, i, i.dst) : nullptr;
  for (int l = 0; l < LANES; l++) {
    float v[3];
    for (int k = 0; k < 3; k++) {
      float x = i.opsel_hi >> k & 1 ? h(s[k][l] >> (i.opsel >> k & 1 ? 16 : 0)) : f32(s[k][l]);
      if (i.neg_hi >> k & 1) x = std::fabs(x);
      v[k] = i.neg >> k & 1 ? -x : x;
    }
    if (!out) {
      float x = __builtin_fmaf(v[0], v[1], v[2]);
      if (i.clamp) x = quiet_min(quiet_max(x, 0.f), 1.f);
      r[l] = b32(x);
      continue;
    }
    u32 x = i.clamp ? to_half(quiet_min(quiet_max(__builtin_fmaf(v[0], v[1], v[2]), 0.f), 1.f))
                    : to_half(__builtin_fmaf(v[0], v[1], v[2]));
    r[l] = out == 1 ? (d[l] & 0xffff0000) | x : (d[l] & 0xffff) | x << 16;
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

// Matrix instructions. Element types, as isa/matrix.py numbers them.
enum Type { F32, F16, BF16, I8, FP8, BF8, FP6, BF6, FP4, XF32, F64 };
int bits_of(int t) {
  return t == F64                ? 64
         : t == F32 || t == XF32 ? 32
         : t == F16 || t == BF16 ? 16
         : t == FP6 || t == BF6  ? 6
         : t == FP4              ? 4
                                 : 8;
}
float value_of(u32 x, int t, bool fnuz) {
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
const Tables tables;
// Element e of a lane's source registers.
u32 element(const u32 (*s)[LANES], int lane, int e, int bits) {
  int at = e * bits, word = at / 32, shift = at % 32;
  u64 x = s[word][lane];
  if (shift + bits > 32) x |= (u64)s[word + 1][lane] << 32;
  return (u32)(x >> shift) & (bits == 32 ? ~0u : (1u << bits) - 1);
}
// Row of C and D that register v of a lane holds (32x32: four rows of every eight; 16x16: four rows a sixteen lanes).
void place_c(int m, int blocks, int v, int lane, bool is_double, int& row, int& column, int& block) {
  column = lane % m;
  if (m == 4) {
    row = v;
    block = lane / 4;
    if (is_double) {
      block = lane / 4 % 4;
      row = lane / 16;
    }
    return;
  }
  if (is_double) {
    row = 4 * v + lane / 16;
    block = 0;
    return;
  }
  if (m == 32) {
    block = v / 16;
    v %= 16;
    row = 8 * (v / 4) + 4 * (lane / 32) + v % 4;
  } else {
    block = v / 4;
    row = 4 * (lane / 16) + v % 4;
  }
  (void)blocks;
}

// The elements of every lane as float, by element and lane; integers keep their bits.
void convert(int type, const u32 (*s)[LANES], int bits, int per, bool fnuz, float (*out)[LANES]) {
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
// C[row][n] += A[k][row] B[k][n] in order of k, each product added with one rounding: the manual leaves the order open.
template <int M>
void multiply(int K, const float (*A)[32], const float (*B)[32], float (*C)[32]) {
#ifdef __FMA__
  if constexpr (M >= 8) {
    constexpr int WIDE = M / 8, ROWS = 8 / WIDE;  // eight sums at a time hide the latency
    for (int row = 0; row < M; row += ROWS) {
      __m256 x[ROWS][WIDE];
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int n = 0; n < WIDE; n++) x[r][n] = _mm256_loadu_ps(C[row + r] + 8 * n);
      for (int k = 0; k < K; k++)
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
          __m256 a = _mm256_broadcast_ss(A[k] + row + r);
#pragma GCC unroll 8
          for (int n = 0; n < WIDE; n++) x[r][n] = _mm256_fmadd_ps(a, _mm256_loadu_ps(B[k] + 8 * n), x[r][n]);
        }
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int n = 0; n < WIDE; n++) _mm256_storeu_ps(C[row + r] + 8 * n, x[r][n]);
    }
    return;
  }
#endif
  for (int row = 0; row < M; row++)
    for (int n = 0; n < M; n++) {
      float x = C[row][n];
      for (int k = 0; k < K; k++) x = __builtin_fmaf(A[k][row], B[k][n], x);
      C[row][n] = x;
    }
}
void multiply_int(int M, int K, const float (*A)[32], const float (*B)[32], float (*C)[32]) {
  for (int row = 0; row < M; row++) {
    u32 x[32];
    memcpy(x, C[row], sizeof x);
    for (int k = 0; k < K; k++) {
      u32 a = b32(A[k][row]), b[32];
      memcpy(b, B[k], sizeof b);
      for (int n = 0; n < M; n++) x[n] += a * b[n];
    }
    memcpy(C[row], x, sizeof x);
  }
}
// Two wait states from a VALU that is no dot product to a matrix instruction that reads its result: there is no path
// that forwards it (CDNA3 ISA, section 7.5).
void valu_result(Wave& w, const Inst& i, int code) {
  int r = code - VGPR;
  u64 then = w.valu_v[r];
  if (__builtin_expect(then && w.slot - then - 1 < 2 && w.dot_v[r] != then, 0)) report(w, i, WAIT_STATES, -1, 2, code);
}
const u32 (*source_registers(Wave& w, const Inst& i, int k, int count, u32 (*copy)[LANES], u64& und)) [LANES] {
  for (int r = 0; r < count; r++) {
    const u32* p = read_v(w, i, i.src[k] + r);
    valu_result(w, i, i.src[k] + r);
    und |= w.vu[i.src[k] - VGPR + r];
    memcpy(copy[r], p, 4 * LANES);
  }
  return copy;
} int passes_of(const Wave& w, const Inst& i) {  // CDNA3 ISA, section 7.1: passes of four cycles
  int t = i.atype;
  bool big = i.m == 32, eight = t == FP8 || t == BF8 || i.btype == FP8 || i.btype == BF8;
  if (t == F64) return i.m == 4 ? 4 : w.m->arch == GFX950 ? 16 : 8;
  if (i.m == 4) return 2;
  if (w.m->arch == GFX90A || t == F32 || i.blocks > 1) return big ? 16 : 8;
  if (eight && i.k >= 64) return big ? 16 : 8;  // f8f6f4 with an 8-bit operand
  return big ? 8 : 4;
}
void mfma(Wave& w, const Inst& i) {
  int M = i.m, K = i.k, blocks = i.blocks, group = 64 / (M * blocks);  // lanes of one row differ in k
  int per = K / group, abits = bits_of(i.atype), bbits = bits_of(i.btype);
  bool is_int = i.atype == I8, is_double = i.atype == F64;
  bool fnuz = w.m->arch != GFX950, flushes = w.m->arch == GFX90A && (i.atype == F16 || i.atype == BF16);
  int ra = (per * abits + 31) / 32, rb = (per * bbits + 31) / 32, rc = M * M * blocks / 64 * (is_double ? 2 : 1);
  u32 acopy[8][LANES], bcopy[8][LANES];
  u64 und = 0;
  bool undefined = false;
  source_registers(w, i, 0, ra, acopy, und);
  source_registers(w, i, 1, rb, bcopy, und);
  undefined = und != 0;
  static u32 ccopy[32][LANES];
  u64 uc[32] = {};
  for (int r = 0; r < rc; r++) {
    if (i.src[2] >= VGPR) {
      memcpy(ccopy[r], read_v(w, i, i.src[2] + r), 4 * LANES);
      valu_result(w, i, i.src[2] + r);
      uc[r] = w.vu[i.src[2] - VGPR + r];
    } else {
      u32 x = is_double ? 0 : scalar(w, i, i.src[2], 32);
      if (is_double && r & 1) x = constant(w, i, i.src[2], 64) >> 32;
      for (int l = 0; l < LANES; l++) ccopy[r][l] = x;
    }
  }
  u32* d[32];
  for (int r = 0; r < rc; r++) d[r] = write_v(w, i, i.dst + r);
  auto lane_of = [&](int row, int block, int k) { return row + M * (block + blocks * (k / per)); };
  // cbsz and abid broadcast one block's A to others; blgp moves B's lanes (section 7.1.2), not for the 8-bit-or-less
  // formats.
  bool moves = i.atype == F32 || i.atype == F16 || i.atype == BF16 || (i.atype == I8);
  auto a_block = [&](int b) { return moves && i.cbsz ? (b & ~((1 << i.cbsz) - 1)) | i.abid : b; };
  auto b_lane = [&](int l) -> int {
    if (!moves || !i.blgp) return l;
    switch (i.blgp) {
      case 1: return l & 31;
      case 2: return 32 | (l & 31);
      case 3: return (l & 48) | ((l + 0) & 15);
      case 4: return l & 15;
      case 5: return 16 | (l & 15);
      case 6: return 32 | (l & 15);
      case 7: return 48 | (l & 15);
    }
    return l;
  };
  float scale_a[2 * LANES], scale_b[2 * LANES];
  bool scaled = i.scale[0] >= 0;
  if (scaled) {
    alignas(64) u32 t[LANES];
    Inst copy = i;
    copy.variant = PLAIN;
    w.und = 0;
    for (int side = 0; side < 2; side++) {
      copy.src[0] = i.scale[side];
      const u32* p = raw(w, copy, 0, t, 32);
      int byte = (i.opsel >> side & 1) | (i.opsel_hi >> side & 1) << 1;
      for (int l = 0; l < LANES; l++) (side ? scale_b : scale_a)[l] = e8m0(p[l] >> (8 * byte) & 255);
    }
  }
  if (is_double) {
    for (int b = 0; b < blocks; b++)
      for (int v = 0; v < rc / 2; v++)
        for (int l = 0; l < LANES; l++) {
          int row, column, block;
          place_c(M, blocks, v, l, true, row, column, block);
          if (block != b) continue;
          double x = f64((u64)ccopy[2 * v + 1][l] << 32 | ccopy[2 * v][l]);
          for (int k = 0; k < K; k++) {
            int la = lane_of(row, b, k), lb = lane_of(column, b, k);
            double p = f64((u64)acopy[1][la] << 32 | acopy[0][la]), q = f64((u64)bcopy[1][lb] << 32 | bcopy[0][lb]);
            x = std::fma(i.blgp & 1 ? -p : p, i.blgp & 2 ? -q : q, i.blgp & 4 && k == 0 ? -x : x);
          }
          d[2 * v][l] = (u32)b64(x);
          d[2 * v + 1][l] = b64(x) >> 32;
        }
  } else {
    // Lanes of one element and one k are neighbours in row (of A) or column (of B, C, D): whole rows are copied.
    static float values[2][32][LANES], C[16][32][32], A[128][32], B[128][32];  // 16 blocks at most, of 4x4
    for (int side = 0; side < 2; side++) {
      convert(side ? i.btype : i.atype, side ? bcopy : acopy, side ? bbits : abits, per, fnuz, values[side]);
      float least = i.atype == F16 ? 0x1p-14f : 0x1p-126f;
      if (flushes)
        for (int e = 0; e < per; e++) {
          float* x = values[side][e];
          for (int l = 0; l < LANES; l++) x[l] = std::fabs(x[l]) < least ? 0.0f : x[l];
        }
      if (scaled)
        for (int e = 0; e < per; e++)
          for (int l = 0; l < LANES; l++) values[side][e][l] *= side ? scale_b[l] : scale_a[l];
    }
    if (moves && i.blgp)
      for (int e = 0; e < per; e++) {
        float t[LANES];
        memcpy(t, values[1][e], sizeof t);
        for (int l = 0; l < LANES; l++) values[1][e][l] = t[b_lane(l)];
      }
    auto each_row = [&](auto f) {
      for (int v = 0; v < rc; v++)
        for (int l = 0; l < LANES; l += M) {
          int row, column, block;
          place_c(M, blocks, v, l, false, row, column, block);
          f(v, l, C[block][row]);
        }
    };
    each_row([&](int v, int l, float* row) {
      memcpy(row, ccopy[v] + l, 4 * M);
      if (flushes)
        for (int n = 0; n < M; n++) row[n] = flush(row[n]);
    });
    for (int b = 0; b < blocks; b++) {
      for (int g = 0; g < group; g++)
        for (int e = 0; e < per; e++) {
          memcpy(A[g * per + e], values[0][e] + M * (a_block(b) + blocks * g), 4 * M);
          memcpy(B[g * per + e], values[1][e] + M * (b + blocks * g), 4 * M);
        }
      if (is_int) multiply_int(M, K, A, B, C[b]);
      else if (M == 32) multiply<32>(K, A, B, C[b]);
      else if (M == 16) multiply<16>(K, A, B, C[b]);
      else multiply<4>(K, A, B, C[b]);
    }
    each_row([&](int v, int l, float* row) {
      if (flushes)
        for (int n = 0; n < M; n++) row[n] = flush(row[n]);
      memcpy(d[v] + l, row, 4 * M);
    });
  }
  int passes = passes_of(w, i);
  for (int r = 0; r < rc; r++) w.vu[i.dst - VGPR + r] = undefined ? ~0ull : uc[r];
  w.m->counts.mfma_passes += passes;
  w.m->counts.flops += 2ull * M * M * K * blocks;
  int unit = is_double ? DGEMM : i.atype == F32 ? SGEMM : XDL;
  // It reads its addend late: a VALU must not write there meanwhile.
  if (i.src[2] >= VGPR && (w.m->arch == GFX90A ? unit != DGEMM : unit == XDL))
    for (int r = 0; r < rc; r++) {
      int a = i.src[2] - VGPR + r;
      w.addend_v[a] = w.slot;
      w.addend_passes[a] = passes;
      w.vflag[a] |= 64;
    }
  if (unit == DGEMM) w.double_mfma = w.slot;
  after_mfma(w, i, i.dst, rc, passes, unit);
}
}  // namespace

#define P(name, ...) {name, [](Wave& w, const Inst& i) { __VA_ARGS__; }, VALU, 0}
#define HALF(name, n, expr)                                                       \
  P("v_pk_" name "_f16", packed2<true>(w, i, n, [&](u32 a, u32 b, u32 c) -> u32 { \
      (void)c;                                                                    \
      return expr;                                                                \
    }))
#define WORD(name, n, expr)                                                 \
  P("v_pk_" name, packed2<false>(w, i, n, [&](u32 a, u32 b, u32 c) -> u32 { \
      (void)c;                                                              \
      return expr;                                                          \
    }))

std::vector<Op> matrix_ops() {
  return {
    HALF("add", 2, clamp16(i, h(a) + h(b))), HALF("mul", 2, clamp16(i, h(a) * h(b))),
        HALF("min", 2, clamp16(i, quiet_min(h(a), h(b)))), HALF("max", 2, clamp16(i, quiet_max(h(a), h(b)))),
        HALF("fma", 3, i.clamp ? clamp16(i, half(fma_half(h(a), h(b), h(c)))) : fma_half(h(a), h(b), h(c))),
        P("v_pk_fmac_f16", Inst copy = i; copy.opsel_hi = 7;
          packed2<true>(w, copy, 3, [&](u32 a, u32 b, u32 c) { return fma_half(h(a), h(b), h(c)); })),
        HALF("minimum3", 3,
             h(a) != h(a)   ? a
             : h(b) != h(b) ? b
             : h(c) != h(c) ? c
                            : to_half(quiet_min(quiet_min(h(a), h(b)), h(c)))),
        HALF("maximum3", 3,
             h(a) != h(a)   ? a
             : h(b) != h(b) ? b
             : h(c) != h(c) ? c
                            : to_half(quiet_max(quiet_max(h(a), h(b)), h(c)))),
        WORD("mad_i16", 3, a * b + c), WORD("mad_u16", 3, a * b + c), WORD("mul_lo_u16", 2, a * b),
        WORD("add_i16", 2, i.clamp ? (u32)std::clamp(s16(a) + s16(b), -32768, 32767) : a + b),
        WORD("add_u16", 2, i.clamp ? std::min(a + b, 65535u) : a + b),
        WORD("sub_i16", 2, i.clamp ? (u32)std::clamp(s16(a) - s16(b), -32768, 32767) : a - b),
        WORD("sub_u16", 2, i.clamp && b > a ? 0 : a - b), WORD("lshlrev_b16", 2, b << (a & 15)),
        WORD("lshrrev_b16", 2, b >> (a & 15)), WORD("ashrrev_i16", 2, (u32)(s16(b) >> (a & 15))),
        WORD("max_i16", 2, (u32)std::max(s16(a), s16(b))), WORD("min_i16", 2, (u32)std::min(s16(a), s16(b))),
        WORD("max_u16", 2, std::max(a, b)), WORD("min_u16", 2, std::min(a, b)),
        P("v_pk_fma_f32", packed32(w, i, 3, [](float a, float b, float c) { return __builtin_fmaf(a, b, c); })),
        P("v_pk_mul_f32", packed32(w, i, 2, [](float a, float b, float) { return a * b; })),
        P("v_pk_add_f32", packed32(w, i, 2, [](float a, float b, float) { return a + b; })),
        {"v_pk_mov_b32", pk_mov, VALU, 0}, P("v_fma_mix_f32", mixed(w, i, 0)), P("v_fma_mixlo_f16", mixed(w, i, 1)),
        P("v_fma_mixhi_f16", mixed(w, i, 2)), P("v_mad_mix_f32", mixed(w, i, 0)), P("v_mad_mixlo_f16", mixed(w, i, 1)),
        P("v_mad_mixhi_f16", mixed(w, i, 2)), P("v_dot2_f32_f16", dot(w, i, dot2_half)),
        P("v_dot2c_f32_f16", dot(w, i, dot2_half)), P("v_dot2_f32_bf16", dot(w, i, dot2_bf16)),
        P("v_dot2c_f32_bf16", dot(w, i, dot2_bf16)), P("v_dot4_i32_i8", dot(w, i, dot4_i8)),
        P("v_dot4c_i32_i8", dot(w, i, dot4_i8)), P("v_dot4_u32_u8", dot(w, i, dot4_u8)),
        P("v_dot2_i32_i16",
          dot(w, i,
              [](u32 a, u32 b, u32 c) { return c + (u32)(s16(a) * s16(b)) + (u32)(s16(a >> 16) * s16(b >> 16)); })),
        P("v_dot2_u32_u16",
          dot(w, i, [](u32 a, u32 b, u32 c) { return c + (a & 0xffff) * (b & 0xffff) + (a >> 16) * (b >> 16); })),
        {"mfma", mfma, MFMA, 0},
  };
}
