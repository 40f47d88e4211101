// Loads and stores of vector memory: global, flat, scratch and buffer, and loads straight into LDS.
// CDNA3 ISA, chapters 8 and 9, sections 12.15 to 12.18.
#include "memory.h"
#include <algorithm>

namespace {
// The bytes of one lane; of dwords that the range check refuses, none.
inline void read_lane(Wave& w, const Inst& i, u64 address, u8 allowed, int bytes, int lane, u32* v) {
  if (allowed == 0xff) {
    u8* p = place(w, i, address, bytes, false, false, lane);
    if (p) memcpy(v, p, bytes);
    return;
  }
  for (int at = 0; at < bytes; at += 4)
    if (allowed >> (at / 4) & 1) {
      u32 n = std::min(bytes - at, 4);
      u8* p = place(w, i, address + at, n, false, false, lane);
      if (p) memcpy(&v[at / 4], p, n);
    }
}
inline void write_lane(Wave& w, const Inst& i, u64 address, u8 allowed, int bytes, int lane, const u32* v) {
  if (allowed == 0xff) {
    u8* p = place(w, i, address, bytes, true, false, lane);
    if (p) memcpy(p, v, bytes);
    return;
  }
  for (int at = 0; at < bytes; at += 4)
    if (allowed >> (at / 4) & 1) {
      u32 n = std::min(bytes - at, 4);
      u8* p = place(w, i, address + at, n, true, false, lane);
      if (p) memcpy(p, &v[at / 4], n);
    }
}
// M0 holds the LDS base; each lane's data follows the one's before it (section 9.4).
template <Space S>
void load_to_lds(Wave& w, const Inst& i, Shape shape) {
  int dwords = (shape.bytes + 3) / 4;
  u8 allowed[LANES];
  Access x = addresses<S>(w, i, shape.bytes, dwords, allowed);
  count(w, x, shape.bytes);
  touch_s(w, i, M0);
  u32 offsets[LANES];
  u64 mask = 0;
  u32 base = (w.s[M0] & (w.m->arch == GFX950 ? 0x3ffff : 0xffff)) + i.imm, each = std::max(shape.bytes, 4);
  if (w.su[M0]) report(w, i, UNWRITTEN_REGISTER, -1, M0, 3);
  issue(w, VM);
  for (int l = 0; l < LANES; l++) {
    if (!(x.mask >> l & 1)) continue;
    u32 at = base + l * each, data[4] = {};
    for (int d = 0; d < dwords; d++)
      if (allowed[l] >> d & 1) {
        u32 n = std::min(shape.bytes, 4);
        u8* p = place(w, i, x.address[l] + 4 * d, n, false, false, l);
        if (p) memcpy(&data[d], p, n);
      }
    data[0] = extended(data[0], shape);
    if (!lds_access(w, i, at, each, true, l, false, data)) continue;
    memcpy(w.g->lds.data() + at, data, each);
    offsets[l] = at;
    mask |= 1ull << l;
  }
  lds_note(w, VM, true, each, mask, offsets);
}
template <Space S>
void load(Wave& w, const Inst& i, Shape shape) {
  if (i.flags & TO_LDS) {
    load_to_lds<S>(w, i, shape);
    return;
  }
  int dwords = (shape.bytes + 3) / 4, reg = i.dst - VGPR;
  u8 allowed[LANES];
  u64 tainted = 0;
  Access x = addresses<S>(w, i, shape.bytes, dwords, allowed, &tainted);
  x.mask &= ~tainted;
  count(w, x, shape.bytes);
  u32* d[4];
  if (shape.half) settle(w, i.dst);
  for (int k = 0; k < dwords; k++) d[k] = write_v(w, i, i.dst + k);
  u64 lds_mask = 0;
  u32 offsets[LANES];
  for (int l = 0; l < LANES; l++) {
    if (!(x.mask >> l & 1)) continue;
    u32 v[4] = {};
    if (S == FLAT_SPACE && in_lds(w, x.address[l])) {
      u32 at = (u32)x.address[l];
      if (lds_access(w, i, at, shape.bytes, false, l)) {
        memcpy(v, w.g->lds.data() + at, shape.bytes);
        offsets[l] = at;
        lds_mask |= 1ull << l;
      }
    } else read_lane(w, i, x.address[l], allowed[l], shape.bytes, l, v);
    v[0] = loaded(d[0][l], extended(v[0], shape), shape);
    for (int k = 0; k < dwords; k++) d[k][l] = v[k];
  }
  issue(w, VM);
  if (S == FLAT_SPACE) {
    issue_flat(w);
    if (lds_mask) lds_note(w, LDS_OP, false, shape.bytes, lds_mask, offsets);
  }
  for (int k = 0; k < dwords; k++) {
    w.vu[reg + k] &= ~w.exec();
    w.vu[reg + k] |= tainted & w.exec();
    outstanding_v(w, i.dst + k, VM);
  }
}
template <Space S>
void store(Wave& w, const Inst& i, Shape shape) {
  int dwords = (shape.bytes + 3) / 4;
  u8 allowed[LANES];
  Access x = addresses<S>(w, i, shape.bytes, dwords, allowed);
  count(w, x, shape.bytes);
  const u32* s[4];
  int reg = i.src[1] - VGPR;
  u64 used = 0;
  for (int l = 0; l < LANES; l++)
    if ((x.mask >> l & 1) && allowed[l]) used |= 1ull << l;
  for (int k = 0; k < dwords; k++) {
    s[k] = read_v(w, i, i.src[1] + k);
    if (S != SCRATCH_SPACE) data_defined(w, i, reg + k, used);
  }
  u64 lds_mask = 0;
  u32 offsets[LANES];
  for (int l = 0; l < LANES; l++) {
    if (!(x.mask >> l & 1)) continue;
    u32 v[4];
    for (int k = 0; k < dwords; k++) v[k] = s[k][l];
    if (shape.half == 2) v[0] >>= 16;
    if (S == FLAT_SPACE && in_lds(w, x.address[l])) {
      u32 at = (u32)x.address[l];
      if (lds_access(w, i, at, shape.bytes, true, l)) {
        memcpy(w.g->lds.data() + at, v, shape.bytes);
        offsets[l] = at;
        lds_mask |= 1ull << l;
      }
      continue;
    }
    write_lane(w, i, x.address[l], allowed[l], shape.bytes, l, v);
  }
  issue(w, VM);
  if (S == FLAT_SPACE) {
    issue_flat(w);
    if (lds_mask) lds_note(w, LDS_OP, true, shape.bytes, lds_mask, offsets);
  }
  if (shape.bytes > 8 && !(S == BUFFER_SPACE && i.src[3] < 128))
    for (int k = 0; k < dwords; k++) {
      w.store_v[reg + k] = w.slot;
      w.vflag[reg + k] |= 4;
    }
}
}  // namespace

