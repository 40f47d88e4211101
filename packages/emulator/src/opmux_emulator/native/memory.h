// Vector memory instructions: the addresses of their lanes, and the rules of each access.
#pragma once
#include "operands.h"
#include "tables.h"

enum Space { GLOBAL_SPACE, SCRATCH_SPACE, FLAT_SPACE, BUFFER_SPACE };

// Where each lane of an instruction accesses memory, and which lanes do.
struct Access {
  u64 address[LANES];
  u64 mask;
};
// What a load or a store moves: how many bytes, whether a load extends their sign, and of a register's halves which is
// written or stored: 0 neither, 1 the low one, 2 the high one; a load keeps the other.
struct Shape {
  int bytes;
  bool is_signed;
  int half;
};
inline u32 extended(u32 x, Shape s) {
  if (!s.is_signed) return x;
  return s.bytes == 1 ? (u32)(i32)(i8)x : (u32)(i32)(i16)x;
}
// What becomes of a register that holds `old` when a load brings x.
inline u32 loaded(u32 old, u32 x, Shape s) {
  if (s.half == 1) return (old & 0xffff0000) | (x & 0xffff);
  if (s.half == 2) return (old & 0xffff) | x << 16;
  return x;
}

// addresses.cpp
Access flat_addresses(Wave& w, const Inst& i, Space space);
// `allowed` has a bit for each dword of each lane that the range check admits; `tainted`, where it is given, gets the
// lanes whose address nothing wrote.
Access buffer_addresses(Wave& w, const Inst& i, u32 element, int dwords, u8* allowed, u64* tainted = nullptr);
void count(Wave& w, const Access& x, u32 bytes);
template <Space S>
Access addresses(Wave& w, const Inst& i, u32 element, int dwords, u8* allowed, u64* tainted = nullptr) {
  if (S == BUFFER_SPACE) return buffer_addresses(w, i, element, dwords, allowed, tainted);
  memset(allowed, 0xff, LANES);
  return flat_addresses(w, i, S);
}

// accesses.cpp
u8* place(Wave& w, const Inst& i, u64 address, u32 bytes, bool write, bool atomic, int lane);  // null: not to be done
void data_defined(Wave& w, const Inst& i, int reg, u64 mask);
void set_registry(std::vector<Group*>* groups);  // by id, for the race rule

inline bool in_lds(const Wave& w, u64 address) { return address >> 32 == w.m->lds_aperture >> 32; }
// A flat instruction counts in both counters, and a wait for either must be for all of it.
inline void issue_flat(Wave& w) {
  issue(w, LDS_OP);
  w.flat = w.issued[VM];
}
