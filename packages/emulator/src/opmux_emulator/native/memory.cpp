// Vector memory: global, flat, scratch and buffer accesses, their atomics, and loads straight into LDS.
// CDNA3 ISA, chapters 8 and 9, sections 12.15 to 12.18.
#include "operands.h"
#include <algorithm>

// Where `bytes` at a device address lie on the host, with the bounds, initialisation and race rules applied.
u8* translate(Wave& w, const Inst& i, u64 address, u32 bytes, bool write, int lane, Allocation** found) {
  Machine& m = *w.m;
  Allocation* a = m.last < m.memory.size() ? &m.memory[m.last] : nullptr;
  if (!a || address < a->base || address + bytes > a->base + a->size) {
    auto it = std::upper_bound(m.memory.begin(), m.memory.end(), address,
                               [](u64 x, const Allocation& b) { return x < b.base; });
    a = it == m.memory.begin() ? nullptr : &*(it - 1);
    if (!a || address + bytes > a->base + a->size) {
      report(w, i, OUT_OF_BOUNDS, lane, address, bytes);
      return nullptr;
    }
    m.last = a - m.memory.data();
  }
  if (write && !a->writable) {
    report(w, i, OUT_OF_BOUNDS, lane, address, -(int)bytes);
    return nullptr;
  }
  if (found) *found = a;
  return a->host + (address - a->base);
}

