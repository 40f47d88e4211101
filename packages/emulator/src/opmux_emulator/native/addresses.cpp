// Addresses of vector memory instructions: flat, global, scratch and buffer.
// CDNA3 ISA, section 8.1.5 "Buffer addressing" and section 9.3 "Addressing".
#include "memory.h"
#include <algorithm>

namespace {
void address_defined(Wave& w, const Inst& i, u64 unwritten) {
  if (unwritten & w.exec()) report(w, i, UNWRITTEN_REGISTER, __builtin_ctzll(unwritten & w.exec()), 0, 3);
}
u64 scratch_base(Wave& w, int lane) { return w.scratch_base + (u64)lane * w.m->scratch_per_lane; }
}  // namespace

// Addresses of FLAT, GLOBAL and SCRATCH (section 9.3).
Access flat_addresses(Wave& w, const Inst& i, Space space) {
  Access x;
  x.mask = w.exec();
  u64 und = 0;
  if (space == SCRATCH_SPACE) {
    u32 s = 0;
    if (i.src[2] >= 0) {
      touch_s(w, i, i.src[2]);
      s = w.s[i.src[2]];
      if (w.su[i.src[2]]) und = ~0ull;
    }
    bool vector = i.src[0] >= 0;
    const u32* v = nullptr;
    if (vector) {
      v = read_v(w, i, i.src[0]);
      und |= w.vu[i.src[0] - VGPR];
    }
    for (int l = 0; l < LANES; l++) {
      i64 offset = (i64)(u64)(u32)(s + (vector ? v[l] : 0)) + i.imm;
      if (x.mask >> l & 1 && (offset < 0 || (u64)offset >= w.m->scratch_per_lane)) {
        report(w, i, OUT_OF_BOUNDS, l, offset, 0);
        x.mask &= ~(1ull << l);
      }
      x.address[l] = scratch_base(w, l) + offset;
    }
  } else if (i.src[2] >= 0) {
    touch_s(w, i, i.src[2]);
    touch_s(w, i, i.src[2] + 1);
    if (w.su[i.src[2]] | w.su[i.src[2] + 1]) und = ~0ull;
    u64 base = w.pair(i.src[2]);
    const u32* v = read_v(w, i, i.src[0]);
    und |= w.vu[i.src[0] - VGPR];
    for (int l = 0; l < LANES; l++) x.address[l] = (base + v[l] + (i64)i.imm) & 0xffffffffffffull;
  } else {
    const u32 *lo = read_v(w, i, i.src[0]), *hi = read_v(w, i, i.src[0] + 1);
    und |= w.vu[i.src[0] - VGPR] | w.vu[i.src[0] + 1 - VGPR];
    for (int l = 0; l < LANES; l++) {
      x.address[l] = ((u64)hi[l] << 32 | lo[l]) + (i64)i.imm;
      if (space == FLAT_SPACE && x.address[l] >> 32 == w.m->scratch_aperture >> 32)
        x.address[l] = scratch_base(w, l) + (u32)x.address[l];
      else if (!(space == FLAT_SPACE && in_lds(w, x.address[l]))) x.address[l] &= 0xffffffffffffull;
    }
  }
  address_defined(w, i, und);
  return x;
}
// Addresses of MUBUF (section 8.1.5).
Access buffer_addresses(Wave& w, const Inst& i, u32 element, int dwords, u8* allowed, u64* tainted) {
  Access x;
  x.mask = w.exec();
  u64 und = 0;
  int r = i.src[2];
  for (int k = 0; k < 4; k++) {
    touch_s(w, i, r + k);
    if (w.su[r + k]) und = ~0ull;
  }
  u64 base = w.pair(r) & 0xffffffffffffull;
  u32 word1 = w.s[r + 1], records = w.s[r + 2], word3 = w.s[r + 3];
  u32 stride = word1 >> 16 & 0x3fff, u = 0;
  bool swizzled = word1 >> 31, add_lane = word3 >> 23 & 1;
  u32 soffset = scalar(w, i, i.src[3], 32, &u);
  if (u) und = ~0ull;
  const u32 *index = nullptr, *offset = nullptr;
  int next = i.src[0];
  if (i.flags & IDXEN) {
    index = read_v(w, i, next);
    und |= w.vu[next - VGPR];
    next++;
  }
  if (i.flags & OFFEN) {
    offset = read_v(w, i, next);
    und |= w.vu[next - VGPR];
  }
  bool scratch = base >> 32 == w.m->scratch_aperture >> 32;
  // The range check makes a load from any offset harmless: its result is then a value that nothing wrote.
  if (tainted && und != ~0ull) *tainted = und;
  else address_defined(w, i, und);
  for (int l = 0; l < LANES; l++) {
    u64 at = (offset ? offset[l] : 0) + (u64)i.imm, row = (index ? index[l] : 0) + (add_lane ? l : 0);
    if (scratch) {  // the private segment: swizzled by lane; a wave's part starts where the aperture does
      u64 o = at + soffset;
      allowed[l] = 0xff;
      if (x.mask >> l & 1 && o + element > w.m->scratch_per_lane) {
        report(w, i, OUT_OF_BOUNDS, l, o, element);
        x.mask &= ~(1ull << l);
      }
      x.address[l] = scratch_base(w, l) + o;
      continue;
    }
    allowed[l] = 0;
    if (stride == 0 || !(swizzled || index)) {
      u64 limit = records > soffset ? records - soffset : 0;
      u64 total = at + (stride ? row * stride : 0);
      for (int d = 0; d < dwords; d++)
        if (total + 4 * d + std::min(element, 4u) <= limit) allowed[l] |= 1 << d;
    } else if (row < records && (!swizzled || at + element <= stride)) allowed[l] = 0xff;
    if (swizzled && stride) {
      u32 index_stride = 8u << (word3 >> 21 & 3), element_size = 2u << (word3 >> 19 & 3);
      x.address[l] = base + soffset +
                     ((row / index_stride) * stride + (at / element_size) * element_size) * index_stride +
                     (row % index_stride) * element_size + at % element_size;
    } else x.address[l] = base + soffset + at + row * stride;
  }
  return x;
}

// Counts a request, and the lines of 128 bytes that it touches.
void count(Wave& w, const Access& x, u32 bytes) {
  Counts& c = w.m->counts;
  c.vmem_requests++;
  u64 last[8] = {};
  int n = 0;
  for (int l = 0; l < LANES; l++)
    if (x.mask >> l & 1) {
      c.vmem_bytes += bytes;
      u64 line = x.address[l] / 128 + 1;
      bool known = false;
      for (int k = 0; k < 8; k++) known |= last[k] == line;
      if (!known) {
        last[n++ & 7] = line;
        c.vmem_lines++;
      }
    }
}
