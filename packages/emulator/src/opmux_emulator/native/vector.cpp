// Vector instructions of VOP1, VOP2, VOP3: arithmetic, conversions, bits. CDNA3 ISA, chapter 6 and section 12.7
// to 12.12.
#include "operands.h"
#include <algorithm>
#include <limits>

int dpp_lane(int c, int lane) {  // CDNA3 ISA, section 6.4 "Data parallel processing", table of DPP_CTRL
  int row = lane & ~15, in = lane & 15;
  if (c < 0x100) return (lane & ~3) | (c >> (2 * (lane & 3)) & 3);
  if (c <= 0x10f) return in + (c & 15) < 16 ? lane + (c & 15) : -1;            // row_shl: from the right
  if (c >= 0x111 && c <= 0x11f) return in >= (c & 15) ? lane - (c & 15) : -1;  // row_shr
  if (c >= 0x121 && c <= 0x12f) return row | ((in - (c & 15)) & 15);           // row_ror
  if (c >= 0x150 && c <= 0x15f) return row | (c & 15);                         // row_newbcast
  switch (c) {
    case 0x130: return lane < 63 ? lane + 1 : -1;       // wave_shl
    case 0x134: return (lane + 1) & 63;                 // wave_rol
    case 0x138: return lane - 1;                        // wave_shr
    case 0x13c: return (lane - 1) & 63;                 // wave_ror
    case 0x140: return row | (15 - in);                 // row_mirror
    case 0x141: return (lane & ~7) | (7 - (lane & 7));  // row_half_mirror
    case 0x142: return lane >= 16 ? row - 1 : -1;       // row_bcast15: lane 15 of the row before
    case 0x143: return lane >= 32 ? 31 : -1;            // row_bcast31
  }
  return -1;
}

