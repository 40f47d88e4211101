// Atomics of vector memory, and the instructions that order it. CDNA3 ISA, chapters 8 and 9, sections 12.15 to 12.18.
#include "memory.h"
#include <algorithm>

namespace {
// What orders workgroups in the race rule: what came before is released, and what others released is acquired.
void synchronise(Wave& w) {
  w.g->releases.push_back(w.m->clock++);
  w.g->acquired = w.m->clock;
}
// Atomics: f(old, data, compare) gives the new value.
template <Space S, class T>
void atomic(Wave& w, const Inst& i, bool compares, T (*f)(T, T, T)) {
  u8 allowed[LANES];
  int words = sizeof(T) / 4;
  Access x = addresses<S>(w, i, sizeof(T), words, allowed);
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
  issue(w, VM);
  synchronise(w);
  if (S == FLAT_SPACE) issue_flat(w);
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
void fence(Wave& w, const Inst&) {
  synchronise(w);
  issue(w, VM);
}
}  // namespace

#define F(name, ...) {name, [](Wave& w, const Inst& i) { __VA_ARGS__; }, VMEM, 0}
// An atomic: its name, the type of its operands, whether it compares, and the new value by o (old), d (data), c
// (compare).
#define A1(p, S, name, T, cmp, expr) \
  F(p "_atomic_" name,               \
    atomic<S, T>(w, i, cmp, []([[maybe_unused]] T o, T d, [[maybe_unused]] T c) -> T { return expr; }))
// Of integers of one width, and all of a space.
#define INT(p, S, x, U, I)                                                                                             \
  A1(p, S, "swap" x, U, false, d), A1(p, S, "cmpswap" x, U, true, o == c ? d : o), A1(p, S, "add" x, U, false, o + d), \
      A1(p, S, "sub" x, U, false, o - d), A1(p, S, "smin" x, I, false, std::min(o, d)),                                \
      A1(p, S, "umin" x, U, false, std::min(o, d)), A1(p, S, "smax" x, I, false, std::max(o, d)),                      \
      A1(p, S, "umax" x, U, false, std::max(o, d)), A1(p, S, "and" x, U, false, (o & d)),                              \
      A1(p, S, "or" x, U, false, o | d), A1(p, S, "xor" x, U, false, o ^ d),                                           \
      A1(p, S, "inc" x, U, false, o >= d ? 0 : o + 1), A1(p, S, "dec" x, U, false, o == 0 || o > d ? d : o - 1)
#define ATOMICS(p, S)                                                                                            \
  INT(p, S, "", u32, i32), INT(p, S, "_x2", u64, i64), A1(p, S, "add_f32", float, false, o + d),                 \
      A1(p, S, "add_f64", double, false, o + d), A1(p, S, "min_f64", double, false, quiet_min(o, d)),            \
      A1(p, S, "max_f64", double, false, quiet_max(o, d)), A1(p, S, "pk_add_f16", u32, false, pk_add_f16(o, d)), \
      A1(p, S, "pk_add_bf16", u32, false, pk_add_bf16(o, d))

std::vector<Op> memory_atomic_ops() {
  return {
      ATOMICS("global", GLOBAL_SPACE),        ATOMICS("flat", FLAT_SPACE),
      ATOMICS("buffer", BUFFER_SPACE),        {"buffer_wbinvl1", fence, VMEM, 0},
      {"buffer_wbinvl1_vol", fence, VMEM, 0}, {"buffer_wbl2", fence, VMEM, 0},
      {"buffer_inv", fence, VMEM, 0},         {"buffer_invl2", fence, VMEM, 0},
  };
}
