// Float arithmetic in 64, 32 and 16 bits, division's helpers apart. CDNA3 ISA, sections 12.7 to 12.10.
#include "vector.h"
#include <algorithm>

namespace {
float fract(float x) {
  if (std::isinf(x)) return NAN;
  float y = x - std::floor(x);
  return y >= 1 ? 0x1.fffffep-1f : y;
}
double fract(double x) {
  if (std::isinf(x)) return NAN;
  double y = x - std::floor(x);
  return y >= 1 ? 0x1.fffffffffffffp-1 : y;
}
float sine(float x) { return std::fabs(x) > 256 ? 0.0f : (float)std::sin(2 * M_PI * (double)x); }
float cosine(float x) { return std::fabs(x) > 256 ? 1.0f : (float)std::cos(2 * M_PI * (double)x); }
float middle3(float a, float b, float c) {
  if (a != a || b != b || c != c) return quiet_min(quiet_min(a, b), c);
  return quiet_max(quiet_min(a, b), quiet_min(quiet_max(a, b), c));
}
// As IEEE 754-2019 has them: the first NaN wins.
float minimum3(float a, float b, float c) {
  if (a != a) return a;
  if (b != b) return b;
  if (c != c) return c;
  return quiet_min(quiet_min(a, b), c);
}
float maximum3(float a, float b, float c) {
  if (a != a) return a;
  if (b != b) return b;
  if (c != c) return c;
  return quiet_max(quiet_max(a, b), c);
}
// v_frexp: a mantissa of 0.5 to 1 and the exponent that belongs to it.
template <class F>
i32 exponent(F x) {
  return x == 0 || !std::isfinite(x) ? 0 : std::ilogb(x) + 1;
}
template <class F>
F mantissa(F x) {
  return x == 0 || !std::isfinite(x) ? x : std::ldexp(x, -std::ilogb(x) - 1);
}
float round_even(float x) { return std::nearbyint(x); }
float legacy_mul(float a, float b) { return a == 0 || b == 0 ? 0.0f : a * b; }
// v_mad and v_mac round the product and flush denormals whatever the mode says.
float flushed_mad(float a, float b, float c) { return flush(flush(flush(a) * flush(b)) + flush(c)); }
float legacy_mad(float a, float b, float c) { return flush(legacy_mul(flush(a), flush(b)) + flush(c)); }
u16 mad_half(float a, float b, float c) { return to_half(half(to_half(a * b)) + c); }
}  // namespace

