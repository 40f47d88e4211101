// Conversions between integers, float32, float64, half and bfloat16.
// CDNA3 ISA, sections 12.8 to 12.10; CDNA4 ISA for those to pairs of 16-bit floats.
#include "vector.h"
#include <algorithm>
#include <limits>

namespace {
template <class To>
To to_int(double x) {  // conversions saturate; NaN is 0
  constexpr To least = std::numeric_limits<To>::min(), largest = std::numeric_limits<To>::max();
  if (x != x) return 0;
  if (x <= (double)least) return least;
  return x >= (double)largest ? largest : (To)x;
}
// Normalised integers: -1 to 1, or 0 to 1, of the largest.
u32 signed_norm(float x) { return (u16)(i16)to_int<i32>(std::nearbyint(quiet_min(quiet_max(x, -1.f), 1.f) * 32767)); }
u32 unsigned_norm(float x) { return to_int<u32>(std::nearbyint(quiet_min(quiet_max(x, 0.f), 1.f) * 65535)); }
u32 clamp_i16(i32 x) { return (u16)std::clamp(x, -32768, 32767); }
// v_cvt_pk_u8_f32: byte `which` of `rest` is replaced.
u32 put_byte(float x, u32 which, u32 rest) {
  int shift = 8 * (which & 3);
  return (rest & ~(255u << shift)) | std::min(to_int<u32>(std::nearbyint(x)), 255u) << shift;
}
}  // namespace

std::vector<Op> conversion_ops() {
  return {
      ROW1("v_cvt_f32_i32", float, i32, (float)a),
      ROW1("v_cvt_f32_u32", float, u32, (float)a),
      ROW1("v_cvt_u32_f32", u32, float, to_int<u32>(a)),
      ROW1("v_cvt_i32_f32", i32, float, to_int<i32>(a)),
      ROW1("v_cvt_f16_f32", Half, float, to_half(a)),
      ROW1("v_cvt_f32_f16", float, Half, a),
      ROW1("v_cvt_rpi_i32_f32", i32, float, to_int<i32>(std::floor(a + 0.5f))),
      ROW1("v_cvt_flr_i32_f32", i32, float, to_int<i32>(std::floor(a))),
      ROW1("v_cvt_f64_i32", double, i32, (double)a),
      ROW1("v_cvt_f64_u32", double, u32, (double)a),
      ROW1("v_cvt_f64_f32", double, float, (double)a),
      ROW1("v_cvt_f32_f64", float, double, (float)a),
      ROW1("v_cvt_i32_f64", i32, double, to_int<i32>(a)),
      ROW1("v_cvt_u32_f64", u32, double, to_int<u32>(a)),
      ROW1("v_cvt_f32_ubyte0", float, u32, (float)(a & 255)),
      ROW1("v_cvt_f32_ubyte1", float, u32, (float)(a >> 8 & 255)),
      ROW1("v_cvt_f32_ubyte2", float, u32, (float)(a >> 16 & 255)),
      ROW1("v_cvt_f32_ubyte3", float, u32, (float)(a >> 24)),
      ROW1("v_cvt_f16_u16", Half, Short, to_half((float)a)),
      ROW1("v_cvt_f16_i16", Half, Signed16, to_half((float)a)),
      ROW1("v_cvt_u16_f16", Short, Half, to_int<u16>(a)),
      ROW1("v_cvt_i16_f16", Short, Half, (u32)(u16)to_int<i16>(a)),
      ROW1("v_cvt_off_f32_i4", float, u32, (float)((i32)(a << 28) >> 28) / 16.0f),
      ROW1("v_cvt_f32_bf16", float, Short, bf16(a)),
      ROW2("v_cvt_pkrtz_f16_f32", u32, float, float, (u32)to_half_rtz(a) | (u32)to_half_rtz(b) << 16),
      ROW2("v_cvt_pk_f16_f32", u32, float, float, (u32)to_half(a) | (u32)to_half(b) << 16),
      ROW2("v_cvt_pk_bf16_f32", u32, float, float, (u32)to_bf16(a) | (u32)to_bf16(b) << 16),
      ROW2("v_cvt_pk_u16_u32", u32, u32, u32, std::min(a, 65535u) | std::min(b, 65535u) << 16),
      ROW2("v_cvt_pk_i16_i32", u32, i32, i32, clamp_i16(a) | clamp_i16(b) << 16),
      ROW2("v_cvt_pknorm_i16_f32", u32, float, float, signed_norm(a) | signed_norm(b) << 16),
      ROW2("v_cvt_pknorm_u16_f32", u32, float, float, unsigned_norm(a) | unsigned_norm(b) << 16),
      ROW3("v_cvt_pk_u8_f32", u32, float, u32, u32, put_byte(a, b, c)),
  };
}
