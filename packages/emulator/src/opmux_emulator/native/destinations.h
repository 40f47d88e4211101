// Destinations of vector instructions: write masks, output modifiers, clamp, halves, the part that SDWA selects.
// CDNA3 ISA, sections 6.2 to 6.4.
#pragma once
#include "machine.h"
#include "numeric.h"

// clamp: to 0 and 1; NaN becomes 0 where MODE.DX10_CLAMP is set.
template <class T>
inline T clamped(T x, bool dx10) {
  if (x != x) return dx10 ? T(0) : x;
  if (x < 0) return T(0);
  return x > 1 ? T(1) : x;
}
// Write 32 bits a lane under the mask; SDWA selects the part that is written.
void write_lanes(Wave& w, const Inst& i, int code, const u32* r);
void put64(Wave& w, const Inst& i, const u64* r);
// Write 64 bits a lane whose halves depend on different halves of the sources: compilers leave those undefined that
// they do not use. `low` has the lanes in which the low half is undefined, and the wave's `und` those of the high one.
void put64_halves(Wave& w, const Inst& i, const u64* r, u64 low);
// 16-bit results; `keeps`: the other half of the register is left as it was.
void put_half(Wave& w, const Inst& i, u32* r, bool keeps);
void put_float16(Wave& w, const Inst& i, u32* r, bool keeps);

// Destinations by their type: `put` writes one value a lane, with the modifiers of floats applied.
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
  static void put(Wave& w, const Inst& i, float* r);
};
template <>
struct Destination<Half> {
  using type = u32;
  static void put(Wave& w, const Inst& i, u32* r) { put_float16(w, i, r, false); }
};
template <>
struct Destination<HalfKept> {
  using type = u32;
  static void put(Wave& w, const Inst& i, u32* r) { put_float16(w, i, r, true); }
};
template <>
struct Destination<Short> {
  using type = u32;
  static void put(Wave& w, const Inst& i, u32* r) { put_half(w, i, r, false); }
};
template <>
struct Destination<ShortKept> {
  using type = u32;
  static void put(Wave& w, const Inst& i, u32* r) { put_half(w, i, r, true); }
};
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
  static void put(Wave& w, const Inst& i, double* r);
};
