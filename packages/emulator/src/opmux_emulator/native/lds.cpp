// The local data share: reads, writes, atomics, cross-lane moves. CDNA3 ISA, chapter 11 and section 12.13.
#include "operands.h"
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
const u32* address_of(Wave& w, const Inst& i) {
  const u32* a = read_v(w, i, i.src[0]);
  u64 u = w.vu[i.src[0] - VGPR] & w.exec();
  if (u) report(w, i, UNWRITTEN_REGISTER, __builtin_ctzll(u), i.src[0], 3);
  return a;
}
struct Shape {
  int bytes;
  bool is_signed;
  int half;
};
// `data` is what will be written: in each of so many registers, and `unwritten` the lanes of each that nothing wrote.
u64 take(Wave& w, const Inst& i, const u32* base, u32 offset, u32 bytes, bool write, u32* at,
         const u32* const* data = nullptr, const u64* unwritten = nullptr) {
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
void finish_read(Wave& w, const Inst& i, int registers, int first = 0, u64 lanes = 0, const u32* at = nullptr) {
  for (int k = first; k < registers; k++) {
    u64& u = w.vu[i.dst - VGPR + k];
    u &= ~w.exec();
    for (int l = 0; l < LANES && at; l++)
      if (lanes >> l & 1 && w.g->shadow[at[l] / 4 + (k - first)].tainted) u |= 1ull << l;
    outstanding_v(w, i.dst + k, LDS_OP);
  }
}
void read(Wave& w, const Inst& i, Shape s) {
  const u32* a = address_of(w, i);
  int n = (s.bytes + 3) / 4;
  u32* d[4];
  u32 at[LANES];
  u64 mask = take(w, i, a, i.imm, s.bytes, false, at);
  if (s.half) settle(w, i.dst);
  for (int k = 0; k < n; k++) d[k] = write_v(w, i, i.dst + k);
  for (int l = 0; l < LANES; l++)
    if (w.exec() >> l & 1) {
      u32 v[4] = {};
      if (mask >> l & 1) memcpy(v, &w.g->lds[at[l]], s.bytes);
      if (s.is_signed) v[0] = s.bytes == 1 ? (u32)(i32)(i8)v[0] : (u32)(i32)(i16)v[0];
      if (s.half == 1) v[0] = (d[0][l] & 0xffff0000) | (v[0] & 0xffff);
      if (s.half == 2) v[0] = (d[0][l] & 0xffff) | v[0] << 16;
      for (int k = 0; k < n; k++) d[k][l] = v[k];
    }
  w.issued[LDS_OP]++;
  lds_note(w, LDS_OP, false, s.bytes, mask, at);
  finish_read(w, i, n, 0, mask, at);
}
void read2(Wave& w, const Inst& i, int words, u32 unit) {
  const u32* a = address_of(w, i);
  u32* d[4];
  u32 at[2][LANES];
  u64 mask[2];
  for (int h = 0; h < 2; h++) mask[h] = take(w, i, a, (h ? i.imm1 : i.imm) * unit, 4 * words, false, at[h]);
  for (int k = 0; k < 2 * words; k++) d[k] = write_v(w, i, i.dst + k);
  u32 copy[LANES];
  memcpy(copy, a, sizeof copy);
  for (int l = 0; l < LANES; l++)
    if (w.exec() >> l & 1)
      for (int h = 0; h < 2; h++) {
        u32 v[2] = {};
        if (mask[h] >> l & 1) memcpy(v, &w.g->lds[at[h][l]], 4 * words);
        for (int k = 0; k < words; k++) d[h * words + k][l] = v[k];
      }
  w.issued[LDS_OP]++;
  for (int h = 0; h < 2; h++) {
    lds_note(w, LDS_OP, false, 4 * words, mask[h], at[h]);
    finish_read(w, i, (h + 1) * words, h * words, mask[h], at[h]);
  }
}
void defined(Wave& w, const Inst& i, int code) {
  u64 u = w.vu[code - VGPR] & w.exec();
  if (u) {
    report(w, i, UNWRITTEN_REGISTER, __builtin_ctzll(u), code, 4);
    w.vu[code - VGPR] &= ~u;
  }
}
void write(Wave& w, const Inst& i, Shape s) {
  const u32* a = address_of(w, i);
  int n = (s.bytes + 3) / 4;
  const u32* d[4];
  u64 u[4];
  u32 at[LANES];
  for (int k = 0; k < n; k++) {
    d[k] = read_v(w, i, i.src[1] + k);
    u[k] = w.vu[i.src[1] + k - VGPR];
  }
  u32 high[LANES];
  if (s.half == 2) {
    for (int l = 0; l < LANES; l++) high[l] = d[0][l] >> 16;
    d[0] = high;
  }
  u64 mask = take(w, i, a, i.imm, s.bytes, true, at, d, u);
  for (int l = 0; l < LANES; l++)
    if (mask >> l & 1) {
      u32 v[4];
      for (int k = 0; k < n; k++) v[k] = d[k][l];
      memcpy(&w.g->lds[at[l]], v, s.bytes);
    }
  w.issued[LDS_OP]++;
  lds_note(w, LDS_OP, true, s.bytes, mask, at);
}
void write2(Wave& w, const Inst& i, int words, u32 unit) {
  const u32* a = address_of(w, i);
  u32 at[LANES];
  u32 copy[LANES];
  memcpy(copy, a, sizeof copy);
  w.issued[LDS_OP]++;
  for (int h = 0; h < 2; h++) {
    const u32* d[2];
    u64 u[2];
    int code = i.src[1 + h];
    for (int k = 0; k < words; k++) {
      d[k] = read_v(w, i, code + k);
      u[k] = w.vu[code + k - VGPR];
    }
    u64 mask = take(w, i, copy, (h ? i.imm1 : i.imm) * unit, 4 * words, true, at, d, u);
    for (int l = 0; l < LANES; l++)
      if (mask >> l & 1)
        for (int k = 0; k < words; k++) memcpy(&w.g->lds[at[l] + 4 * k], &d[k][l], 4);
    lds_note(w, LDS_OP, true, 4 * words, mask, at);
  }
}
template <class T, class F>
void atomic(Wave& w, const Inst& i, bool returns, bool second, F f) {
  const u32* a = address_of(w, i);
  int words = sizeof(T) / 4;
  const u32 *d[2], *c[2];
  u32* out[2] = {};
  for (int k = 0; k < words; k++) {
    d[k] = read_v(w, i, i.src[1] + k);
    defined(w, i, i.src[1] + k);
    c[k] = second ? read_v(w, i, i.src[2] + k) : d[k];
  }
  if (returns)
    for (int k = 0; k < words; k++) out[k] = write_v(w, i, i.dst + k);
  for (int l = 0; l < LANES; l++)
    if (w.exec() >> l & 1) {
      u32 at = a[l] + i.imm, t[2];
      T x, y, old;
      if (!lds_access(w, i, at, sizeof(T), true, l, true)) continue;
      for (int k = 0; k < words; k++) t[k] = d[k][l];
      memcpy(&x, t, sizeof(T));
      for (int k = 0; k < words; k++) t[k] = c[k][l];
      memcpy(&y, t, sizeof(T));
      memcpy(&old, &w.g->lds[at], sizeof(T));
      T fresh = f(old, x, y);
      memcpy(&w.g->lds[at], &fresh, sizeof(T));
      if (returns) {
        memcpy(t, &old, sizeof(T));
        for (int k = 0; k < words; k++) out[k][l] = t[k];
      }
    }
  w.issued[LDS_OP]++;
  if (returns) finish_read(w, i, words);
}
int swizzle_lane(int offset, int l) {  // section 11.4 "DS_SWIZZLE_B32"
  if (offset & 0x8000) return (l & ~3) | (offset >> (2 * (l & 3)) & 3);
  return (l & 32) | (((l & 31 & (offset & 31)) | (offset >> 5 & 31)) ^ (offset >> 10 & 31));
}
void across(Wave& w, const Inst& i, int kind) {  // 0 swizzle, 1 permute, 2 bpermute: through LDS' crossbar, no memory
  const u32* a = read_v(w, i, i.src[0]);
  const u32* s = kind ? read_v(w, i, i.src[1]) : a;
  u64 exec = w.exec(), und = 0;
  u64 su = w.vu[(kind ? i.src[1] : i.src[0]) - VGPR];
  u32 r[LANES] = {};
  if (kind && (w.vu[i.src[0] - VGPR] & exec))
    report(w, i, UNWRITTEN_REGISTER, __builtin_ctzll(w.vu[i.src[0] - VGPR] & exec), i.src[0], 3);
  for (int l = 0; l < LANES; l++) {
    if (kind == 1) {
      if (exec >> l & 1) {
        int to = (a[l] + i.imm) / 4 & 63;
        r[to] = s[l];
        und = (und & ~(1ull << to)) | (su >> l & 1) << to;
      }
      continue;
    }
    int from = kind == 0 ? swizzle_lane(i.imm & 0xffff, l) : (int)((a[l] + i.imm) / 4 & 63);
    if (exec >> from & 1) {
      r[l] = s[from];
      und |= (su >> from & 1) << l;
    }
  }
  u32* d = write_v(w, i, i.dst);
  for (int l = 0; l < LANES; l++)
    if (exec >> l & 1) d[l] = r[l];
  w.vu[i.dst - VGPR] = (w.vu[i.dst - VGPR] & ~exec) | (und & exec);
  w.issued[LDS_OP]++;
  outstanding_v(w, i.dst, LDS_OP);
}
// What nothing wrote counts as an unwritten value that was stored there: compilers read rows past a narrow tile, whose
// elements they do not use.
void taint_unwritten(Wave& w, const u32* base, u32 offset, u32 bytes) {
  for (int l = 0; l < LANES; l++)
    if (w.exec() >> l & 1)
      for (u32 at = (base[l] + offset) & ~3u; at < base[l] + offset + bytes && at + 4 <= w.g->lds.size(); at += 4) {
        LdsWord& x = w.g->shadow[at / 4];
        if (x.written != 15) {
          x.written = 15;
          x.tainted = 1;
        }
      }
}
// CDNA4 ISA, "LDS transpose": sixteen lanes read sixteen rows of 64 bits and get a column of elements each.
void read_transposed(Wave& w, const Inst& i, int bits) {
  const u32* a = address_of(w, i);
  u32 at[LANES];
  int bytes = bits == 6 ? 12 : 8, n = bytes / 4;
  taint_unwritten(w, a, i.imm, bytes);
  u64 mask = take(w, i, a, i.imm, bytes, false, at), tainted[3] = {};
  int per = bytes * 8 / bits, rows = bits == 16 ? 4 : bits == 6 ? 16 : per;
  u32 out[3][LANES] = {};
  auto element = [&](int lane, int k) -> u32 {
    if (!(mask >> lane & 1)) return 0;
    u64 lo = 0, hi = 0;
    memcpy(&lo, &w.g->lds[at[lane]], 8);
    if (bytes == 12) memcpy(&hi, &w.g->lds[at[lane] + 8], 4);
    int bit = k * bits;
    unsigned __int128 x = (unsigned __int128)hi << 64 | lo;
    return (u32)(x >> bit) & ((1u << bits) - 1);
  };
  (void)rows;
  for (int l = 0; l < LANES; l++) {
    // Within 16 lanes: rows of 16 elements lie in 16 / per lanes each; lane l gets column l & 15 of `per` rows.
    int block = l & ~15, column = l & 15, lanes_a_row = 16 / per;
    unsigned __int128 x = 0;
    for (int k = 0; k < per; k++) {
      int from = block + (lanes_a_row ? k * lanes_a_row + column / per : k);
      x |= (unsigned __int128)element(from, column % per) << (k * bits);
      if (mask >> from & 1 && w.g->shadow[(at[from] + column % per * bits / 8) / 4].tainted)
        for (int d = k * bits / 32; d <= ((k + 1) * bits - 1) / 32; d++) tainted[d] |= 1ull << l;
    }
    for (int k = 0; k < n; k++) out[k][l] = (u32)(x >> (32 * k));
  }
  for (int k = 0; k < n; k++) {
    u32* d = write_v(w, i, i.dst + k);
    for (int l = 0; l < LANES; l++)
      if (w.exec() >> l & 1) d[l] = out[k][l];
  }
  w.issued[LDS_OP]++;
  lds_note(w, LDS_OP, false, bytes, mask, at);
  finish_read(w, i, n);
  for (int k = 0; k < n; k++) w.vu[i.dst - VGPR + k] |= tainted[k] & w.exec();
}
u32 pk_add_f16(u32 a, u32 b) { return to_half(half(a) + half(b)) | (u32)to_half(half(a >> 16) + half(b >> 16)) << 16; }
u32 pk_add_bf16(u32 a, u32 b) { return to_bf16(bf16(a) + bf16(b)) | (u32)to_bf16(bf16(a >> 16) + bf16(b >> 16)) << 16; }
}  // namespace

