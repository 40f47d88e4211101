// Destinations of vector instructions: write masks, output modifiers, clamp, halves, the part that SDWA selects.
// CDNA3 ISA, sections 6.2 to 6.4.
#include "destinations.h"

namespace {
// omod: 1 doubles the result, 2 multiplies it by four, 3 halves it.
float output_factor(const Inst& i) {
  static const float factors[] = {1.0f, 2.0f, 4.0f, 0.5f};
  return factors[i.omod & 3];
}
bool dx10_clamp(const Wave& w) { return w.mode >> 8 & 1; }
}  // namespace

void write_lanes(Wave& w, const Inst& i, int code, const u32* r) {
  u32* d = write_v(w, i, code);
  u64 mask = w.mask;
  int reg = code - VGPR;
  if (i.variant == SDWA_ && i.dst_sel != 6) {
    int shift = i.dst_sel < 4 ? 8 * i.dst_sel : 16 * (i.dst_sel - 4);
    u32 field = i.dst_sel < 4 ? 0xff : 0xffff;
    for (int l = 0; l < LANES; l++)
      if (mask >> l & 1) {
        u32 x = r[l] & field, keep = 0;
        if (i.dst_unused == 2) keep = d[l] & ~(field << shift);
        else if (i.dst_unused == 1 && (x & (field >> 1) + 1)) keep = ~((field << shift) | ((1u << shift) - 1));
        d[l] = keep | x << shift;
      }
    w.part_v[reg] = w.slot;
    w.vflag[reg] |= 2;
  } else if (mask == ~0ull) memcpy(d, r, 4 * LANES);
  else
    for (int l = 0; l < LANES; l++) d[l] = mask >> l & 1 ? r[l] : d[l];
  w.vu[reg] = (w.vu[reg] & ~mask) | (w.und & mask);
  w.valu_v[reg] = w.slot;
}
void Destination<float>::put(Wave& w, const Inst& i, float* r) {
  if (!(w.mode >> 5 & 1))
    for (int l = 0; l < LANES; l++) r[l] = flush(r[l]);
  if (i.omod) {
    float f = output_factor(i);
    for (int l = 0; l < LANES; l++) r[l] = flush(r[l] * f);
  }
  if (i.clamp)
    for (int l = 0; l < LANES; l++) r[l] = clamped(r[l], dx10_clamp(w));
  write_lanes(w, i, i.dst, (u32*)r);
}
void Destination<double>::put(Wave& w, const Inst& i, double* r) {
  if (i.omod)
    for (int l = 0; l < LANES; l++) r[l] *= (double)output_factor(i);
  if (i.clamp)
    for (int l = 0; l < LANES; l++) r[l] = clamped(r[l], true);
  put64(w, i, (u64*)r);
}
// 16-bit results: the other half is zeroed by most of GFX9's instructions, and kept where op_sel writes the upper one.
void put_half(Wave& w, const Inst& i, u32* r, bool keeps) {
  if (i.variant == SDWA_) {
    write_lanes(w, i, i.dst, r);
    return;
  }
  if (i.opsel & 8 || keeps) {
    const u32* d = write_v(w, i, i.dst);
    bool high = i.opsel & 8;
    for (int l = 0; l < LANES; l++) r[l] = high ? r[l] << 16 | (d[l] & 0xffff) : (d[l] & 0xffff0000) | (r[l] & 0xffff);
    if (high) {
      int reg = i.dst - VGPR;
      w.part_v[reg] = w.slot;
      w.vflag[reg] |= 2;
    }  // the rule is of op_sel: a kept upper half waits for nothing
  }
  write_lanes(w, i, i.dst, r);
}
void put_float16(Wave& w, const Inst& i, u32* r, bool keeps) {
  for (int l = 0; l < LANES; l++) {
    u16 h = r[l];
    if (!(w.mode >> 7 & 1) && !(h & 0x7c00)) h &= 0x8000;
    if (i.omod) h = to_half(half(h) * output_factor(i));
    if (i.clamp) {
      float x = half(h), y = clamped(x, dx10_clamp(w));
      if (y != x && y == y) h = to_half(y);  // a NaN that stays keeps its bits
    }
    r[l] = h;
  }
  put_half(w, i, r, keeps);
}
void put64(Wave& w, const Inst& i, const u64* r) {
  alignas(64) u32 t[LANES];
  for (int l = 0; l < LANES; l++) t[l] = (u32)r[l];
  write_lanes(w, i, i.dst, t);
  for (int l = 0; l < LANES; l++) t[l] = r[l] >> 32;
  write_lanes(w, i, i.dst + 1, t);
}
void put64_halves(Wave& w, const Inst& i, const u64* r, u64 low) {
  alignas(64) u32 t[LANES];
  u64 high = w.und;
  for (int l = 0; l < LANES; l++) t[l] = (u32)r[l];
  w.und = low;
  write_lanes(w, i, i.dst, t);
  for (int l = 0; l < LANES; l++) t[l] = r[l] >> 32;
  w.und = high;
  write_lanes(w, i, i.dst + 1, t);
}
