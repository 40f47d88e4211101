// The local data share: reads, writes and atomics. CDNA3 ISA, chapter 11 and section 12.13.
#include "lds.h"
#include <algorithm>

namespace {
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
      v[0] = loaded(d[0][l], extended(v[0], s), s);
      for (int k = 0; k < n; k++) d[k][l] = v[k];
    }
  issue(w, LDS_OP);
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
  issue(w, LDS_OP);
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
  issue(w, LDS_OP);
  lds_note(w, LDS_OP, true, s.bytes, mask, at);
}
void write2(Wave& w, const Inst& i, int words, u32 unit) {
  const u32* a = address_of(w, i);
  u32 at[LANES];
  u32 copy[LANES];
  memcpy(copy, a, sizeof copy);
  issue(w, LDS_OP);
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
// f(old, data, second) gives the new value.
template <class T>
void atomic(Wave& w, const Inst& i, bool returns, bool second, T (*f)(T, T, T)) {
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
  issue(w, LDS_OP);
  if (returns) finish_read(w, i, words);
}
}  // namespace

// An atomic, without and with a result: the type of its operands, whether it has a second one, and the new value by o
// (old), d (data) and c (the second).
#define A1(base, suffix, T, second, expr)                                   \
  D("ds_" base "_" suffix, atomic<T>(w, i, false, second, VALUE(T, expr))), \
      D("ds_" base "_rtn_" suffix, atomic<T>(w, i, true, second, VALUE(T, expr)))
#define VALUE(T, expr) []([[maybe_unused]] T o, [[maybe_unused]] T d, [[maybe_unused]] T c) -> T { return expr; }
// Of integers of one width.
#define INT(U, I, n)                                                                                            \
  A1("add", "u" n, U, false, o + d), A1("sub", "u" n, U, false, o - d), A1("rsub", "u" n, U, false, d - o),     \
      A1("inc", "u" n, U, false, o >= d ? 0 : o + 1), A1("dec", "u" n, U, false, o == 0 || o > d ? d : o - 1),  \
      A1("min", "i" n, I, false, std::min(o, d)), A1("max", "i" n, I, false, std::max(o, d)),                   \
      A1("min", "u" n, U, false, std::min(o, d)), A1("max", "u" n, U, false, std::max(o, d)),                   \
      A1("and", "b" n, U, false, (o & d)), A1("or", "b" n, U, false, o | d), A1("xor", "b" n, U, false, o ^ d), \
      A1("mskor", "b" n, U, true, (o & ~d) | c), A1("cmpst", "b" n, U, true, o == d ? c : o),                   \
      D("ds_wrxchg_rtn_b" n, atomic<U>(w, i, true, false, VALUE(U, d)))

std::vector<Op> lds_ops() {
  return {
      D("ds_read_b32", read(w, i, {4, false, 0})),
      D("ds_read_b64", read(w, i, {8, false, 0})),
      D("ds_read_b96", read(w, i, {12, false, 0})),
      D("ds_read_b128", read(w, i, {16, false, 0})),
      D("ds_read_u8", read(w, i, {1, false, 0})),
      D("ds_read_i8", read(w, i, {1, true, 0})),
      D("ds_read_u16", read(w, i, {2, false, 0})),
      D("ds_read_i16", read(w, i, {2, true, 0})),
      D("ds_read_u8_d16", read(w, i, {1, false, 1})),
      D("ds_read_u8_d16_hi", read(w, i, {1, false, 2})),
      D("ds_read_i8_d16", read(w, i, {1, true, 1})),
      D("ds_read_i8_d16_hi", read(w, i, {1, true, 2})),
      D("ds_read_u16_d16", read(w, i, {2, false, 1})),
      D("ds_read_u16_d16_hi", read(w, i, {2, false, 2})),
      D("ds_read2_b32", read2(w, i, 1, 4)),
      D("ds_read2_b64", read2(w, i, 2, 8)),
      D("ds_read2st64_b32", read2(w, i, 1, 256)),
      D("ds_read2st64_b64", read2(w, i, 2, 512)),
      D("ds_write_b32", write(w, i, {4, false, 0})),
      D("ds_write_b64", write(w, i, {8, false, 0})),
      D("ds_write_b96", write(w, i, {12, false, 0})),
      D("ds_write_b128", write(w, i, {16, false, 0})),
      D("ds_write_b8", write(w, i, {1, false, 0})),
      D("ds_write_b16", write(w, i, {2, false, 0})),
      D("ds_write_b8_d16_hi", write(w, i, {1, false, 2})),
      D("ds_write_b16_d16_hi", write(w, i, {2, false, 2})),
      D("ds_write2_b32", write2(w, i, 1, 4)),
      D("ds_write2_b64", write2(w, i, 2, 8)),
      D("ds_write2st64_b32", write2(w, i, 1, 256)),
      D("ds_write2st64_b64", write2(w, i, 2, 512)),
      INT(u32, i32, "32"),
      INT(u64, i64, "64"),
      A1("add", "f32", float, false, o + d),
      A1("min", "f32", float, false, quiet_min(o, d)),
      A1("max", "f32", float, false, quiet_max(o, d)),
      A1("add", "f64", double, false, o + d),
      A1("min", "f64", double, false, quiet_min(o, d)),
      A1("max", "f64", double, false, quiet_max(o, d)),
      A1("pk_add", "f16", u32, false, pk_add_f16(o, d)),
      A1("pk_add", "bf16", u32, false, pk_add_bf16(o, d)),
  };
}