void forget_patterns() { known_patterns.clear(); }

#define D(name, ...) {name, [](Wave& w, const Inst& i) { __VA_ARGS__; }, DSOP, 0}
#define A1(base, suffix, T, second, expr)                                                 \
  D("ds_" base "_" suffix, atomic<T>(w, i, false, second,                                 \
                                     [](T o, T d, T c) -> T {                             \
                                       (void)c;                                           \
                                       (void)d;                                           \
                                       return expr;                                       \
                                     })),                                                 \
      D("ds_" base "_rtn_" suffix, atomic<T>(w, i, true, second, [](T o, T d, T c) -> T { \
          (void)c;                                                                        \
          (void)d;                                                                        \
          return expr;                                                                    \
        }))
#define INT(U, I, n)                                                                                           \
  A1("add", "u" n, U, false, o + d), A1("sub", "u" n, U, false, o - d), A1("rsub", "u" n, U, false, d - o),    \
      A1("inc", "u" n, U, false, o >= d ? 0 : o + 1), A1("dec", "u" n, U, false, o == 0 || o > d ? d : o - 1), \
      A1("min", "i" n, I, false, std::min(o, d)), A1("max", "i" n, I, false, std::max(o, d)),                  \
      A1("min", "u" n, U, false, std::min(o, d)), A1("max", "u" n, U, false, std::max(o, d)),                  \
      A1("and", "b" n, U, false, o& d), A1("or", "b" n, U, false, o | d), A1("xor", "b" n, U, false, o ^ d),   \
      A1("mskor", "b" n, U, true, (o & ~d) | c), A1("cmpst", "b" n, U, true, o == d ? c : o),                  \
      D("ds_wrxchg_rtn_b" n, atomic<U>(w, i, true, false, [](U, U d, U) { return d; }))

