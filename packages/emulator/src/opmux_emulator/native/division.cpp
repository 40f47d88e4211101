// Division's helpers: v_div_scale, v_div_fmas, v_div_fixup, around the reciprocal and the steps that refine it.
// CDNA3 ISA, section 12.10.
#include "vector.h"
#include <limits>

namespace {
template <class T>
struct Limits;
template <>
struct Limits<float> {
  // `by`: the exponent by which operands are scaled. `big`: quotients from that exponent on overflow on their way.
  // `tiny`: numerators up to that exponent are scaled. `lowest`: the exponent below which a quotient is 0.
  static constexpr int bias = 127, big = 96, by = 64, tiny = 23, lowest = -150;
};
template <>
struct Limits<double> {
  static constexpr int bias = 1023, big = 768, by = 128, tiny = 53, lowest = -1075;
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
// What one lane of v_div_scale gives: the scaled operand, and whether the quotient is to be scaled back.
template <class T>
struct Scaled {
  T value;
  bool flag;
};
template <class T>
Scaled<T> scaled(T x, T den, T num) {
  using L = Limits<T>;
  int en = exponent_of(num), ed = exponent_of(den);
  if (den == 0 || num == 0) return {std::numeric_limits<T>::quiet_NaN(), false};
  if (en - ed >= L::big) return {x == den ? std::ldexp(x, L::by) : x, true};
  if (denormal(den)) return {std::ldexp(x, L::by), false};
  bool low_inverse = denormal((T)(T(1) / den)), low_quotient = denormal((T)(num / den));
  // The manual scales up here, which overflows whenever 1 / den is a denormal: the sequence works with this sign.
  if (low_inverse && low_quotient) return {x == den ? std::ldexp(x, -L::by) : x, true};
  if (low_inverse) return {std::ldexp(x, -L::by), false};
  if (low_quotient) return {x == num ? std::ldexp(x, L::by) : x, true};
  return {en <= L::tiny ? std::ldexp(x, L::by) : x, false};
}
template <class T>
void div_scale(Wave& w, const Inst& i) {
  start(w, i);
  FETCH(T, x, 0);
  FETCH(T, den, 1);
  FETCH(T, num, 2);
  alignas(64) T r[LANES];
  u64 vcc = 0;
  for (int l = 0; l < LANES; l++) {
    Scaled<T> s = scaled(x[l], den[l], num[l]);
    r[l] = s.value;
    vcc |= (u64)s.flag << l;
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
  using L = Limits<T>;
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
    if (vcc >> l & 1) r[l] = std::ldexp(r[l], exponent_of(c[l]) > L::bias ? L::by : -L::by);
  }
  Destination<T>::put(w, i, r);
}
template <class T>
T div_fixup(T q, T den, T num) {
  using L = Limits<T>;
  bool sign = std::signbit(den) != std::signbit(num);
  if (num != num) return num;
  if (den != den) return den;
  if ((den == 0 && num == 0) || (std::isinf(den) && std::isinf(num))) return -std::numeric_limits<T>::quiet_NaN();
  if (den == 0 || std::isinf(num)) return sign ? -INFINITY : INFINITY;
  if (std::isinf(den) || num == 0) return sign ? -T(0) : T(0);
  T m = q != q ? T(INFINITY) : std::fabs(q);  // finite operands: the quotient overflowed on its way
  int e = exponent_of(num) - exponent_of(den);
  if (e < L::lowest) m = 0;
  else if (e > 2 * L::bias) m = INFINITY;
  return sign ? -m : m;
}
}  // namespace

std::vector<Op> division_ops() {
  return {
      ROW("v_div_scale_f32", div_scale<float>(w, i)),
      ROW("v_div_scale_f64", div_scale<double>(w, i)),
      ROW("v_div_fmas_f32", div_fmas<float>(w, i)),
      ROW("v_div_fmas_f64", div_fmas<double>(w, i)),
      ROW3("v_div_fixup_f32", float, float, float, float, div_fixup(a, b, c)),
      ROW3("v_div_fixup_f64", double, double, double, double, div_fixup(a, b, c)),
      ROW3("v_div_fixup_f16", HalfKept, Half, Half, Half, to_half(div_fixup(a, b, c))),
  };
}