std::vector<Op> float_ops() {
  return {
      // Float32.
      ROW2("v_add_f32", float, float, float, a + b),
      ROW2("v_sub_f32", float, float, float, a - b),
      ROW2("v_subrev_f32", float, float, float, b - a),
      ROW2("v_mul_f32", float, float, float, (a * b)),
      ROW2("v_mul_legacy_f32", float, float, float, legacy_mul(a, b)),
      ROW2("v_min_f32", float, float, float, quiet_min(a, b)),
      ROW2("v_max_f32", float, float, float, quiet_max(a, b)),
      ROW3("v_fma_f32", float, float, float, float, __builtin_fmaf(a, b, c)),
      ROW3("v_fmac_f32", float, float, float, float, __builtin_fmaf(a, b, c)),
      ROW3("v_fmamk_f32", float, float, float, float, __builtin_fmaf(a, b, c)),
      ROW3("v_fmaak_f32", float, float, float, float, __builtin_fmaf(a, b, c)),
      ROW3("v_mad_f32", float, float, float, float, flushed_mad(a, b, c)),
      ROW3("v_mac_f32", float, float, float, float, flushed_mad(a, b, c)),
      ROW3("v_madmk_f32", float, float, float, float, flushed_mad(a, b, c)),
      ROW3("v_madak_f32", float, float, float, float, flushed_mad(a, b, c)),
      ROW3("v_mad_legacy_f32", float, float, float, float, legacy_mad(a, b, c)),
      ROW3("v_min3_f32", float, float, float, float, quiet_min(quiet_min(a, b), c)),
      ROW3("v_max3_f32", float, float, float, float, quiet_max(quiet_max(a, b), c)),
      ROW3("v_med3_f32", float, float, float, float, middle3(a, b, c)),
      ROW3("v_minimum3_f32", float, float, float, float, minimum3(a, b, c)),
      ROW3("v_maximum3_f32", float, float, float, float, maximum3(a, b, c)),
      ROW1("v_fract_f32", float, float, fract(a)),
      ROW1("v_trunc_f32", float, float, std::trunc(a)),
      ROW1("v_ceil_f32", float, float, std::ceil(a)),
      ROW1("v_rndne_f32", float, float, round_even(a)),
      ROW1("v_floor_f32", float, float, std::floor(a)),
      TRANS1("v_exp_f32", float, float, flush(exp2f(flush(a)))),
      TRANS1("v_log_f32", float, float, log2f(flush(a))),
      TRANS1("v_rcp_f32", float, float, flush(1.0f / flush(a))),
      TRANS1("v_exp_legacy_f32", float, float, flush(exp2f(flush(a)))),
      TRANS1("v_log_legacy_f32", float, float, log2f(flush(a))),
      TRANS1("v_rcp_iflag_f32", float, float, flush(1.0f / flush(a))),
      TRANS1("v_rsq_f32", float, float, (float)(1.0 / std::sqrt((double)flush(a)))),
      TRANS1("v_sqrt_f32", float, float, std::sqrt(flush(a))),
      TRANS1("v_sin_f32", float, float, sine(a)),
      TRANS1("v_cos_f32", float, float, cosine(a)),
      ROW1("v_frexp_exp_i32_f32", i32, float, exponent(a)),
      ROW1("v_frexp_mant_f32", float, float, mantissa(a)),
      ROW2("v_ldexp_f32", float, float, i32, std::ldexp(a, std::clamp(b, -400, 400))),
      // Float64.
      ROW2("v_add_f64", double, double, double, a + b),
      ROW2("v_mul_f64", double, double, double, (a * b)),
      ROW2("v_min_f64", double, double, double, quiet_min(a, b)),
      ROW2("v_max_f64", double, double, double, quiet_max(a, b)),
      ROW3("v_fma_f64", double, double, double, double, std::fma(a, b, c)),
      ROW3("v_fmac_f64", double, double, double, double, std::fma(a, b, c)),
      ROW2("v_ldexp_f64", double, double, i32, std::ldexp(a, std::clamp(b, -3000, 3000))),
      ROW1("v_trunc_f64", double, double, std::trunc(a)),
      ROW1("v_ceil_f64", double, double, std::ceil(a)),
      ROW1("v_rndne_f64", double, double, std::nearbyint(a)),
      ROW1("v_floor_f64", double, double, std::floor(a)),
      ROW1("v_fract_f64", double, double, fract(a)),
      TRANS1("v_rcp_f64", double, double, 1.0 / a),
      TRANS1("v_rsq_f64", double, double, 1.0 / std::sqrt(a)),
      TRANS1("v_sqrt_f64", double, double, std::sqrt(a)),
      ROW1("v_frexp_exp_i32_f64", i32, double, exponent(a)),
      ROW1("v_frexp_mant_f64", double, double, mantissa(a)),
      // Half: computed in float, which rounds once (float has more than twice half's bits).
      ROW2("v_add_f16", Half, Half, Half, to_half(a + b)),
      ROW2("v_sub_f16", Half, Half, Half, to_half(a - b)),
      ROW2("v_subrev_f16", Half, Half, Half, to_half(b - a)),
      ROW2("v_mul_f16", Half, Half, Half, to_half(a * b)),
      ROW2("v_min_f16", Half, Half, Half, to_half(quiet_min(a, b))),
      ROW2("v_max_f16", Half, Half, Half, to_half(quiet_max(a, b))),
      ROW3("v_fma_f16", HalfKept, Half, Half, Half, fma_half(a, b, c)),
      ROW3("v_mad_f16", HalfKept, Half, Half, Half, mad_half(a, b, c)),
      ROW3("v_mac_f16", Half, Half, Half, Half, mad_half(a, b, c)),
      ROW3("v_madmk_f16", Half, Half, Half, Half, mad_half(a, b, c)),
      ROW3("v_madak_f16", Half, Half, Half, Half, mad_half(a, b, c)),
      ROW3("v_min3_f16", HalfKept, Half, Half, Half, to_half(quiet_min(quiet_min(a, b), c))),
      ROW3("v_max3_f16", HalfKept, Half, Half, Half, to_half(quiet_max(quiet_max(a, b), c))),
      ROW3("v_med3_f16", HalfKept, Half, Half, Half, to_half(middle3(a, b, c))),
      TRANS1("v_rcp_f16", Half, Half, to_half(1.0f / a)),
      TRANS1("v_sqrt_f16", Half, Half, to_half(std::sqrt(a))),
      TRANS1("v_rsq_f16", Half, Half, to_half(1.0 / std::sqrt((double)a))),
      TRANS1("v_log_f16", Half, Half, to_half(std::log2((double)a))),
      TRANS1("v_exp_f16", Half, Half, to_half(std::exp2((double)a))),
      TRANS1("v_sin_f16", Half, Half, to_half(sine(a))),
      TRANS1("v_cos_f16", Half, Half, to_half(cosine(a))),
      ROW1("v_floor_f16", Half, Half, to_half(std::floor(a))),
      ROW1("v_ceil_f16", Half, Half, to_half(std::ceil(a))),
      ROW1("v_trunc_f16", Half, Half, to_half(std::trunc(a))),
      ROW1("v_rndne_f16", Half, Half, to_half(round_even(a))),
      ROW1("v_fract_f16", Half, Half, to_half(fract(a))),
      ROW2("v_ldexp_f16", Half, Half, Signed16, to_half(std::ldexp(a, b))),
  };
}