std::vector<Op> lds_ops() {
  return {
    D("ds_read_b32", read(w, i, {4, false, 0})), D("ds_read_b64", read(w, i, {8, false, 0})),
        D("ds_read_b96", read(w, i, {12, false, 0})), D("ds_read_b128", read(w, i, {16, false, 0})),
        D("ds_read_u8", read(w, i, {1, false, 0})), D("ds_read_i8", read(w, i, {1, true, 0})),
        D("ds_read_u16", read(w, i, {2, false, 0})), D("ds_read_i16", read(w, i, {2, true, 0})),
        D("ds_read_u8_d16", read(w, i, {1, false, 1})), D("ds_read_u8_d16_hi", read(w, i, {1, false, 2})),
        D("ds_read_i8_d16", read(w, i, {1, true, 1})), D("ds_read_i8_d16_hi", read(w, i, {1, true, 2})),
        D("ds_read_u16_d16", read(w, i, {2, false, 1})), D("ds_read_u16_d16_hi", read(w, i, {2, false, 2})),
        D("ds_read2_b32", read2(w, i, 1, 4)), D("ds_read2_b64", read2(w, i, 2, 8)),
        D("ds_read2st64_b32", read2(w, i, 1, 256)), D("ds_read2st64_b64", read2(w, i, 2, 512)),
        D("ds_write_b32", write(w, i, {4, false, 0})), D("ds_write_b64", write(w, i, {8, false, 0})),
        D("ds_write_b96", write(w, i, {12, false, 0})), D("ds_write_b128", write(w, i, {16, false, 0})),
        D("ds_write_b8", write(w, i, {1, false, 0})), D("ds_write_b16", write(w, i, {2, false, 0})),
        D("ds_write_b8_d16_hi", write(w, i, {1, false, 2})), D("ds_write_b16_d16_hi", write(w, i, {2, false, 2})),
        D("ds_write2_b32", write2(w, i, 1, 4)), D("ds_write2_b64", write2(w, i, 2, 8)),
        D("ds_write2st64_b32", write2(w, i, 1, 256)), D("ds_write2st64_b64", write2(w, i, 2, 512)), INT(u32, i32, "32"),
        INT(u64, i64, "64"), A1("add", "f32", float, false, o + d), A1("min", "f32", float, false, quiet_min(o, d)),
        A1("max", "f32", float, false, quiet_max(o, d)), A1("add", "f64", double, false, o + d),
        A1("min", "f64", double, false, quiet_min(o, d)), A1("max", "f64", double, false, quiet_max(o, d)),
        A1("pk_add", "f16", u32, false, pk_add_f16(o, d)), A1("pk_add", "bf16", u32, false, pk_add_bf16(o, d)),
        D("ds_swizzle_b32", across(w, i, 0)), D("ds_permute_b32", across(w, i, 1)),
        D("ds_bpermute_b32", across(w, i, 2)), D("ds_nop", (void)w; (void)i),
        D("ds_read_b64_tr_b16", read_transposed(w, i, 16)), D("ds_read_b64_tr_b8", read_transposed(w, i, 8)),
        D("ds_read_b64_tr_b4", read_transposed(w, i, 4)), D("ds_read_b96_tr_b6", read_transposed(w, i, 6)),
  };
}
