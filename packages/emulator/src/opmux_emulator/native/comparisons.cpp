// Comparisons, classes of floats, and the choice by a condition. CDNA3 ISA, section 12.11 "VOPC instructions".
#include "vector.h"

namespace {
// The classes of a mask: 1 signalling NaN, 2 quiet NaN; 4, 8, 16, 32 negative infinity, normal, denormal, zero; 64,
// 128, 256, 512 positive zero, denormal, normal, infinity.
template <int EXPONENT, int MANTISSA>
bool in_class(u64 x, u32 mask) {
  constexpr u64 largest = (1ull << EXPONENT) - 1;
  u64 e = x >> MANTISSA & largest, m = x & ((1ull << MANTISSA) - 1);
  bool negative = x >> (EXPONENT + MANTISSA) & 1;
  if (e == largest && m) return mask & (m >> (MANTISSA - 1) ? 2 : 1);
  if (e == largest) return mask & (negative ? 4 : 512);
  if (e) return mask & (negative ? 8 : 256);
  if (m) return mask & (negative ? 16 : 128);
  return mask & (negative ? 32 : 64);
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
template <bool X>
void classify32(Wave& w, const Inst& i) {
  u32 keep = i.abs & 1 ? 0x7fffffff : ~0u, flip = i.neg & 1 ? 1u << 31 : 0;
  classify<X, u32>(w, i, [&](u32 a, u32 mask) { return in_class<8, 23>((a & keep) ^ flip, mask); });
}
void cndmask(Wave& w, const Inst& i) {
  start(w, i);
  alignas(64) u32 ab[LANES], bb[LANES], r[LANES];
  const u32* a = raw(w, i, 0, ab, 32);
  u64 ua = w.und;
  w.und = 0;
  const u32* b = raw(w, i, 1, bb, 32);
  u64 ub = w.und;
  u64 uc = 0, c = scalar64(w, i, i.src[2] >= 0 ? i.src[2] : VCC, false, &uc);
  u32 ka = i.abs & 1 ? 0x7fffffff : ~0u, fa = i.neg & 1 ? 1u << 31 : 0;
  u32 kb = i.abs & 2 ? 0x7fffffff : ~0u, fb = i.neg & 2 ? 1u << 31 : 0;
  for (int l = 0; l < LANES; l++) r[l] = c >> l & 1 ? (b[l] & kb) ^ fb : (a[l] & ka) ^ fa;
  w.und = (c & ub) | (~c & ua) | uc;
  write_lanes(w, i, i.dst, r);
}
}  // namespace

// Comparisons of one type: each as v_cmp and as v_cmpx, which writes exec too; of integers CMPI, of floats CMPF.
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

std::vector<Op> comparison_ops() {
  return {
      {"v_cndmask_b32", cndmask, VALU, 0},
      CMPI("i32", i32),
      CMPI("u32", u32),
      CMPI("i64", i64),
      CMPI("u64", u64),
      CMPI("i16", Signed16),
      CMPI("u16", Short),
      CMPF("f32", float),
      CMPF("f64", double),
      CMPF("f16", Half),
      {"v_cmp_class_f32", classify32<false>, VALU, 0},
      {"v_cmpx_class_f32", classify32<true>, VALU, 0},
      ROW("v_cmp_class_f64",
          classify<false, double>(w, i, [](double a, u32 m) { return in_class<11, 52>(b64(a), m); })),
      ROW("v_cmp_class_f16", classify<false, Short>(w, i, [](u32 a, u32 m) { return in_class<5, 10>(a, m); })),
  };
}
