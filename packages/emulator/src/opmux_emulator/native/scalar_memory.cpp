// Scalar memory: loads of 1 to 16 registers, the clock, the data cache. CDNA3 ISA, section 12.6.
#include "scalar.h"

namespace {
void load_scalars(Wave& w, const Inst& i, int count, bool buffer) {
  u64 und = 0, base;
  u64 limit = ~0ull;
  int sbase = i.src[0];
  for (int k = 0; k < (buffer ? 4 : 2); k++) {
    touch_s(w, i, sbase + k);
    und |= w.su[sbase + k];
  }
  u64 offset = (u64)(i64)i.imm;
  if (i.src[1] >= 0) {
    u32 u = 0;
    offset += scalar(w, i, i.src[1], 32, &u);
    und |= u;
  }
  if (und) report(w, i, UNWRITTEN_REGISTER, -1, sbase, 3);
  if (buffer) {
    base = w.pair(sbase) & 0xffffffffffffull;
    u32 stride = w.s[sbase + 1] >> 16 & 0x3fff;
    limit = (u64)w.s[sbase + 2] * (stride ? stride : 1);
  } else base = w.pair(sbase) & 0xffffffffffffull;
  u64 address = base + offset;
  if (address & 3) {
    report(w, i, MISALIGNED, -1, address, 4);
    address &= ~3ull;
  }
  for (int k = 0; k < count; k++) {
    u32 x = 0;
    if (!buffer || (offset & ~3ull) + 4 * k < limit) {
      u8* p = translate(w, i, address + 4 * k, 4, false, -1);
      if (p) memcpy(&x, p, 4);
    }
    write_s(w, i, i.dst + k, x, 0);
  }
  w.issued[SMEM_OP]++;
  for (int k = 0; k < count; k++) outstanding_s(w, i.dst + k);
}
void memtime(Wave& w, const Inst& i) {
  write_s64(w, i, i.dst, w.executed, 0);
  w.issued[SMEM_OP]++;
  outstanding_s(w, i.dst);
  outstanding_s(w, i.dst + 1);
}
void nop(Wave&, const Inst&) {}
}  // namespace

#define LOAD(n, c) \
  S("s_load_dword" n, SMEM, load_scalars(w, i, c, false)), S("s_buffer_load_dword" n, SMEM, load_scalars(w, i, c, true))

std::vector<Op> scalar_memory_ops() {
  return {
      LOAD("", 1),
      LOAD("x2", 2),
      LOAD("x4", 4),
      LOAD("x8", 8),
      LOAD("x16", 16),
      {"s_memtime", memtime, SMEM, 0},
      {"s_memrealtime", memtime, SMEM, 0},
      {"s_dcache_inv", nop, SMEM, 0},
      {"s_dcache_wb", nop, SMEM, 0},
      {"s_dcache_inv_vol", nop, SMEM, 0},
      {"s_dcache_wb_vol", nop, SMEM, 0},
  };
}
