// The rules of an access to global memory: bounds, alignment, initialisation, and races between workgroups.
// CDNA3 ISA, chapter 9 for alignment; the rest is this interpreter's own.
#include "memory.h"
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
std::vector<Group*>* registry;  // groups by id, for the race rule

// `from` released after the access, `to` acquired after that.
bool ordered(Group& from, u32 time, const Group& to) {
  auto it = std::upper_bound(from.releases.begin(), from.releases.end(), time - 1);
  return it != from.releases.end() && to.acquired > *it;
}
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
}  // namespace

void set_registry(std::vector<Group*>* groups) { registry = groups; }

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
void data_defined(Wave& w, const Inst& i, int reg, u64 mask) {
  if (w.vu[reg] & mask) {
    report(w, i, UNWRITTEN_REGISTER, __builtin_ctzll(w.vu[reg] & mask), VGPR + reg, 4);
    w.vu[reg] &= ~mask;
  }
}
