// The rules of an access to LDS: bounds, alignment, initialisation, races between waves; and the cycles of its banks.
// CDNA3 ISA, chapter 11.
#include "lds.h"
#include <algorithm>
#include <unordered_map>

namespace {
inline void note_read(LdsWord& x, u32 epoch, u32 wave, u8 mask) {
  if (x.read_epoch != epoch || !(x.reader_mask & mask)) {
    x.read_epoch = epoch;
    x.readers = 0;
    x.reader_mask = 0;
  }
  x.readers |= 1u << wave;
  x.reader_mask |= mask;
}
inline void note_write(LdsWord& x, u32 epoch, u32 wave, u8 mask) {
  if (x.write_epoch != epoch || x.writer != wave) x.writer_mask = 0;
  x.write_epoch = epoch;
  x.writer = wave;
  x.writer_mask |= mask;
  x.written |= mask;
}
}  // namespace

// The rules of one LDS access; false where it lies outside and must not happen.
bool lds_access(Wave& w, const Inst& i, u32 address, u32 bytes, bool write, int lane, bool atomic, const void* data) {
  Group& g = *w.g;
  if ((u64)address + bytes > g.lds.size()) {
    report(w, i, LDS_BOUNDS, lane, address, bytes);
    return false;
  }
  u32 alignment = atomic ? bytes : std::min(bytes == 12 ? 4u : bytes, 4u);
  if (address & (alignment - 1)) report(w, i, MISALIGNED, lane, address, alignment);
  u16 me = 1u << w.index;
  u32 epoch = g.epoch;
  for (u32 at = address & ~3u; at < address + bytes; at += 4) {
    LdsWord& x = g.shadow[at / 4];
    u8 mask = 15;
    if (at < address) mask &= 15 << (address - at);
    if (at + 4 > address + bytes) mask &= 15 >> (at + 4 - address - bytes);
    bool other_wrote = x.write_epoch == epoch && x.writer != w.index && x.writer_mask & mask;
    bool other_read = x.read_epoch == epoch && x.readers & ~me && x.reader_mask & mask;
    // Waves that write the same value do no harm: compilers store replicated data so.
    u32 from = std::max(at, address), to = std::min(at + 4, address + bytes);
    if (other_wrote && write && data && !memcmp(&g.lds[from], (const u8*)data + (from - address), to - from))
      other_wrote = false;
    if (__builtin_expect(!atomic && (other_wrote || (write && other_read)), 0)) {
      report(w, i, LDS_RACE, lane, at, other_wrote ? x.writer : __builtin_ctz(x.readers & ~me));
      x.write_epoch = x.read_epoch = 0;
    }
    if (!write || atomic) {
      if (__builtin_expect(mask & ~x.written, 0)) {
        report(w, i, UNWRITTEN_LDS, lane, at);
        x.written |= mask;
      }
      if (!atomic) note_read(x, epoch, w.index, mask);
    }
    if (write && !atomic) note_write(x, epoch, w.index, mask);
  }
  return true;
}
// An access that no wait has covered yet: a barrier does not order it.
void lds_note(Wave& w, Counter counter, bool write, u32 size, u64 lanes, const u32* offsets) {
  w.pending.emplace_back();
  Pending& p = w.pending.back();
  p.seq = w.issued[counter];
  p.counter = counter;
  p.write = write;
  p.size = size;
  p.lanes = lanes;
  memcpy(p.offset, offsets, sizeof p.offset);
}
void lds_restamp(Group& g) {  // at a barrier: accesses still under way belong to the next interval too
  for (Wave* w : g.waves)
    for (Pending& p : w->pending)
      for (int l = 0; l < LANES; l++)
        if (p.lanes >> l & 1)
          for (u32 at = p.offset[l] & ~3u; at < p.offset[l] + p.size; at += 4) {
            LdsWord& x = g.shadow[at / 4];
            u8 mask = 15;
            if (at < p.offset[l]) mask &= 15 << (p.offset[l] - at);
            if (at + 4 > p.offset[l] + p.size) mask &= 15 >> (at + 4 - p.offset[l] - p.size);
            if (p.write) note_write(x, g.epoch, w->index, mask);
            else note_read(x, g.epoch, w->index, mask);
          }
}