namespace {
struct Access {
  u64 address[LANES];
  u64 mask;
};

bool ordered(Group& from, u32 time, const Group& to) {  // `from` released after the access, `to` acquired after that
  auto it = std::upper_bound(from.releases.begin(), from.releases.end(), time - 1);
  return it != from.releases.end() && to.acquired > *it;
}
std::vector<Group*>* registry;  // groups by id, for the race rule

// Shadows of a dword. Writer: time << 32 | atomic << 31 | byte mask << 27 | workgroup + 1. Reader: byte mask << 27 |
// workgroup + 1, or all ones there for several. Where workgroups share a dword, the latest is known.
constexpr u32 GROUP_MASK = (1u << 27) - 1;
void races(Wave& w, const Inst& i, Allocation& a, u64 offset, u32 bytes, bool write, bool atomic, int lane) {
  if (!a.writer) return;
  u32 me = w.g->id + 1;
  for (u64 at = offset & ~3ull; at < offset + bytes; at += 4) {
    u32 mask = 15;
    if (at < offset) mask &= 15 << (offset - at);
    if (at + 4 > offset + bytes) mask &= 15 >> (at + 4 - offset - bytes);
    u64& writer = a.writer[at / 4];
    u32& reader = a.reader[at / 4];
    u64 before = writer;
    u32 by = (u32)before & GROUP_MASK;
    if (by && by != me && before >> 27 & mask && !(atomic && before >> 31 & 1)) {
      Group* other = (*registry)[by - 1];
      if (!other || !ordered(*other, before >> 32, *w.g)) {
        report(w, i, GLOBAL_RACE, lane, a.base + at, by - 1);
        return;
      }
    }
    if (write) {
      u32 r = reader & GROUP_MASK;
      if (r && r != me && reader >> 27 & mask && !atomic) {
        Group* other = r != GROUP_MASK ? (*registry)[r - 1] : nullptr;
        if (!other || other->releases.empty() || w.g->acquired <= other->releases.front()) {
          report(w, i, GLOBAL_RACE, lane, a.base + at, -1);
          return;
        }
      }
      if (by == me) mask |= before >> 27 & 15;
      writer = (u64)w.m->clock << 32 | (atomic ? 1u << 31 : 0) | mask << 27 | me;
    } else {
      u32 r = reader & GROUP_MASK;
      if (r == me || !r) reader |= mask << 27 | me;
      else reader = reader >> 27 & mask ? (mask << 27 | GROUP_MASK) : (mask << 27 | me);
    }
  }
}
void check_written(Wave& w, const Inst& i, Allocation& a, u64 offset, u32 bytes, int lane) {
  if (!a.unwritten) return;
  u8 any = 0;
  u8* u = a.unwritten + offset;
  for (u32 b = 0; b < bytes; b++) any |= u[b];
  if (any) {
    report(w, i, UNWRITTEN_MEMORY, lane, a.base + offset);
    memset(u, 0, bytes);
  }
}
u8* place(Wave& w, const Inst& i, u64 address, u32 bytes, bool write, bool atomic, int lane) {
  u32 alignment = atomic ? bytes : std::min(bytes, 4u);
  if (bytes == 12) alignment = 4;
  if (address & (alignment - 1)) report(w, i, MISALIGNED, lane, address, alignment);
  // Mostly the allocation is that of the lane before.
  Machine& m = *w.m;
  Allocation* a = m.last < m.memory.size() ? &m.memory[m.last] : nullptr;
  u8* p;
  if (a && address >= a->base && address + bytes <= a->base + a->size && (!write || a->writable))
    p = a->host + (address - a->base);
  else if (!(p = translate(w, i, address, bytes, write, lane, &a))) return nullptr;
  u64 offset = address - a->base;
  // Nobody else touched the dwords, and this workgroup has read them all before.
  if (!write && !atomic && !a->unwritten && a->writer && bytes == 16 && !(offset & 3)) {
    const u64* by = a->writer + offset / 4;
    const u32* readers = a->reader + offset / 4;
    u32 mine = 15u << 27 | (w.g->id + 1);
    if (!(by[0] | by[1] | by[2] | by[3]) && readers[0] == mine && readers[1] == mine && readers[2] == mine &&
        readers[3] == mine)
      return p;
  }
  if (!write || atomic) check_written(w, i, *a, offset, bytes, lane);
  if (write && a->unwritten) memset(a->unwritten + offset, 0, bytes);
  races(w, i, *a, offset, bytes, write, atomic, lane);
  return p;
}
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
void address_defined(Wave& w, const Inst& i, u64 unwritten) {
  if (unwritten & w.exec()) report(w, i, UNWRITTEN_REGISTER, __builtin_ctzll(unwritten & w.exec()), 0, 3);
}
void data_defined(Wave& w, const Inst& i, int reg, u64 mask) {
  if (w.vu[reg] & mask) {
    report(w, i, UNWRITTEN_REGISTER, __builtin_ctzll(w.vu[reg] & mask), VGPR + reg, 4);
    w.vu[reg] &= ~mask;
  }
}
enum Space { GLOBAL_SPACE, SCRATCH_SPACE, FLAT_SPACE, BUFFER_SPACE };

u64 scratch_base(Wave& w, int lane) { return w.scratch_base + (u64)lane * w.m->scratch_per_lane; }

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
      else if (!(space == FLAT_SPACE && x.address[l] >> 32 == w.m->lds_aperture >> 32))
        x.address[l] &= 0xffffffffffffull;
    }
  }
  address_defined(w, i, und);
  return x;
}
// Addresses of MUBUF (section 8.1.5): `allowed` has a bit for each dword of each lane that the range check admits.
Access buffer_addresses(Wave& w, const Inst& i, u32 element, int dwords, u8* allowed, u64* tainted = nullptr) {
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

struct Shape {
  int bytes;
  bool is_signed;
  int half;
};  // half: 1 the low half is written and the other kept, 2 the high one

template <Space S>
void load(Wave& w, const Inst& i, Shape shape) {
  int dwords = (shape.bytes + 3) / 4;
  u8 allowed[LANES];
  u64 tainted = 0;
  Access x = S == BUFFER_SPACE
                 ? buffer_addresses(w, i, shape.bytes, dwords, allowed, i.flags & TO_LDS ? nullptr : &tainted)
                 : flat_addresses(w, i, S);
  if (S != BUFFER_SPACE) memset(allowed, 0xff, LANES);
  x.mask &= ~tainted;
  count(w, x, shape.bytes);
  if (i.flags & TO_LDS) {  // M0 holds the LDS base; each lane's data follows the one's before it (section 9.4)
    touch_s(w, i, M0);
    u32 offsets[LANES];
    u64 mask = 0;
    u32 base = (w.s[M0] & (w.m->arch == GFX950 ? 0x3ffff : 0xffff)) + i.imm, each = std::max(shape.bytes, 4);
    if (w.su[M0]) report(w, i, UNWRITTEN_REGISTER, -1, M0, 3);
    w.issued[VM]++;
    for (int l = 0; l < LANES; l++) {
      if (!(x.mask >> l & 1)) continue;
      u32 at = base + l * each;
      u8 data[16] = {};
      for (int d = 0; d < dwords; d++)
        if (allowed[l] >> d & 1) {
          u32 n = std::min(shape.bytes, 4);
          u8* p = place(w, i, x.address[l] + 4 * d, n, false, false, l);
          if (p) memcpy(data + 4 * d, p, n);
        }
      if (shape.is_signed && shape.bytes < 4) {
        i32 v = shape.bytes == 1 ? (i32)(i8)data[0] : (i32)(i16)(data[0] | data[1] << 8);
        memcpy(data, &v, 4);
      }
      if (!lds_access(w, i, at, each, true, l, false, data)) continue;
      memcpy(w.g->lds.data() + at, data, each);
      offsets[l] = at;
      mask |= 1ull << l;
    }
    lds_note(w, VM, true, each, mask, offsets);
    return;
  }
  u32* d[4];
  int reg = i.dst - VGPR;
  if (shape.half) settle(w, i.dst);
  for (int k = 0; k < dwords; k++) d[k] = write_v(w, i, i.dst + k);
  u64 lds_mask = 0;
  u32 offsets[LANES];
  for (int l = 0; l < LANES; l++) {
    if (!(x.mask >> l & 1)) continue;
    u32 v[4] = {};
    if (S == FLAT_SPACE && x.address[l] >> 32 == w.m->lds_aperture >> 32) {
      u32 at = (u32)x.address[l];
      if (lds_access(w, i, at, shape.bytes, false, l)) {
        memcpy(v, w.g->lds.data() + at, shape.bytes);
        offsets[l] = at;
        lds_mask |= 1ull << l;
      }
    } else if (allowed[l] == 0xff) {
      u8* p = place(w, i, x.address[l], shape.bytes, false, false, l);
      if (p) memcpy(v, p, shape.bytes);
    } else
      for (int k = 0; k < dwords; k++)
        if (allowed[l] >> k & 1) {
          u32 n = std::min(shape.bytes - 4 * k, 4);
          u8* p = place(w, i, x.address[l] + 4 * k, n, false, false, l);
          if (p) memcpy(&v[k], p, n);
        }
    if (shape.is_signed) v[0] = shape.bytes == 1 ? (u32)(i32)(i8)v[0] : (u32)(i32)(i16)v[0];
    if (shape.half == 1) v[0] = (d[0][l] & 0xffff0000) | (v[0] & 0xffff);
    if (shape.half == 2) v[0] = (d[0][l] & 0xffff) | v[0] << 16;
    for (int k = 0; k < dwords; k++) d[k][l] = v[k];
  }
  w.issued[VM]++;
  if (S == FLAT_SPACE) {
    w.issued[LDS_OP]++;
    w.flat = w.issued[VM];
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
  Access x = S == BUFFER_SPACE ? buffer_addresses(w, i, shape.bytes, dwords, allowed) : flat_addresses(w, i, S);
  if (S != BUFFER_SPACE) memset(allowed, 0xff, LANES);
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
    if (S == FLAT_SPACE && x.address[l] >> 32 == w.m->lds_aperture >> 32) {
      u32 at = (u32)x.address[l];
      if (lds_access(w, i, at, shape.bytes, true, l)) {
        memcpy(w.g->lds.data() + at, v, shape.bytes);
        offsets[l] = at;
        lds_mask |= 1ull << l;
      }
    } else if (allowed[l] == 0xff) {
      u8* p = place(w, i, x.address[l], shape.bytes, true, false, l);
      if (p) memcpy(p, v, shape.bytes);
    } else
      for (int k = 0; k < dwords; k++)
        if (allowed[l] >> k & 1) {
          u32 n = std::min(shape.bytes - 4 * k, 4);
          u8* p = place(w, i, x.address[l] + 4 * k, n, true, false, l);
          if (p) memcpy(p, &v[k], n);
        }
  }
  w.issued[VM]++;
  if (S == FLAT_SPACE) {
    w.issued[LDS_OP]++;
    w.flat = w.issued[VM];
    if (lds_mask) lds_note(w, LDS_OP, true, shape.bytes, lds_mask, offsets);
  }
  if (shape.bytes > 8 && !(S == BUFFER_SPACE && i.src[3] < 128))
    for (int k = 0; k < dwords; k++) {
      w.store_v[reg + k] = w.slot;
      w.vflag[reg + k] |= 4;
    }
}
// Atomics: f(old, data, compare) gives the new value.
template <Space S, class T, class F>
void atomic(Wave& w, const Inst& i, bool compares, F f) {
  u8 allowed[LANES];
  int words = sizeof(T) / 4;
  Access x = S == BUFFER_SPACE ? buffer_addresses(w, i, sizeof(T), words, allowed) : flat_addresses(w, i, S);
  if (S != BUFFER_SPACE) memset(allowed, 0xff, LANES);
  count(w, x, sizeof(T));
  bool returns = i.flags & SC0;
  const u32* s[4];
  u32* d[2] = {};
  for (int k = 0; k < words * (compares ? 2 : 1); k++) {
    s[k] = read_v(w, i, i.src[1] + k);
    data_defined(w, i, i.src[1] - VGPR + k, x.mask);
  }
  if (returns)
    for (int k = 0; k < words; k++) d[k] = write_v(w, i, i.dst + k);
  for (int l = 0; l < LANES; l++) {
    if (!(x.mask >> l & 1) || !allowed[l]) {
      if (returns && x.mask >> l & 1)
        for (int k = 0; k < words; k++) d[k][l] = 0;
      continue;
    }
    u32 t[4];
    for (int k = 0; k < words * (compares ? 2 : 1); k++) t[k] = s[k][l];
    T data, other, old;
    memcpy(&data, t, sizeof(T));
    memcpy(&other, compares ? t + words : t, sizeof(T));
    u8* p = place(w, i, x.address[l], sizeof(T), true, true, l);
    if (!p) continue;
    memcpy(&old, p, sizeof(T));
    T fresh = f(old, data, other);
    memcpy(p, &fresh, sizeof(T));
    if (returns) {
      u32 o[2];
      memcpy(o, &old, sizeof(T));
      for (int k = 0; k < words; k++) d[k][l] = o[k];
    }
  }
  w.issued[VM]++;
  w.g->releases.push_back(w.m->clock++);
  w.g->acquired = w.m->clock;
  if (S == FLAT_SPACE) {
    w.issued[LDS_OP]++;
    w.flat = w.issued[VM];
  }
  if (returns)
    for (int k = 0; k < words; k++) {
      w.vu[i.dst - VGPR + k] &= ~w.exec();
      outstanding_v(w, i.dst + k, VM);
    }
  if (compares && words == 2)
    for (int k = 0; k < 4; k++) {
      int r = i.src[1] - VGPR + k;
      w.store_v[r] = w.slot;
      w.vflag[r] |= 4;
    }
}
u32 pk_add_f16(u32 a, u32 b) { return to_half(half(a) + half(b)) | (u32)to_half(half(a >> 16) + half(b >> 16)) << 16; }
u32 pk_add_bf16(u32 a, u32 b) { return to_bf16(bf16(a) + bf16(b)) | (u32)to_bf16(bf16(a >> 16) + bf16(b >> 16)) << 16; }
void fence(Wave& w, const Inst&) {
  w.g->releases.push_back(w.m->clock++);
  w.g->acquired = w.m->clock;
  w.issued[VM]++;
}
}  // namespace