namespace {
template <class To>
To to_int(double x) {  // conversions saturate; NaN is 0
  if (x != x) return 0;
  double lo = (double)std::numeric_limits<To>::min(), hi = (double)std::numeric_limits<To>::max();
  return x <= lo ? std::numeric_limits<To>::min() : x >= hi ? std::numeric_limits<To>::max() : (To)x;
}
float fract(float x) {
  float y = x - std::floor(x);
  return std::isinf(x) ? NAN : y >= 1 ? 0x1.fffffep-1f : y;
}
double fract(double x) {
  double y = x - std::floor(x);
  return std::isinf(x) ? NAN : y >= 1 ? 0x1.fffffffffffffp-1 : y;
}
float sine(float x) { return std::fabs(x) > 256 ? 0.0f : (float)std::sin(2 * M_PI * (double)x); }
float cosine(float x) { return std::fabs(x) > 256 ? 1.0f : (float)std::cos(2 * M_PI * (double)x); }
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
float middle3(float a, float b, float c) {
  if (a != a || b != b || c != c) return quiet_min(quiet_min(a, b), c);
  return quiet_max(quiet_min(a, b), quiet_min(quiet_max(a, b), c));
}

// Division's helpers (CDNA3 ISA, section 12.10: V_DIV_SCALE, V_DIV_FMAS, V_DIV_FIXUP).
template <class T>
struct Limits;
template <>
struct Limits<float> {
  static constexpr int bias = 127, mantissa = 23, big = 96, low = 64, tiny = 23;
};
template <>
struct Limits<double> {
  static constexpr int bias = 1023, mantissa = 52, big = 768, low = 128, tiny = 53;
};
template <class T>
int exponent_of(T x) {
  if constexpr (sizeof(T) == 4) return b32(x) >> 23 & 0xff;
  else return b64(x) >> 52 & 0x7ff;
}
template <class T>
bool denormal(T x) {
  return x != 0 && exponent_of(x) == 0;
}
template <class T>
void div_scale(Wave& w, const Inst& i) {
  start(w, i);
  FETCH(T, s0, 0);
  FETCH(T, s1, 1);
  FETCH(T, s2, 2);
  alignas(64) T r[LANES];
  u64 vcc = 0;
  using L = Limits<T>;
  for (int l = 0; l < LANES; l++) {
    T x = s0[l], den = s1[l], num = s2[l], y = x;
    bool flag = false;
    int en = exponent_of(num), ed = exponent_of(den);
    if (den == 0 || num == 0) y = NAN;
    else if (en - ed >= L::big) {
      flag = true;
      if (x == den) y = std::ldexp(x, L::low);
    } else if (denormal(den)) y = std::ldexp(x, sizeof(T) == 4 ? 64 : 128);
    // The manual scales up here, which overflows whenever 1 / den is a denormal: the sequence works with this sign.
    else if (denormal((T)(T(1) / den)) && denormal((T)(num / den))) {
      flag = true;
      if (x == den) y = std::ldexp(x, sizeof(T) == 4 ? -64 : -128);
    } else if (denormal((T)(T(1) / den))) y = std::ldexp(x, sizeof(T) == 4 ? -64 : -128);
    else if (denormal((T)(num / den))) {
      flag = true;
      if (x == num) y = std::ldexp(x, sizeof(T) == 4 ? 64 : 128);
    } else if (en <= L::tiny) y = std::ldexp(x, sizeof(T) == 4 ? 64 : 128);
    r[l] = y;
    if (flag) vcc |= 1ull << l;
  }
  u64 und = w.und;
  Destination<T>::put(w, i, r);
  u64 exec = w.exec();
  write_s64(w, i, i.sdst, vcc & exec, und & exec);
  for (int k = 0; k < 2; k++) {
    w.valu_s[i.sdst + k] = w.slot;
    w.sflag[i.sdst + k] |= 2;
  }
}
template <class T>
void div_fmas(Wave& w, const Inst& i) {
  start(w, i);
  FETCH(T, a, 0);
  FETCH(T, b, 1);
  FETCH(T, c, 2);
  touch_s(w, i, VCC);
  touch_s(w, i, VCC + 1);
  u64 vcc = w.pair(VCC);
  alignas(64) T r[LANES];
  for (int l = 0; l < LANES; l++) {
    r[l] = std::fma(a[l], b[l], c[l]);
    if (vcc >> l & 1) {
      bool up = exponent_of(c[l]) > Limits<T>::bias;
      int by = sizeof(T) == 4 ? 64 : 128;
      r[l] = std::ldexp(r[l], up ? by : -by);
    }
  }
  Destination<T>::put(w, i, r);
}
template <class T>
T div_fixup(T q, T den, T num) {
  bool sign = std::signbit(den) != std::signbit(num);
  if (num != num) return num;
  if (den != den) return den;
  if ((den == 0 && num == 0) || (std::isinf(den) && std::isinf(num))) return -std::numeric_limits<T>::quiet_NaN();
  if (den == 0 || std::isinf(num)) return sign ? -INFINITY : INFINITY;
  if (std::isinf(den) || num == 0) return sign ? -T(0) : T(0);
  T m = q != q ? T(INFINITY) : std::fabs(q);  // finite operands: the quotient overflowed on its way
  int lo = sizeof(T) == 4 ? -150 : -1075, hi = Limits<T>::bias;
  if (exponent_of(num) - exponent_of(den) < lo) m = 0;
  else if (exponent_of(den) == (sizeof(T) == 4 ? 255 : 2047)) m = 0;
  else if (exponent_of(num) - exponent_of(den) > hi * 2) m = INFINITY;
  return sign ? -m : m;
}

template <class T>
bool of_class(T x, u32 mask) {
  bool s = std::signbit(x);
  if (x != x) {
    bool quiet = sizeof(T) == 4 ? true : true;
    return mask & (quiet ? 2 : 1) || mask & 1;
  }
  if (std::isinf(x)) return mask & (s ? 4 : 512);
  if (x == 0) return mask & (s ? 32 : 64);
  if (std::fpclassify(x) == FP_SUBNORMAL) return mask & (s ? 16 : 128);
  return mask & (s ? 8 : 256);
}
bool class32(u32 x, u32 mask) {
  if ((x & 0x7fffffff) > 0x7f800000) return mask & (x >> 22 & 1 ? 2 : 1);
  return of_class(f32(x), mask);
}
bool class64(u64 x, u32 mask) {
  if ((x & ~(1ull << 63)) > 0x7ffull << 52) return mask & (x >> 51 & 1 ? 2 : 1);
  return of_class(f64(x), mask);
}
bool class16(u32 x, u32 mask) {
  u32 e = x >> 10 & 31, m = x & 1023;
  bool s = x >> 15;
  if (e == 31 && m) return mask & (m >> 9 ? 2 : 1);
  if (e == 31) return mask & (s ? 4 : 512);
  if (!e && !m) return mask & (s ? 32 : 64);
  return mask & (e ? s ? 8 : 256 : s ? 16 : 128);
}

void put_condition(Wave& w, const Inst& i, u64 bits, bool exec_too) {
  u64 exec = w.exec(), und = w.und & exec;
  bits &= exec;
  int d = i.sdst >= 0 ? i.sdst : VCC;
  write_s64(w, i, d, bits, und);
  w.valu_s[d] = w.valu_s[d + 1] = w.slot;
  w.sflag[d] |= 2;
  w.sflag[d + 1] |= 2;
  if (exec_too) {
    write_s64(w, i, EXEC, bits, und);
    w.valu_exec = w.slot;
  }
}
template <bool X, class T, class F>
void compare(Wave& w, const Inst& i, F f) {
  start(w, i);
  FETCH(T, a, 0);
  FETCH(T, b, 1);
  u64 r = 0;
  for (int l = 0; l < LANES; l++) r |= (u64)(bool)f(a[l], b[l]) << l;
  put_condition(w, i, r, X);
}
template <bool X, class T, class F>
void classify(Wave& w, const Inst& i, F f) {
  start(w, i);
  FETCH(T, a, 0);
  FETCH(u32, b, 1);
  u64 r = 0;
  for (int l = 0; l < LANES; l++) r |= (u64)(bool)f(a[l], b[l]) << l;
  put_condition(w, i, r, X);
}
template <class F>
void carry(Wave& w, const Inst& i, bool takes, F f) {  // f(a, b, c) gives 33 bits
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
void cndmask(Wave& w, const Inst& i) {
  start(w, i);
  alignas(64) u32 ab[LANES], bb[LANES], r[LANES];
  const u32* a = raw(w, i, 0, ab, 32);
  u64 ua = w.und;
  w.und = 0;
  const u32* b = raw(w, i, 1, bb, 32);
  u64 ub = w.und;
  u64 c, uc = 0;
  c = scalar64(w, i, i.src[2] >= 0 ? i.src[2] : VCC, false, &uc);
  u32 ka = i.abs & 1 ? 0x7fffffff : ~0u, fa = i.neg & 1 ? 1u << 31 : 0, kb = i.abs & 2 ? 0x7fffffff : ~0u,
      fb = i.neg & 2 ? 1u << 31 : 0;
  for (int l = 0; l < LANES; l++) r[l] = c >> l & 1 ? (b[l] & kb) ^ fb : (a[l] & ka) ^ fa;
  w.und = (c & ub) | (~c & ua) | uc;
  write_lanes(w, i, i.dst, r);
}
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
  u32 shift = i.variant == SDWA_ ? 0 : i.opsel & 1 ? 16 : 0;
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
bool saturates(Wave& w) { return w.mode >> 23 & 1; }  // MODE.FP16_OVFL

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
template <class F>
void scaled_to_bytes(Wave& w, const Inst& i, F f) {  // CDNA4 ISA: V_CVT_SCALEF32_PK_*
  start(w, i);
  FETCH(float, a, 0);
  FETCH(float, b, 1);
  FETCH(u32, s, 2);
  alignas(64) u32 r[LANES];
  const u32* d = write_v(w, i, i.dst);
  bool high = i.opsel & 8;
  for (int l = 0; l < LANES; l++) {
    float scale = e8m0(s[l] >> 23 & 0xff);
    u32 x = f(a[l] / scale) | (u32)f(b[l] / scale) << 8;
    r[l] = high ? (d[l] & 0xffff) | x << 16 : (d[l] & 0xffff0000) | x;
  }
  write_lanes(w, i, i.dst, r);
}
// The same from halves of one register, and the other way.
template <class F>
void scaled_halves_to_bytes(Wave& w, const Inst& i, F f) {
  start(w, i);
  FETCH(u32, a, 0);
  FETCH(u32, s, 1);
  alignas(64) u32 r[LANES];
  const u32* d = write_v(w, i, i.dst);
  bool high = i.opsel & 8;
  for (int l = 0; l < LANES; l++) {
    float scale = e8m0(s[l] >> 23 & 0xff);
    u32 x = f((u16)a[l], scale) | (u32)f((u16)(a[l] >> 16), scale) << 8;
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
    float scale = e8m0(s[l] >> 23 & 0xff);
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
    float scale = e8m0(s[l] >> 23 & 0xff);
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
  for (int l = 0; l < LANES; l++) r[l] = f((u8)(a[l] >> shift)) * e8m0(s[l] >> 23 & 0xff);
  Destination<float>::put(w, i, r);
}
// 4-bit floats, two a byte: the byte is chosen by op_sel.
template <class G>
void scaled_from_fp4(Wave& w, const Inst& i, G put) {
  start(w, i);
  FETCH(u32, a, 0);
  FETCH(u32, s, 1);
  u32 shift = 8 * (i.opsel & 3);
  float lo[LANES], hi[LANES];
  for (int l = 0; l < LANES; l++) {
    float scale = e8m0(s[l] >> 23 & 0xff);
    u8 x = a[l] >> shift;
    lo[l] = fp4(x & 15) * scale;
    hi[l] = fp4(x >> 4) * scale;
  }
  put(lo, hi);
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
    float scale = e8m0(s[l] >> 23 & 0xff);
    r[l] = (d[l] & ~(255u << shift)) | (u32)(to_fp4(a[l] / scale) | to_fp4(b[l] / scale) << 4) << shift;
  }
  write_lanes(w, i, i.dst, r);
}
float round_even(float x) { return std::nearbyint(x); }
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
float legacy_mul(float a, float b) { return a == 0 || b == 0 ? 0.0f : a * b; }
u16 fma16(float a, float b, float c) {
  // The product is exact in double; the sum is made odd where it is not, so that rounding to half rounds once.
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
}  // namespace

// v_bitop3: bit (a, b, c) of an eight-bit table that stands where other instructions have modifiers (CDNA4 ISA, VOP3).
static u32 truth_table(const Inst& i, u32 a, u32 b, u32 c) {
  u32 table = (u32)(i.omod << 6 | i.abs << 3 | i.neg), found = 0;
  for (int k = 0; k < 8; k++)
    if (table >> k & 1) found |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  return found;
}

#define U(name, D, A, expr) \
  {name, [](Wave& w, const Inst& i) { unary<D, A>(w, i, [&](auto a) { return expr; }); }, VALU, 0}
#define T(name, D, A, expr) \
  {name, [](Wave& w, const Inst& i) { unary<D, A>(w, i, [&](auto a) { return expr; }); }, TRANS, 0}
#define B(name, D, A, B_, expr) \
  {name, [](Wave& w, const Inst& i) { binary<D, A, B_>(w, i, [&](auto a, auto b) { return expr; }); }, VALU, 0}
#define C(name, D, A, B_, C_, ...)                                                                                   \
  {name,                                                                                                             \
   [](Wave& w, const Inst& i) { ternary<D, A, B_, C_>(w, i, [&](auto a, auto b, auto c) { return __VA_ARGS__; }); }, \
   VALU, 0}
#define X(name, ...) {name, [](Wave& w, const Inst& i) { __VA_ARGS__; }, VALU, 0}
#define CMP1(type, T_, op, expr)                                                                            \
  {"v_cmp_" op "_" type,                                                                                    \
   [](Wave& w, const Inst& i) { compare<false, T_>(w, i, [](auto a, auto b) { return expr; }); }, VALU, 0}, \
      {"v_cmpx_" op "_" type,                                                                               \
       [](Wave& w, const Inst& i) { compare<true, T_>(w, i, [](auto a, auto b) { return expr; }); }, VALU, 0}
#define CMPI(type, T_)                                                                         \
  CMP1(type, T_, "f", (a != a)), CMP1(type, T_, "lt", a < b), CMP1(type, T_, "eq", a == b),    \
      CMP1(type, T_, "le", a <= b), CMP1(type, T_, "gt", a > b), CMP1(type, T_, "ne", a != b), \
      CMP1(type, T_, "ge", a >= b), CMP1(type, T_, "t", (a == a))
#define CMPF(type, T_)                                                                                                \
  CMP1(type, T_, "f", (a != a && a == a)), CMP1(type, T_, "lt", a < b), CMP1(type, T_, "eq", a == b),                 \
      CMP1(type, T_, "le", a <= b), CMP1(type, T_, "gt", a > b), CMP1(type, T_, "lg", (a < b || a > b)),              \
      CMP1(type, T_, "ge", a >= b), CMP1(type, T_, "o", (a == a && b == b)), CMP1(type, T_, "u", (a != a || b != b)), \
      CMP1(type, T_, "nge", !(a >= b)), CMP1(type, T_, "nlg", !(a < b || a > b)), CMP1(type, T_, "ngt", !(a > b)),    \
      CMP1(type, T_, "nle", !(a <= b)), CMP1(type, T_, "neq", !(a == b)), CMP1(type, T_, "nlt", !(a < b)),            \
      CMP1(type, T_, "tru", (a == a || a != a))
#define S16(x) ((i32)(i16)(x))
struct Signed16 {};
template <>
struct Source<Signed16> {
  using type = i32;
  static const i32* get(Wave& w, const Inst& i, int k, i32* b) {
    Source<Short>::get(w, i, k, (u32*)b);
    for (int l = 0; l < LANES; l++) b[l] = (i16)b[l];
    return b;
  }
};

std::vector<Op> vector_ops() {
  return {
      {"v_nop", nop, VALU, 0},
      U("v_mov_b32", u32, u32, a),
      {"v_mov_b64", mov_b64, VALU, 0},
      U("v_not_b32", u32, u32, ~a),
      U("v_accvgpr_read", u32, u32, a),
      U("v_accvgpr_write", u32, u32, a),
      U("v_accvgpr_mov_b32", u32, u32, a),
      U("v_accvgpr_read_b32", u32, u32, a),
      U("v_accvgpr_write_b32", u32, u32, a),
      {"v_readfirstlane_b32", readfirstlane, VALU, 0},
      {"v_readlane_b32", readlane, VALU, 0},
      {"v_writelane_b32", writelane, VALU, 0},
      {"v_swap_b32", swap, VALU, 0},
      {"v_permlane16_swap_b32", permlane_swap<16>, VALU, 0},
      {"v_permlane32_swap_b32", permlane_swap<32>, VALU, 0},
      {"v_cndmask_b32", cndmask, VALU, 0},
      // Conversions.
      U("v_cvt_f32_i32", float, i32, (float)a),
      U("v_cvt_f32_u32", float, u32, (float)a),
      U("v_cvt_u32_f32", u32, float, to_int<u32>(a)),
      U("v_cvt_i32_f32", i32, float, to_int<i32>(a)),
      U("v_cvt_f16_f32", Half, float, to_half(a)),
      U("v_cvt_f32_f16", float, Half, a),
      U("v_cvt_rpi_i32_f32", i32, float, to_int<i32>(std::floor(a + 0.5f))),
      U("v_cvt_flr_i32_f32", i32, float, to_int<i32>(std::floor(a))),
      U("v_cvt_f64_i32", double, i32, (double)a),
      U("v_cvt_f64_u32", double, u32, (double)a),
      U("v_cvt_f64_f32", double, float, (double)a),
      U("v_cvt_f32_f64", float, double, (float)a),
      U("v_cvt_i32_f64", i32, double, to_int<i32>(a)),
      U("v_cvt_u32_f64", u32, double, to_int<u32>(a)),
      U("v_cvt_f32_ubyte0", float, u32, (float)(a & 255)),
      U("v_cvt_f32_ubyte1", float, u32, (float)(a >> 8 & 255)),
      U("v_cvt_f32_ubyte2", float, u32, (float)(a >> 16 & 255)),
      U("v_cvt_f32_ubyte3", float, u32, (float)(a >> 24)),
      U("v_cvt_f16_u16", Half, Short, to_half((float)a)),
      U("v_cvt_f16_i16", Half, Signed16, to_half((float)a)),
      U("v_cvt_u16_f16", Short, Half,
        a != a || a <= 0 ? 0u
        : a >= 65535     ? 65535u
                         : (u32)a),
      U("v_cvt_i16_f16", Short, Half,
        (u32)(u16)(i16)(a != a        ? 0
                        : a <= -32768 ? -32768
                        : a >= 32767  ? 32767
                                      : (i32)a)),
      U("v_cvt_off_f32_i4", float, u32, (float)((i32)(a << 28) >> 28) / 16.0f),
      U("v_cvt_f32_bf16", float, Short, bf16(a)),
      B("v_cvt_pkrtz_f16_f32", u32, float, float, (u32)to_half_rtz(a) | (u32)to_half_rtz(b) << 16),
      B("v_cvt_pk_f16_f32", u32, float, float, (u32)to_half(a) | (u32)to_half(b) << 16),
      B("v_cvt_pk_bf16_f32", u32, float, float, (u32)to_bf16(a) | (u32)to_bf16(b) << 16),
      B("v_cvt_pk_u16_u32", u32, u32, u32, std::min(a, 65535u) | std::min(b, 65535u) << 16),
      B("v_cvt_pk_i16_i32", u32, i32, i32,
        (u32)(u16)std::clamp(a, -32768, 32767) | (u32)(u16)std::clamp(b, -32768, 32767) << 16),
      B("v_cvt_pknorm_i16_f32", u32, float, float,
        (u32)(u16)(i16)to_int<i32>(round_even(quiet_min(quiet_max(a, -1.f), 1.f) * 32767)) |
            (u32)(u16)(i16)to_int<i32>(round_even(quiet_min(quiet_max(b, -1.f), 1.f) * 32767)) << 16),
      B("v_cvt_pknorm_u16_f32", u32, float, float,
        to_int<u32>(round_even(quiet_min(quiet_max(a, 0.f), 1.f) * 65535)) |
            to_int<u32>(round_even(quiet_min(quiet_max(b, 0.f), 1.f) * 65535)) << 16),
      C("v_cvt_pk_u8_f32", u32, float, u32, u32,
        (c & ~(255u << 8 * (b & 3))) | (u32)std::min(to_int<u32>(round_even(a)), 255u) << 8 * (b & 3)),
      X("v_cvt_f32_fp8", from_byte(w, i, [&](u8 x) { return fp8(x, w.m->arch != GFX950); })),
      X("v_cvt_f32_bf8", from_byte(w, i, [&](u8 x) { return bf8(x, w.m->arch != GFX950); })),
      X("v_cvt_pk_f32_fp8", from_bytes(w, i, [&](u8 x) { return fp8(x, w.m->arch != GFX950); })),
      X("v_cvt_pk_f32_bf8", from_bytes(w, i, [&](u8 x) { return bf8(x, w.m->arch != GFX950); })),
      X("v_cvt_pk_fp8_f32", to_bytes(w, i, [&](float x) { return to_fp8(x, w.m->arch != GFX950, saturates(w)); })),
      X("v_cvt_pk_bf8_f32", to_bytes(w, i, [&](float x) { return to_bf8(x, w.m->arch != GFX950, saturates(w)); })),
      X("v_cvt_sr_fp8_f32",
        to_byte_sr(w, i, [&](float x, u32 r) { return to_fp8(x, w.m->arch != GFX950, saturates(w), &r); })),
      X("v_cvt_sr_bf8_f32",
        to_byte_sr(w, i, [&](float x, u32 r) { return to_bf8(x, w.m->arch != GFX950, saturates(w), &r); })),
      X("v_cvt_scalef32_pk_fp8_f32", scaled_to_bytes(w, i, [&](float x) { return to_fp8(x, false, saturates(w)); })),
      X("v_cvt_scalef32_pk_bf8_f32", scaled_to_bytes(w, i, [&](float x) { return to_bf8(x, false, saturates(w)); })),
      X("v_cvt_scalef32_pk_fp8_f16",
        scaled_halves_to_bytes(w, i, [&](u16 x, float scale) { return to_fp8(half(x) / scale, false, saturates(w)); })),
      X("v_cvt_scalef32_pk_bf8_f16",
        scaled_halves_to_bytes(w, i, [&](u16 x, float scale) { return to_bf8(half(x) / scale, false, saturates(w)); })),
      X("v_cvt_scalef32_pk_fp8_bf16",
        scaled_halves_to_bytes(w, i, [&](u16 x, float scale) { return to_fp8(bf16(x) / scale, false, saturates(w)); })),
      X("v_cvt_scalef32_pk_bf8_bf16",
        scaled_halves_to_bytes(w, i, [&](u16 x, float scale) { return to_bf8(bf16(x) / scale, false, saturates(w)); })),
      X("v_cvt_scalef32_pk_f32_fp8", scaled_from_bytes(w, i, [](u8 x) { return fp8(x, false); })),
      X("v_cvt_scalef32_pk_f32_bf8", scaled_from_bytes(w, i, [](u8 x) { return bf8(x, false); })),
      X("v_cvt_scalef32_f32_fp8", scaled_from_byte(w, i, [](u8 x) { return fp8(x, false); })),
      X("v_cvt_scalef32_f32_bf8", scaled_from_byte(w, i, [](u8 x) { return bf8(x, false); })),
      X("v_cvt_scalef32_pk_f16_fp8", scaled_to_halves(
                                         w, i, [](u8 x) { return fp8(x, false); }, [](float x) { return to_half(x); })),
      X("v_cvt_scalef32_pk_f16_bf8", scaled_to_halves(
                                         w, i, [](u8 x) { return bf8(x, false); }, [](float x) { return to_half(x); })),
      X("v_cvt_scalef32_pk_bf16_fp8", scaled_to_halves(
                                          w, i, [](u8 x) { return fp8(x, false); }, to_bf16)),
      X("v_cvt_scalef32_pk_bf16_bf8", scaled_to_halves(
                                          w, i, [](u8 x) { return bf8(x, false); }, to_bf16)),
      X("v_cvt_scalef32_pk_f32_fp4", scaled_from_fp4(w, i,
                                                     [&](const float* lo, const float* hi) {
                                                       alignas(64) u64 r[LANES];
                                                       for (int l = 0; l < LANES; l++)
                                                         r[l] = (u64)b32(hi[l]) << 32 | b32(lo[l]);
                                                       put64(w, i, r);
                                                     })),
      X("v_cvt_scalef32_pk_f16_fp4", scaled_from_fp4(w, i,
                                                     [&](const float* lo, const float* hi) {
                                                       alignas(64) u32 r[LANES];
                                                       for (int l = 0; l < LANES; l++)
                                                         r[l] = to_half(lo[l]) | (u32)to_half(hi[l]) << 16;
                                                       write_lanes(w, i, i.dst, r);
                                                     })),
      X("v_cvt_scalef32_pk_bf16_fp4", scaled_from_fp4(w, i,
                                                      [&](const float* lo, const float* hi) {
                                                        alignas(64) u32 r[LANES];
                                                        for (int l = 0; l < LANES; l++)
                                                          r[l] = to_bf16(lo[l]) | (u32)to_bf16(hi[l]) << 16;
                                                        write_lanes(w, i, i.dst, r);
                                                      })),
      X("v_cvt_scalef32_pk_fp4_f32", scaled_to_fp4(w, i)),
      U("v_prng_b32", u32, u32, (a << 1) ^ (a >> 31 ? 197u : 0u)),
      // Float.
      B("v_add_f32", float, float, float, a + b),
      B("v_sub_f32", float, float, float, a - b),
      B("v_subrev_f32", float, float, float, b - a),
      B("v_mul_f32", float, float, float, a* b),
      B("v_mul_legacy_f32", float, float, float, legacy_mul(a, b)),
      B("v_min_f32", float, float, float, quiet_min(a, b)),
      B("v_max_f32", float, float, float, quiet_max(a, b)),
      C("v_fma_f32", float, float, float, float, __builtin_fmaf(a, b, c)),
      C("v_fmac_f32", float, float, float, float, __builtin_fmaf(a, b, c)),
      C("v_fmamk_f32", float, float, float, float, __builtin_fmaf(a, b, c)),
      C("v_fmaak_f32", float, float, float, float, __builtin_fmaf(a, b, c)),
      // v_mad and v_mac round the product and flush denormals whatever the mode says.
      C("v_mad_f32", float, float, float, float, flush(flush(flush(a) * flush(b)) + flush(c))),
      C("v_mac_f32", float, float, float, float, flush(flush(flush(a) * flush(b)) + flush(c))),
      C("v_madmk_f32", float, float, float, float, flush(flush(flush(a) * flush(b)) + flush(c))),
      C("v_madak_f32", float, float, float, float, flush(flush(flush(a) * flush(b)) + flush(c))),
      C("v_mad_legacy_f32", float, float, float, float, flush(legacy_mul(flush(a), flush(b)) + flush(c))),
      C("v_min3_f32", float, float, float, float, quiet_min(quiet_min(a, b), c)),
      C("v_max3_f32", float, float, float, float, quiet_max(quiet_max(a, b), c)),
      C("v_med3_f32", float, float, float, float, middle3(a, b, c)),
      C("v_minimum3_f32", float, float, float, float,
        a != a   ? a
        : b != b ? b
        : c != c ? c
                 : quiet_min(quiet_min(a, b), c)),
      C("v_maximum3_f32", float, float, float, float,
        a != a   ? a
        : b != b ? b
        : c != c ? c
                 : quiet_max(quiet_max(a, b), c)),
      U("v_fract_f32", float, float, fract(a)),
      U("v_trunc_f32", float, float, std::trunc(a)),
      U("v_ceil_f32", float, float, std::ceil(a)),
      U("v_rndne_f32", float, float, round_even(a)),
      U("v_floor_f32", float, float, std::floor(a)),
      T("v_exp_f32", float, float, flush(exp2f(flush(a)))),
      T("v_log_f32", float, float, log2f(flush(a))),
      T("v_rcp_f32", float, float, flush(1.0f / flush(a))),
      T("v_exp_legacy_f32", float, float, flush(exp2f(flush(a)))),
      T("v_log_legacy_f32", float, float, log2f(flush(a))),
      T("v_rcp_iflag_f32", float, float, flush(1.0f / flush(a))),
      T("v_rsq_f32", float, float, (float)(1.0 / std::sqrt((double)flush(a)))),
      T("v_sqrt_f32", float, float, std::sqrt(flush(a))),
      T("v_sin_f32", float, float, sine(a)),
      T("v_cos_f32", float, float, cosine(a)),
      U("v_frexp_exp_i32_f32", i32, float, a == 0 || !std::isfinite(a) ? 0 : std::ilogb(a) + 1),
      U("v_frexp_mant_f32", float, float, a == 0 || !std::isfinite(a) ? a : std::ldexp(a, -std::ilogb(a) - 1)),
      B("v_ldexp_f32", float, float, i32, std::ldexp(a, std::clamp(b, -400, 400))),
      X("v_div_scale_f32", div_scale<float>(w, i)),
      X("v_div_scale_f64", div_scale<double>(w, i)),
      X("v_div_fmas_f32", div_fmas<float>(w, i)),
      X("v_div_fmas_f64", div_fmas<double>(w, i)),
      C("v_div_fixup_f32", float, float, float, float, div_fixup(a, b, c)),
      C("v_div_fixup_f64", double, double, double, double, div_fixup(a, b, c)),
      // Double.
      B("v_add_f64", double, double, double, a + b),
      B("v_mul_f64", double, double, double, a* b),
      B("v_min_f64", double, double, double, quiet_min(a, b)),
      B("v_max_f64", double, double, double, quiet_max(a, b)),
      C("v_fma_f64", double, double, double, double, std::fma(a, b, c)),
      C("v_fmac_f64", double, double, double, double, std::fma(a, b, c)),
      B("v_ldexp_f64", double, double, i32, std::ldexp(a, std::clamp(b, -3000, 3000))),
      U("v_trunc_f64", double, double, std::trunc(a)),
      U("v_ceil_f64", double, double, std::ceil(a)),
      U("v_rndne_f64", double, double, std::nearbyint(a)),
      U("v_floor_f64", double, double, std::floor(a)),
      U("v_fract_f64", double, double, fract(a)),
      T("v_rcp_f64", double, double, 1.0 / a),
      T("v_rsq_f64", double, double, 1.0 / std::sqrt(a)),
      T("v_sqrt_f64", double, double, std::sqrt(a)),
      U("v_frexp_exp_i32_f64", i32, double, a == 0 || !std::isfinite(a) ? 0 : std::ilogb(a) + 1),
      U("v_frexp_mant_f64", double, double, a == 0 || !std::isfinite(a) ? a : std::ldexp(a, -std::ilogb(a) - 1)),
      // Half: computed in float, which rounds once (float has more than twice half's bits).
      B("v_add_f16", Half, Half, Half, to_half(a + b)),
      B("v_sub_f16", Half, Half, Half, to_half(a - b)),
      B("v_subrev_f16", Half, Half, Half, to_half(b - a)),
      B("v_mul_f16", Half, Half, Half, to_half(a * b)),
      B("v_min_f16", Half, Half, Half, to_half(quiet_min(a, b))),
      B("v_max_f16", Half, Half, Half, to_half(quiet_max(a, b))),
      C("v_fma_f16", HalfKept, Half, Half, Half, fma16(a, b, c)),
      C("v_mad_f16", HalfKept, Half, Half, Half, to_half(half(to_half(a * b)) + c)),
      C("v_mac_f16", Half, Half, Half, Half, to_half(half(to_half(a * b)) + c)),
      C("v_madmk_f16", Half, Half, Half, Half, to_half(half(to_half(a * b)) + c)),
      C("v_madak_f16", Half, Half, Half, Half, to_half(half(to_half(a * b)) + c)),
      C("v_min3_f16", HalfKept, Half, Half, Half, to_half(quiet_min(quiet_min(a, b), c))),
      C("v_max3_f16", HalfKept, Half, Half, Half, to_half(quiet_max(quiet_max(a, b), c))),
      C("v_med3_f16", HalfKept, Half, Half, Half, to_half(middle3(a, b, c))),
      C("v_div_fixup_f16", HalfKept, Half, Half, Half, to_half(div_fixup(a, b, c))),
      T("v_rcp_f16", Half, Half, to_half(1.0f / a)),
      T("v_sqrt_f16", Half, Half, to_half(std::sqrt(a))),
      T("v_rsq_f16", Half, Half, to_half(1.0 / std::sqrt((double)a))),
      T("v_log_f16", Half, Half, to_half(std::log2((double)a))),
      T("v_exp_f16", Half, Half, to_half(std::exp2((double)a))),
      T("v_sin_f16", Half, Half, to_half(sine(a))),
      T("v_cos_f16", Half, Half, to_half(cosine(a))),
      U("v_floor_f16", Half, Half, to_half(std::floor(a))),
      U("v_ceil_f16", Half, Half, to_half(std::ceil(a))),
      U("v_trunc_f16", Half, Half, to_half(std::trunc(a))),
      U("v_rndne_f16", Half, Half, to_half(round_even(a))),
      U("v_fract_f16", Half, Half, to_half(fract(a))),
      B("v_ldexp_f16", Half, Half, Signed16, to_half(std::ldexp(a, b))),
      B("v_pack_b32_f16", u32, Short, Short, a | b << 16),
      // Integers.
      B("v_add_u32", u32, u32, u32, saturated_add(a, b, i.clamp)),
      B("v_sub_u32", u32, u32, u32, saturated_sub(a, b, i.clamp)),
      B("v_subrev_u32", u32, u32, u32, saturated_sub(b, a, i.clamp)),
      B("v_add_i32", i32, i32, i32, i.clamp ? clamp64((i64)a + b) : (i32)((u32)a + b)),
      B("v_sub_i32", i32, i32, i32, i.clamp ? clamp64((i64)a - b) : (i32)((u32)a - b)),
      X("v_add_co_u32", carry(w, i, false, [](u64 a, u64 b, u64) { return a + b; })),
      X("v_sub_co_u32", carry(w, i, false, [](u64 a, u64 b, u64) { return a - b; })),
      X("v_subrev_co_u32", carry(w, i, false, [](u64 a, u64 b, u64) { return b - a; })),
      X("v_addc_co_u32", carry(w, i, true, [](u64 a, u64 b, u64 c) { return a + b + c; })),
      X("v_subb_co_u32", carry(w, i, true, [](u64 a, u64 b, u64 c) { return a - b - c; })),
      X("v_subbrev_co_u32", carry(w, i, true, [](u64 a, u64 b, u64 c) { return b - a - c; })),
      B("v_mul_i32_i24", i32, u32, u32, (i32)((u32)sign24(a) * (u32)sign24(b))),
      B("v_mul_hi_i32_i24", i32, u32, u32, (i32)(((i64)sign24(a) * sign24(b)) >> 32)),
      B("v_mul_u32_u24", u32, u32, u32, (a & 0xffffff) * (b & 0xffffff)),
      B("v_mul_hi_u32_u24", u32, u32, u32, (u32)(((u64)(a & 0xffffff) * (b & 0xffffff)) >> 32)),
      C("v_mad_i32_i24", u32, u32, u32, u32, (u32)sign24(a) * (u32)sign24(b) + c),
      C("v_mad_u32_u24", u32, u32, u32, u32, (a & 0xffffff) * (b & 0xffffff) + c),
      B("v_mul_lo_u32", u32, u32, u32, a * b),
      B("v_mul_hi_u32", u32, u32, u32, (u32)((u64)a * b >> 32)),
      B("v_mul_hi_i32", i32, i32, i32, (i32)((i64)a * b >> 32)),
      X("v_mad_u64_u32", mad64(w, i, false)),
      X("v_mad_i64_i32", mad64(w, i, true)),
      B("v_min_i32", i32, i32, i32, std::min(a, b)),
      B("v_max_i32", i32, i32, i32, std::max(a, b)),
      B("v_min_u32", u32, u32, u32, std::min(a, b)),
      B("v_max_u32", u32, u32, u32, std::max(a, b)),
      C("v_min3_i32", i32, i32, i32, i32, std::min({a, b, c})),
      C("v_max3_i32", i32, i32, i32, i32, std::max({a, b, c})),
      C("v_min3_u32", u32, u32, u32, u32, std::min({a, b, c})),
      C("v_max3_u32", u32, u32, u32, u32, std::max({a, b, c})),
      C("v_med3_i32", i32, i32, i32, i32, middle(a, b, c)),
      C("v_med3_u32", u32, u32, u32, u32, middle(a, b, c)),
      B("v_lshrrev_b32", u32, u32, u32, b >> (a & 31)),
      B("v_ashrrev_i32", i32, u32, i32, b >> (a & 31)),
      B("v_lshlrev_b32", u32, u32, u32, b << (a & 31)),
      X("v_lshlrev_b64", shift_left64(w, i)),
      B("v_lshrrev_b64", u64, u32, u64, b >> (a & 63)),
      B("v_ashrrev_i64", i64, u32, i64, b >> (a & 63)),
      B("v_and_b32", u32, u32, u32, a & b),
      B("v_or_b32", u32, u32, u32, a | b),
      B("v_xor_b32", u32, u32, u32, a ^ b),
      B("v_xnor_b32", u32, u32, u32, ~(a ^ b)),
      U("v_bfrev_b32", u32, u32, reversed(a)),
      U("v_ffbh_u32", u32, u32, (u32)ffbh(a)),
      U("v_ffbl_b32", u32, u32, a ? (u32)__builtin_ctz(a) : ~0u),
      U("v_ffbh_i32", u32, i32, a == 0 || a == -1 ? ~0u : (u32)__builtin_clz(a < 0 ? ~a : a)),
      B("v_bfm_b32", u32, u32, u32, ((1u << (a & 31)) - 1) << (b & 31)),
      B("v_bcnt_u32_b32", u32, u32, u32, (u32)__builtin_popcount(a) + b),
      C("v_bfe_u32", u32, u32, u32, u32, a >> (b & 31) & ((1u << (c & 31)) - 1)),
      C("v_bfe_i32", i32, i32, u32, u32,
        (c & 31) == 0              ? 0
        : (b & 31) + (c & 31) < 32 ? (i32)((u32)a << (32 - (b & 31) - (c & 31))) >> (32 - (c & 31))
                                   : a >> (b & 31)),
      C("v_bfi_b32", u32, u32, u32, u32, (a & b) | (~a & c)),
      C("v_alignbit_b32", u32, u32, u32, u32, (u32)(((u64)a << 32 | b) >> (c & 31))),
      C("v_alignbyte_b32", u32, u32, u32, u32, (u32)(((u64)a << 32 | b) >> 8 * (c & 3))),
      C("v_perm_b32", u32, u32, u32, u32, perm(a, b, c)),
      C("v_lshl_add_u32", u32, u32, u32, u32, (a << (b & 31)) + c),
      C("v_add_lshl_u32", u32, u32, u32, u32, (a + b) << (c & 31)),
      C("v_add3_u32", u32, u32, u32, u32, a + b + c),
      C("v_lshl_or_b32", u32, u32, u32, u32, (a << (b & 31)) | c),
      C("v_and_or_b32", u32, u32, u32, u32, (a & b) | c),
      C("v_or3_b32", u32, u32, u32, u32, a | b | c),
      C("v_xad_u32", u32, u32, u32, u32, (a ^ b) + c),
      X("v_lshl_add_u64", shift_add64(w, i)),
      C("v_sad_u32", u32, u32, u32, u32, (a > b ? a - b : b - a) + c),
      C("v_sad_u8", u32, u32, u32, u32, sad8(a, b, c)),
      C("v_bitop3_b32", u32, u32, u32, u32, truth_table(i, a, b, c)),
      X("v_mbcnt_lo_u32_b32", binary<u32, u32, u32>(w, i,
                                                    [l = 0](u32 a, u32 b) mutable {
                                                      u32 below = l < 32 ? (1u << l) - 1 : ~0u;
                                                      l++;
                                                      return b + (u32)__builtin_popcount(a & below);
                                                    })),
      X("v_mbcnt_hi_u32_b32", binary<u32, u32, u32>(w, i,
                                                    [l = 0](u32 a, u32 b) mutable {
                                                      u32 below = l > 32 ? (1u << (l - 32)) - 1 : 0;
                                                      l++;
                                                      return b + (u32)__builtin_popcount(a & below);
                                                    })),
      // 16-bit integers.
      B("v_add_u16", Short, Short, Short, a + b & 0xffff),
      B("v_sub_u16", Short, Short, Short, a - b & 0xffff),
      B("v_subrev_u16", Short, Short, Short, b - a & 0xffff),
      B("v_mul_lo_u16", Short, Short, Short, a * b & 0xffff),
      B("v_lshlrev_b16", Short, Short, Short, b << (a & 15) & 0xffff),
      B("v_lshrrev_b16", Short, Short, Short, b >> (a & 15)),
      B("v_ashrrev_i16", Short, Short, Signed16, (u32)(b >> (a & 15)) & 0xffff),
      B("v_max_u16", Short, Short, Short, std::max(a, b)),
      B("v_min_u16", Short, Short, Short, std::min(a, b)),
      B("v_max_i16", Short, Signed16, Signed16, (u32)std::max(a, b) & 0xffff),
      B("v_min_i16", Short, Signed16, Signed16, (u32)std::min(a, b) & 0xffff),
      B("v_add_i16", Short, Signed16, Signed16, (u32)(i.clamp ? std::clamp(a + b, -32768, 32767) : a + b) & 0xffff),
      B("v_sub_i16", Short, Signed16, Signed16, (u32)(i.clamp ? std::clamp(a - b, -32768, 32767) : a - b) & 0xffff),
      C("v_mad_u16", ShortKept, Short, Short, Short, a * b + c & 0xffff),
      C("v_mad_i16", ShortKept, Short, Short, Short, a * b + c & 0xffff),
      C("v_mad_legacy_u16", Short, Short, Short, Short, a * b + c & 0xffff),
      C("v_mad_legacy_i16", Short, Short, Short, Short, a * b + c & 0xffff),
      C("v_mad_u32_u16", u32, Short, Short, u32, a * b + c),
      C("v_mad_i32_i16", i32, Signed16, Signed16, i32, a * b + c),
      C("v_min3_u16", ShortKept, Short, Short, Short, std::min({a, b, c})),
      C("v_max3_u16", ShortKept, Short, Short, Short, std::max({a, b, c})),
      C("v_bitop3_b16", ShortKept, Short, Short, Short, truth_table(i, a, b, c) & 0xffff),
      C("v_min3_i16", ShortKept, Signed16, Signed16, Signed16, (u32)std::min({a, b, c}) & 0xffff),
      C("v_max3_i16", ShortKept, Signed16, Signed16, Signed16, (u32)std::max({a, b, c}) & 0xffff),
      // Comparisons.
      CMPI("i32", i32),
      CMPI("u32", u32),
      CMPI("i64", i64),
      CMPI("u64", u64),
      CMPI("i16", Signed16),
      CMPI("u16", Short),
      CMPF("f32", float),
      CMPF("f64", double),
      CMPF("f16", Half),
      X("v_cmp_class_f32",
        classify<false, u32>(w, i,
                             [&](u32 a, u32 m) {
                               return class32((a & (i.abs & 1 ? 0x7fffffff : ~0u)) ^ (i.neg & 1 ? 1u << 31 : 0), m);
                             })),
      X("v_cmpx_class_f32",
        classify<true, u32>(w, i,
                            [&](u32 a, u32 m) {
                              return class32((a & (i.abs & 1 ? 0x7fffffff : ~0u)) ^ (i.neg & 1 ? 1u << 31 : 0), m);
                            })),
      X("v_cmp_class_f64", classify<false, double>(w, i, [&](double a, u32 m) { return class64(b64(a), m); })),
      X("v_cmp_class_f16", classify<false, Short>(w, i, [](u32 a, u32 m) { return class16(a, m); })),
  };
}
