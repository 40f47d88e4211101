// Sources of vector instructions: registers and constants, with the modifiers, DPP and SDWA of each.
// CDNA3 ISA, chapter 5 "Scalar ALU operations" for constants, sections 6.2 to 6.4 for the rest.
#include "sources.h"

u64 constant(Wave& w, const Inst& i, int code, int float_bits) {
  // Inline constants (CDNA3 ISA, section 5.1 "SGPR and scalar source operands").
  if (code <= 192) return (u64)(i64)(code - 128);
  if (code <= 208) return (u64)(i64)(192 - code);
  static const double table[] = {0.5, -0.5, 1, -1, 2, -2, 4, -4, 0.15915494309189532};
  if (code >= 240 && code <= 248) {
    double x = table[code - 240];
    if (float_bits == 16) return code == 248 ? 0x3118 : to_half((float)x);
    if (float_bits == 64) return code == 248 ? 0x3fc45f306dc9c882ull : b64(x);
    return code == 248 ? 0x3e22f983 : b32((float)x);
  }
  switch (code) {
    case 235: return w.m->lds_aperture >> 32;  // src_shared_base
    case 236: return 0xffffffff;
    case 237: return w.m->scratch_aperture >> 32;  // src_private_base
    case 238: return 0xffffffff;
    case 239: return 0;
    case 251: check_flag_source(w, i, false); return w.pair(VCC) == 0;
    case 252: check_flag_source(w, i, true); return w.exec() == 0;
    case 253: return w.scc;
    case 255: return float_bits == 64 ? (u64)(u32)i.literal << 32 : (u32)i.literal;
  }
  report(w, i, UNSUPPORTED, -1, code, 1);
  return 0;
}

namespace {
// The lane that `lane` reads, or -1: CDNA3 ISA, section 6.4 "Data parallel processing", table of DPP_CTRL.
int dpp_lane(int c, int lane) {
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

void select_dpp(Wave& w, const Inst& i, const u32* p, u64 unwritten, u32* out) {
  u64 exec = w.exec();
  w.und = 0;
  for (int l = 0; l < LANES; l++) {
    if (!(i.row_mask >> (l >> 4) & 1) || !(i.bank_mask >> (l >> 2 & 3) & 1)) w.mask &= ~(1ull << l);
    int from = dpp_lane(i.dpp, l);
    if (from < 0 || !(exec >> from & 1)) {
      out[l] = 0;
      if (!i.bound) w.mask &= ~(1ull << l);
    } else {
      out[l] = p[from];
      if (unwritten >> from & 1) w.und |= 1ull << l;
    }
  }
}
u32 select_part(u32 x, int select, bool sign) {
  if (select < 4) {
    x = x >> (8 * select) & 0xff;
    return sign ? (u32)(i32)(i8)x : x;
  }
  if (select < 6) {
    x = x >> (16 * (select - 4)) & 0xffff;
    return sign ? (u32)(i32)(i16)x : x;
  }
  return x;
}

}  // namespace

const u32* raw(Wave& w, const Inst& i, int k, u32* buffer, int float_bits) {
  int code = i.src[k];
  if (code >= VGPR) {
    const u32* p = read_v(w, i, code);
    u64 unwritten = w.vu[code - VGPR];
    if (i.variant == DPP16 && k == 0) {
      u64 before = w.und;
      select_dpp(w, i, p, unwritten, buffer);
      w.und |= before;
      return buffer;
    }
    w.und |= unwritten;
    if (i.variant == SDWA_ && k < 2 && i.src_sel[k] != 6) {
      for (int l = 0; l < LANES; l++) buffer[l] = select_part(p[l], i.src_sel[k], i.sext >> k & 1);
      return buffer;
    }
    return p;
  }
  u32 unwritten = 0, x = scalar(w, i, code, float_bits, &unwritten);
  if (unwritten) w.und = ~0ull;
  if (i.variant == SDWA_ && k < 2) x = select_part(x, i.src_sel[k], i.sext >> k & 1);
  for (int l = 0; l < LANES; l++) buffer[l] = x;
  return buffer;
}

void raw64(Wave& w, const Inst& i, int k, u64* b, bool is_float) {
  int code = i.src[k];
  if (code >= VGPR) {
    const u32 *lo = read_v(w, i, code), *hi = read_v(w, i, code + 1);
    u64 ulo = w.vu[code - VGPR], uhi = w.vu[code - VGPR + 1];
    if (i.variant == DPP16 && k == 0) {
      alignas(64) u32 a[LANES], c[LANES];
      u64 und = w.und;
      select_dpp(w, i, lo, ulo, a);
      und |= w.und;
      select_dpp(w, i, hi, uhi, c);
      w.und |= und;
      for (int l = 0; l < LANES; l++) b[l] = (u64)c[l] << 32 | a[l];
      return;
    }
    w.und |= ulo | uhi;
    for (int l = 0; l < LANES; l++) b[l] = (u64)hi[l] << 32 | lo[l];
    return;
  }
  u64 unwritten = 0, x = scalar64(w, i, code, is_float, &unwritten);
  if (unwritten) w.und = ~0ull;
  for (int l = 0; l < LANES; l++) b[l] = x;
}

const float* Source<float>::get(Wave& w, const Inst& i, int k, float* b) {
  const u32* p = raw(w, i, k, (u32*)b, 32);
  bool negate = i.neg >> k & 1, absolute = i.abs >> k & 1, flushes = !(w.mode >> 4 & 1);
  if (!negate && !absolute && !flushes) return (const float*)p;
  u32* o = (u32*)b;
  u32 keep = absolute ? 0x7fffffff : ~0u, flip = negate ? 0x80000000 : 0;
  for (int l = 0; l < LANES; l++) o[l] = (p[l] & keep) ^ flip;
  if (flushes)
    for (int l = 0; l < LANES; l++) o[l] = (o[l] & 0x7f800000) ? o[l] : o[l] & 0x80000000;
  return b;
}
const float* Source<Half>::get(Wave& w, const Inst& i, int k, float* b) {
  alignas(64) u32 t[LANES];
  const u32* p = raw(w, i, k, t, 16);
  int shift = i.opsel >> k & 1 ? 16 : 0;
  u32 keep = i.abs >> k & 1 ? 0x7fff : 0xffff, flip = i.neg >> k & 1 ? 0x8000 : 0;
  bool flushes = !(w.mode >> 6 & 1);
  for (int l = 0; l < LANES; l++) {
    u16 h = ((p[l] >> shift) & keep) ^ flip;
    if (flushes && !(h & 0x7c00)) h &= 0x8000;
    b[l] = half(h);
  }
  return b;
}
const double* Source<double>::get(Wave& w, const Inst& i, int k, double* b) {
  raw64(w, i, k, (u64*)b, true);
  u64* o = (u64*)b;
  if (i.abs >> k & 1)
    for (int l = 0; l < LANES; l++) o[l] &= ~(1ull << 63);
  if (i.neg >> k & 1)
    for (int l = 0; l < LANES; l++) o[l] ^= 1ull << 63;
  return b;
}