void set_registry(std::vector<Group*>* r) { registry = r; }

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
#define A1(p, S, name, T, U, cmp, expr)                                 \
  F(p "_atomic_" name, atomic<S, T>(w, i, cmp, [](T o, T d, T c) -> T { \
      (void)c;                                                          \
      (void)d;                                                          \
      return expr;                                                      \
    }))
#define INT(p, S, x, U, I)                                                                              \
  A1(p, S, "swap" x, U, U, false, d), A1(p, S, "cmpswap" x, U, U, true, o == c ? d : o),                \
      A1(p, S, "add" x, U, U, false, o + d), A1(p, S, "sub" x, U, U, false, o - d),                     \
      A1(p, S, "smin" x, I, U, false, std::min(o, d)), A1(p, S, "umin" x, U, U, false, std::min(o, d)), \
      A1(p, S, "smax" x, I, U, false, std::max(o, d)), A1(p, S, "umax" x, U, U, false, std::max(o, d)), \
      A1(p, S, "and" x, U, U, false, o& d), A1(p, S, "or" x, U, U, false, o | d),                       \
      A1(p, S, "xor" x, U, U, false, o ^ d), A1(p, S, "inc" x, U, U, false, o >= d ? 0 : o + 1),        \
      A1(p, S, "dec" x, U, U, false, o == 0 || o > d ? d : o - 1)
