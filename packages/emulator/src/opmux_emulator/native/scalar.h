// What scalar instructions are written with: sources and results, and which of their bits nothing wrote.
#pragma once
#include "sources.h"
#include "tables.h"

inline u32 all(u32 unwritten) { return unwritten ? ~0u : 0; }
inline u64 all(u64 unwritten) { return unwritten ? ~0ull : 0; }
inline void salu_wrote(Wave& w, int r) {
  if (r == M0) w.salu_m0 = w.slot;
}
inline void put32(Wave& w, const Inst& i, u32 x, u32 und) {
  write_s(w, i, i.dst, x, und);
  salu_wrote(w, i.dst);
}
inline void put64s(Wave& w, const Inst& i, u64 x, u64 und) { write_s64(w, i, i.dst, x, und); }
inline void set_scc(Wave& w, bool x, u64 und) {
  w.scc = x;
  w.sccu = und ? ~0u : 0;
}
inline u32 source32(Wave& w, const Inst& i, int k, u32& und) { return scalar(w, i, i.src[k], 32, &und); }
inline u64 source64(Wave& w, const Inst& i, int k, u64& und) { return scalar64(w, i, i.src[k], false, &und); }

// A row: the mnemonic, its class, and a statement of the wave w and the instruction i.
#define S(name, kind, ...) {name, [](Wave& w, const Inst& i) { __VA_ARGS__; }, kind, 0}