#define F(name, ...) {name, [](Wave& w, const Inst& i) { __VA_ARGS__; }, VMEM, 0}
#define LOADS(p, S)                                                                                                  \
  F(p "_load_ubyte", load<S>(w, i, {1, false, 0})), F(p "_load_sbyte", load<S>(w, i, {1, true, 0})),                 \
      F(p "_load_ushort", load<S>(w, i, {2, false, 0})), F(p "_load_sshort", load<S>(w, i, {2, true, 0})),           \
      F(p "_load_dword", load<S>(w, i, {4, false, 0})), F(p "_load_dwordx2", load<S>(w, i, {8, false, 0})),          \
      F(p "_load_dwordx3", load<S>(w, i, {12, false, 0})), F(p "_load_dwordx4", load<S>(w, i, {16, false, 0})),      \
      F(p "_load_ubyte_d16", load<S>(w, i, {1, false, 1})), F(p "_load_ubyte_d16_hi", load<S>(w, i, {1, false, 2})), \
      F(p "_load_sbyte_d16", load<S>(w, i, {1, true, 1})), F(p "_load_sbyte_d16_hi", load<S>(w, i, {1, true, 2})),   \
      F(p "_load_short_d16", load<S>(w, i, {2, false, 1})), F(p "_load_short_d16_hi", load<S>(w, i, {2, false, 2})), \
      F(p "_store_byte", store<S>(w, i, {1, false, 0})), F(p "_store_byte_d16_hi", store<S>(w, i, {1, false, 2})),   \
      F(p "_store_short", store<S>(w, i, {2, false, 0})), F(p "_store_short_d16_hi", store<S>(w, i, {2, false, 2})), \
      F(p "_store_dword", store<S>(w, i, {4, false, 0})), F(p "_store_dwordx2", store<S>(w, i, {8, false, 0})),      \
      F(p "_store_dwordx3", store<S>(w, i, {12, false, 0})), F(p "_store_dwordx4", store<S>(w, i, {16, false, 0}))
#define LDS_LOADS(p, S)                                                                                              \
  F(p "_load_lds_ubyte", load<S>(w, i, {1, false, 0})), F(p "_load_lds_sbyte", load<S>(w, i, {1, true, 0})),         \
      F(p "_load_lds_ushort", load<S>(w, i, {2, false, 0})), F(p "_load_lds_sshort", load<S>(w, i, {2, true, 0})),   \
      F(p "_load_lds_dword", load<S>(w, i, {4, false, 0})), F(p "_load_lds_dwordx3", load<S>(w, i, {12, false, 0})), \
      F(p "_load_lds_dwordx4", load<S>(w, i, {16, false, 0}))

std::vector<Op> memory_ops() {
  return {
      LOADS("global", GLOBAL_SPACE), LOADS("flat", FLAT_SPACE),         LOADS("scratch", SCRATCH_SPACE),
      LOADS("buffer", BUFFER_SPACE), LDS_LOADS("global", GLOBAL_SPACE), LDS_LOADS("scratch", SCRATCH_SPACE),
  };
}