#define ATOMICS(p, S)                                                                                           \
  INT(p, S, "", u32, i32), INT(p, S, "_x2", u64, i64), A1(p, S, "add_f32", float, u32, false, o + d),           \
      A1(p, S, "add_f64", double, u64, false, o + d), A1(p, S, "min_f64", double, u64, false, quiet_min(o, d)), \
      A1(p, S, "max_f64", double, u64, false, quiet_max(o, d)),                                                 \
      A1(p, S, "pk_add_f16", u32, u32, false, pk_add_f16(o, d)),                                                \
      A1(p, S, "pk_add_bf16", u32, u32, false, pk_add_bf16(o, d))

std::vector<Op> memory_ops() {
  return {
      LOADS("global", GLOBAL_SPACE),          LOADS("flat", FLAT_SPACE),
      LOADS("scratch", SCRATCH_SPACE),        LOADS("buffer", BUFFER_SPACE),
      LDS_LOADS("global", GLOBAL_SPACE),      LDS_LOADS("scratch", SCRATCH_SPACE),
      ATOMICS("global", GLOBAL_SPACE),        ATOMICS("flat", FLAT_SPACE),
      ATOMICS("buffer", BUFFER_SPACE),        {"buffer_wbinvl1", fence, VMEM, 0},
      {"buffer_wbinvl1_vol", fence, VMEM, 0}, {"buffer_wbl2", fence, VMEM, 0},
      {"buffer_inv", fence, VMEM, 0},         {"buffer_invl2", fence, VMEM, 0},
  };
}
