// Matrix instructions.
// CDNA3 ISA, chapter 7 "Matrix arithmetic instructions"; CDNA4 ISA, section 7.2 for the block-scaled ones. Layouts as
// AMD's matrix instruction calculator prints them.
#include "elements.h"
#include "operands.h"
#include "tables.h"
#ifdef __FMA__
#include <immintrin.h>
#endif

namespace {
// What register v of a lane holds of C and D (32x32: four rows of every eight; 16x16: four rows a sixteen lanes).
struct Place {
  int row, column, block;
};
// Inlined: a structure of three integers that a call returns goes through memory, and its reader waits for the stores.
__attribute__((always_inline)) inline Place place_of(int m, int v, int lane, bool is_double) {
  int column = lane & (m - 1);  // m is a power of two
  if (m == 4 && is_double) return {lane / 16, column, lane / 4 % 4};
  if (m == 4) return {v, column, lane / 4};
  if (is_double) return {4 * v + lane / 16, column, 0};
  if (m == 16) return {4 * (lane / 16) + v % 4, column, v / 4};
  return {8 * (v % 16 / 4) + 4 * (lane / 32) + v % 4, column, v / 16};
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
// An instruction's shape, and where elements of A and B lie.
struct Tile {
  int m, k, blocks;
  int group;      // lanes that hold one row of one block: they differ in k
  int per;        // elements of A, and of B, in a lane
  int registers;  // of C, and of D
  bool is_double;
  explicit Tile(const Inst& i)
      : m(i.m), k(i.k), blocks(i.blocks), group(64 / (m * blocks)), per(k / group), is_double(i.atype == F64) {
    registers = m * m * blocks / 64 * (is_double ? 2 : 1);
  }
  int lane_of(int row, int block, int at) const { return row + m * (block + blocks * (at / per)); }
};
// A copy of source k; true where nothing wrote some of it.
bool read_factor(Wave& w, const Inst& i, int k, int registers, u32 (*copy)[LANES]) {
  u64 und = 0;
  for (int r = 0; r < registers; r++) {
    const u32* p = read_v(w, i, i.src[k] + r);
    valu_result(w, i, i.src[k] + r);
    und |= w.vu[i.src[k] - VGPR + r];
    memcpy(copy[r], p, 4 * LANES);
  }
  return und != 0;
}
void read_addend(Wave& w, const Inst& i, const Tile& t, u32 (*copy)[LANES], u64* unwritten) {
  for (int r = 0; r < t.registers; r++) {
    if (i.src[2] >= VGPR) {
      memcpy(copy[r], read_v(w, i, i.src[2] + r), 4 * LANES);
      valu_result(w, i, i.src[2] + r);
      unwritten[r] = w.vu[i.src[2] - VGPR + r];
      continue;
    }
    u32 x = t.is_double ? 0 : scalar(w, i, i.src[2], 32);
    if (t.is_double && r & 1) x = constant(w, i, i.src[2], 64) >> 32;
    for (int l = 0; l < LANES; l++) copy[r][l] = x;
  }
}
// The scales of A and B in every lane: a byte of a register each, which op_sel chooses.
void read_scales(Wave& w, const Inst& i, float (*scales)[LANES]) {
  alignas(64) u32 t[LANES];
  Inst copy = i;
  copy.variant = PLAIN;
  w.und = 0;
  for (int side = 0; side < 2; side++) {
    copy.src[0] = i.scale[side];
    const u32* p = raw(w, copy, 0, t, 32);
    int byte = (i.opsel >> side & 1) | (i.opsel_hi >> side & 1) << 1;
    for (int l = 0; l < LANES; l++) scales[side][l] = e8m0(p[l] >> (8 * byte) & 255);
  }
}
// The lane whose B a lane gets, by blgp (section 7.1.2).
int lane_of_b(int pattern, int lane) {
  switch (pattern) {
    case 1: return lane & 31;
    case 2: return 32 | (lane & 31);
    case 3: return (lane + 16) % LANES;
    case 4: return lane & 15;
    case 5: return 16 | (lane & 15);
    case 6: return 32 | (lane & 15);
    case 7: return 48 | (lane & 15);
  }
  return lane;
}
// One side's elements as float, by element and lane, with denormals flushed and scales applied.
void prepare(int type, const u32 (*s)[LANES], int per, bool fnuz, bool flushes, const float* scale,
             float (*values)[LANES]) {
  convert(type, s, bits_of(type), per, fnuz, values);
  if (flushes) {
    float least = type == F16 ? 0x1p-14f : 0x1p-126f;
    for (int e = 0; e < per; e++)
      for (int l = 0; l < LANES; l++) values[e][l] = std::fabs(values[e][l]) < least ? 0.0f : values[e][l];
  }
  if (scale)
    for (int e = 0; e < per; e++)
      for (int l = 0; l < LANES; l++) values[e][l] *= scale[l];
}
// f(register, lane, row of C): lanes of one row are neighbours, so that whole rows are copied.
template <class F>
void each_row(const Tile& t, float (*C)[32][32], F f) {
  for (int v = 0; v < t.registers; v++)
    for (int l = 0; l < LANES; l += t.m) {
      Place p = place_of(t.m, v, l, false);
      f(v, l, C[p.block][p.row]);
    }
}
void multiply_singles(Wave& w, const Inst& i, const Tile& t, const u32 (*a)[LANES], const u32 (*b)[LANES],
                      const u32 (*c)[LANES], u32* const* d) {
  static float values[2][32][LANES], C[16][32][32], A[128][32], B[128][32];  // 16 blocks at most, of 4x4
  int M = t.m;
  bool fnuz = w.m->arch != GFX950, flushes = w.m->arch == GFX90A && (i.atype == F16 || i.atype == BF16);
  float scales[2][LANES];
  bool scaled = i.scale[0] >= 0;
  if (scaled) read_scales(w, i, scales);
  prepare(i.atype, a, t.per, fnuz, flushes, scaled ? scales[0] : nullptr, values[0]);
  prepare(i.btype, b, t.per, fnuz, flushes, scaled ? scales[1] : nullptr, values[1]);
  // cbsz and abid broadcast one block's A to others, blgp moves B's lanes: not of the floats of 8 bits and less.
  bool moves = i.atype == F32 || i.atype == F16 || i.atype == BF16 || i.atype == I8;
  if (moves && i.blgp)
    for (int e = 0; e < t.per; e++) {
      float before[LANES];
      memcpy(before, values[1][e], sizeof before);
      for (int l = 0; l < LANES; l++) values[1][e][l] = before[lane_of_b(i.blgp, l)];
    }
  each_row(t, C, [&](int v, int l, float* row) {
    memcpy(row, c[v] + l, 4 * M);
    if (flushes)
      for (int n = 0; n < M; n++) row[n] = flush(row[n]);
  });
  for (int block = 0; block < t.blocks; block++) {
    int from = moves && i.cbsz ? (block & ~((1 << i.cbsz) - 1)) | i.abid : block;
    for (int g = 0; g < t.group; g++)
      for (int e = 0; e < t.per; e++) {
        memcpy(A[g * t.per + e], values[0][e] + M * (from + t.blocks * g), 4 * M);
        memcpy(B[g * t.per + e], values[1][e] + M * (block + t.blocks * g), 4 * M);
      }
    if (i.atype == I8) multiply_int(M, t.k, A, B, C[block]);
    else if (M == 32) multiply<32>(t.k, A, B, C[block]);
    else if (M == 16) multiply<16>(t.k, A, B, C[block]);
    else multiply<4>(t.k, A, B, C[block]);
  }
  each_row(t, C, [&](int v, int l, float* row) {
    if (flushes)
      for (int n = 0; n < M; n++) row[n] = flush(row[n]);
    memcpy(d[v] + l, row, 4 * M);
  });
}
// Of doubles, blgp negates A, B and C.
void multiply_doubles(const Inst& i, const Tile& t, const u32 (*a)[LANES], const u32 (*b)[LANES], const u32 (*c)[LANES],
                      u32* const* d) {
  auto at = [](const u32(*s)[LANES], int lane) { return f64((u64)s[1][lane] << 32 | s[0][lane]); };
  for (int v = 0; v < t.registers / 2; v++)
    for (int l = 0; l < LANES; l++) {
      Place place = place_of(t.m, v, l, true);
      double x = at(c + 2 * v, l);
      if (i.blgp & 4) x = -x;
      for (int k = 0; k < t.k; k++) {
        double p = at(a, t.lane_of(place.row, place.block, k)), q = at(b, t.lane_of(place.column, place.block, k));
        x = std::fma(i.blgp & 1 ? -p : p, i.blgp & 2 ? -q : q, x);
      }
      d[2 * v][l] = (u32)b64(x);
      d[2 * v + 1][l] = b64(x) >> 32;
    }
}
// CDNA3 ISA, section 7.1: passes of four cycles.
int passes_of(const Wave& w, const Inst& i) {
  int t = i.atype;
  bool big = i.m == 32, eight = t == FP8 || t == BF8 || i.btype == FP8 || i.btype == BF8;
  if (t == F64) return i.m == 4 ? 4 : w.m->arch == GFX950 ? 16 : 8;
  if (i.m == 4) return 2;
  if (w.m->arch == GFX90A || t == F32 || i.blocks > 1) return big ? 16 : 8;
  if (eight && i.k >= 64) return big ? 16 : 8;  // f8f6f4 with an 8-bit operand
  return big ? 8 : 4;
}
void mfma(Wave& w, const Inst& i) {
  Tile t(i);
  static u32 a[8][LANES], b[8][LANES], c[32][LANES];
  u64 unwritten[32] = {};  // of C, by register
  bool undefined = read_factor(w, i, 0, (t.per * bits_of(i.atype) + 31) / 32, a);
  undefined |= read_factor(w, i, 1, (t.per * bits_of(i.btype) + 31) / 32, b);
  read_addend(w, i, t, c, unwritten);
  u32* d[32];
  for (int r = 0; r < t.registers; r++) d[r] = write_v(w, i, i.dst + r);
  if (t.is_double) multiply_doubles(i, t, a, b, c, d);
  else multiply_singles(w, i, t, a, b, c, d);
  for (int r = 0; r < t.registers; r++) w.vu[i.dst - VGPR + r] = undefined ? ~0ull : unwritten[r];
  int passes = passes_of(w, i), unit = t.is_double ? DGEMM : i.atype == F32 ? SGEMM : XDL;
  w.m->counts.mfma_passes += passes;
  w.m->counts.flops += 2ull * t.m * t.m * t.k * t.blocks;
  // It reads its addend late: a VALU must not write there meanwhile.
  if (i.src[2] >= VGPR && (w.m->arch == GFX90A ? unit != DGEMM : unit == XDL))
    for (int r = 0; r < t.registers; r++) {
      int addend = i.src[2] - VGPR + r;
      w.addend_v[addend] = w.slot;
      w.addend_passes[addend] = passes;
      w.vflag[addend] |= 64;
    }
  if (unit == DGEMM) w.double_mfma = w.slot;
  after_mfma(w, i, i.dst, t.registers, passes, unit);
}
}  // namespace

std::vector<Op> matrix_ops() { return {{"mfma", mfma, MFMA, 0}}; }
