// Instructions of the local data share: where their lanes access it, and what a wait covers.
#pragma once
#include "memory.h"

// lds_rules.cpp
void forget_patterns();  // of the launch before: they are known by where their instruction lies
const u32* address_of(Wave& w, const Inst& i);
// Applies the rules to every lane's access of `bytes` at base + offset: gives the lanes that may do it, and where in
// `at`. `data` is what will be written: in each of so many registers, and `unwritten` the lanes of each that nothing
// wrote.
u64 take(Wave& w, const Inst& i, const u32* base, u32 offset, u32 bytes, bool write, u32* at,
         const u32* const* data = nullptr, const u64* unwritten = nullptr);
// Marks registers `first` up to `registers` of the destination as read and outstanding; `at` and `lanes` as take gave
// them.
void finish_read(Wave& w, const Inst& i, int registers, int first = 0, u64 lanes = 0, const u32* at = nullptr);

#define D(name, ...) {name, [](Wave& w, const Inst& i) { __VA_ARGS__; }, DSOP, 0}