namespace {
// Cycles of an access: 128 bytes a cycle from 32 banks (64 banks on gfx950); equal addresses are broadcast.
struct Pattern {
  u32 relative[LANES];
  u64 mask;
  u32 bytes = 0, cycles, extra;
};
std::unordered_map<const Inst*, Pattern> known_patterns;
void conflicts(Wave& w, const Inst& i, const u32* address, u64 mask, u32 bytes) {
  // The same addresses moved by whole dwords conflict alike: an instruction's last pattern is remembered.
  Counts& totals = w.m->counts;
  totals.lds_accesses++;
  if (!mask) return;
  Pattern& pattern = known_patterns[&i];
  u32 relative[LANES], first_address = address[__builtin_ctzll(mask)] & ~3u;
  for (int l = 0; l < LANES; l++) relative[l] = mask >> l & 1 ? address[l] - first_address : 0;
  if (pattern.bytes == bytes && pattern.mask == mask && !memcmp(pattern.relative, relative, sizeof relative)) {
    totals.lds_cycles += pattern.cycles;
    totals.lds_conflict_cycles += pattern.extra;
    return;
  }
  struct {
    u32 lds_cycles = 0, lds_conflict_cycles = 0;
  } c;
  u32 banks = w.m->arch == GFX950 ? 64 : 32, group = std::max(1u, std::min(32u, banks * 4 / bytes));
  for (u32 first = 0; first < LANES; first += group) {
    u32 used[64][8];
    u8 n[64] = {};
    u32 worst = 0;
    for (u32 l = first; l < std::min<u32>(first + group, LANES); l++)
      if (mask >> l & 1)
        for (u32 d = 0; d < std::max(bytes / 4, 1u); d++) {
          u32 word = address[l] / 4 + d, bank = word % banks;
          bool known = false;
          for (int k = 0; k < std::min<int>(n[bank], 8); k++) known |= used[bank][k] == word;
          if (!known) {
            if (n[bank] < 8) used[bank][n[bank]] = word;
            n[bank]++;
            worst = std::max<u32>(worst, n[bank]);
          }
        }
    c.lds_cycles += worst;
    if (worst > 1) c.lds_conflict_cycles += worst - 1;
  }
  memcpy(pattern.relative, relative, sizeof relative);
  pattern.mask = mask;
  pattern.bytes = bytes;
  pattern.cycles = c.lds_cycles;
  pattern.extra = c.lds_conflict_cycles;
  totals.lds_cycles += c.lds_cycles;
  totals.lds_conflict_cycles += c.lds_conflict_cycles;
}
}  // namespace

void forget_patterns() { known_patterns.clear(); }

const u32* address_of(Wave& w, const Inst& i) {
  const u32* a = read_v(w, i, i.src[0]);
  u64 u = w.vu[i.src[0] - VGPR] & w.exec();
  if (u) report(w, i, UNWRITTEN_REGISTER, __builtin_ctzll(u), i.src[0], 3);
  return a;
}
u64 take(Wave& w, const Inst& i, const u32* base, u32 offset, u32 bytes, bool write, u32* at, const u32* const* data,
         const u64* unwritten) {
  u64 mask = w.exec();
  u32 lane[4];
  int n = (bytes + 3) / 4;
  for (int l = 0; l < LANES; l++) {
    at[l] = base[l] + offset;
    if (!(mask >> l & 1)) continue;
    if (data)
      for (int k = 0; k < n; k++) lane[k] = data[k][l];
    if (!lds_access(w, i, at[l], bytes, write, l, false, data ? lane : nullptr)) {
      mask &= ~(1ull << l);
      continue;
    }
    if (unwritten)
      for (int k = 0; k < n; k++) w.g->shadow[at[l] / 4 + k].tainted = unwritten[k] >> l & 1;
  }
  conflicts(w, i, at, mask, bytes);
  return mask;
}
void finish_read(Wave& w, const Inst& i, int registers, int first, u64 lanes, const u32* at) {
  for (int k = first; k < registers; k++) {
    u64& u = w.vu[i.dst - VGPR + k];
    u &= ~w.exec();
    for (int l = 0; l < LANES && at; l++)
      if (lanes >> l & 1 && w.g->shadow[at[l] / 4 + (k - first)].tainted) u |= 1ull << l;
    outstanding_v(w, i.dst + k, LDS_OP);
  }
}
