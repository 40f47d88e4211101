// Scalar instructions: SOP1, SOP2, SOPC, SOPK, SOPP and SMEM. CDNA3 ISA, chapters 4 and 5, sections 12.1 to 12.6.
#include "operands.h"

namespace {
u32 all(u32 unwritten) { return unwritten ? ~0u : 0; }
u64 all(u64 unwritten) { return unwritten ? ~0ull : 0; }
void salu_wrote(Wave& w, int r) {
  if (r == M0) w.salu_m0 = w.slot;
}
void put32(Wave& w, const Inst& i, u32 x, u32 und) {
  write_s(w, i, i.dst, x, und);
  salu_wrote(w, i.dst);
}
void put64s(Wave& w, const Inst& i, u64 x, u64 und) { write_s64(w, i, i.dst, x, und); }
void set_scc(Wave& w, bool x, u64 und) {
  w.scc = x;
  w.sccu = und ? ~0u : 0;
}
u32 source32(Wave& w, const Inst& i, int k, u32& und) { return scalar(w, i, i.src[k], 32, &und); }
u64 source64(Wave& w, const Inst& i, int k, u64& und) { return scalar64(w, i, i.src[k], false, &und); }

template <class F>
void one32(Wave& w, const Inst& i, bool scc, F f) {
  u32 u = 0, a = source32(w, i, 0, u), r = f(a);
  put32(w, i, r, all(u));
  if (scc) set_scc(w, r != 0, u);
}
template <class F>
void one64(Wave& w, const Inst& i, bool scc, F f) {
  u64 u = 0, a = source64(w, i, 0, u), r = f(a);
  put64s(w, i, r, all(u));
  if (scc) set_scc(w, r != 0, u);
}
// f sets `carry`, which becomes SCC where scc is true.
template <class F>
void two32(Wave& w, const Inst& i, bool scc, F f) {
  u32 u = 0, a = source32(w, i, 0, u), b = source32(w, i, 1, u);
  bool carry = false;
  u32 r = f(a, b, carry);
  put32(w, i, r, all(u));
  if (scc) set_scc(w, carry, u);
}
enum Logic { AND, OR, XOR, ANDN2, ORN2, NAND, NOR, XNOR };
template <class T>
T logic(Logic l, T a, T b, T ua, T ub, T& und) {
  T nb = l == ANDN2 || l == ORN2 ? ~b : b, r;
  switch (l) {
    case AND:
    case ANDN2:
    case NAND:
      r = a & nb;
      und = (ua | ub) & (ua | a) & (ub | nb);
      break;  // a known zero decides
    case OR:
    case ORN2:
    case NOR:
      r = a | nb;
      und = (ua | ub) & (ua | ~a) & (ub | ~nb);
      break;
    default: r = a ^ b; und = ua | ub;
  }
  return l == NAND || l == NOR || l == XNOR ? ~r : r;
}
template <Logic L>
void logic32(Wave& w, const Inst& i) {
  u32 ua = 0, ub = 0, u, a = source32(w, i, 0, ua), b = source32(w, i, 1, ub), r = logic<u32>(L, a, b, ua, ub, u);
  put32(w, i, r, u);
  set_scc(w, r != 0, u && !(r & ~u));
}
template <Logic L>
void logic64(Wave& w, const Inst& i) {
  u64 ua = 0, ub = 0, u, a = source64(w, i, 0, ua), b = source64(w, i, 1, ub), r = logic<u64>(L, a, b, ua, ub, u);
  put64s(w, i, r, u);
  set_scc(w, r != 0, u && !(r & ~u));
}
template <Logic L>
void saveexec(Wave& w, const Inst& i) {
  u64 ua = 0, u, a = source64(w, i, 0, ua), e = w.exec(), r = logic<u64>(L, a, e, ua, 0, u);
  put64s(w, i, e, 0);
  write_s64(w, i, EXEC, r, u);
  set_scc(w, r != 0, u);
}
void andn1_saveexec(Wave& w, const Inst& i, bool orn) {
  u64 ua = 0, a = source64(w, i, 0, ua), e = w.exec(), r = orn ? ~a | e : ~a & e;
  put64s(w, i, e, 0);
  write_s64(w, i, EXEC, r, ua);
  set_scc(w, r != 0, ua);
}
template <class F>
void compare(Wave& w, const Inst& i, F f) {
  u32 u = 0, a = source32(w, i, 0, u), b = source32(w, i, 1, u);
  set_scc(w, f(a, b), u);
}
template <class F>
void compare64(Wave& w, const Inst& i, F f) {
  u64 u = 0, a = source64(w, i, 0, u), b = source64(w, i, 1, u);
  set_scc(w, f(a, b), u);
}
template <class F>
void comparek(Wave& w, const Inst& i, F f) {
  touch_s(w, i, i.dst);
  set_scc(w, f(w.s[i.dst], i.imm), w.su[i.dst]);
}
template <class F>
void shift64(Wave& w, const Inst& i, F f) {
  u64 u = 0, a = source64(w, i, 0, u);
  u32 ub = 0, b = source32(w, i, 1, ub);
  u64 r = f(a, b & 63);
  put64s(w, i, r, all(u | ub));
  set_scc(w, r != 0, u | ub);
}
void cselect32(Wave& w, const Inst& i) {
  u32 ua = 0, ub = 0, a = source32(w, i, 0, ua), b = source32(w, i, 1, ub);
  put32(w, i, w.scc ? a : b, (w.scc ? ua : ub) | w.sccu);
}
void cselect64(Wave& w, const Inst& i) {
  u64 ua = 0, ub = 0, a = source64(w, i, 0, ua), b = source64(w, i, 1, ub);
  put64s(w, i, w.scc ? a : b, (w.scc ? ua : ub) | all((u64)w.sccu));
}
void jump(Wave& w, const Inst& i) { w.next = i.target; }
void branch(Wave& w, const Inst& i, bool taken, u64 und) {
  if (und) report(w, i, UNWRITTEN_REGISTER, -1, 0, 2);
  if (taken) w.next = i.target;
}
void to_address(Wave& w, const Inst& i, u64 address) {
  u64 at = (address - w.m->code_base) / 4;
  if (address < w.m->code_base || at >= w.m->at.size() || w.m->at[at] < 0) {
    report(w, i, OUT_OF_BOUNDS, -1, address, 4);
    w.state = FAULT;
    return;
  }
  w.next = w.m->at[at];
}
u64 after(Wave& w, const Inst& i) { return w.m->code_base + i.pc + i.size; }
u32 hardware(Wave& w, int id) { return id == 1 ? w.mode : 0; }
// A hardware register needs two wait states after it was set (CDNA3 ISA, section 4.5).
void setreg_hazard(Wave& w, const Inst& i) {
  u64 then = w.setreg[i.imm & 63];
  if (then && w.slot - then - 1 < 2) report(w, i, WAIT_STATES, -1, 2, -2);
}
void getreg(Wave& w, const Inst& i) {
  setreg_hazard(w, i);
  u32 size = (i.imm >> 11 & 31) + 1, offset = i.imm >> 6 & 31, x = hardware(w, i.imm & 63) >> offset;
  put32(w, i, size == 32 ? x : x & ((1u << size) - 1), 0);
}
void setreg(Wave& w, const Inst& i, u32 x) {
  u32 size = (i.imm >> 11 & 31) + 1, offset = i.imm >> 6 & 31, field = (size == 32 ? ~0u : (1u << size) - 1) << offset;
  setreg_hazard(w, i);
  if ((i.imm & 63) == 1) w.mode = (w.mode & ~field) | (x << offset & field);
  w.setreg[i.imm & 63] = w.slot;
}
void waitcnt(Wave& w, const Inst& i) {  // CDNA3 ISA, section 4.4: VM_CNT {15:14, 3:0}, LGKM_CNT 11:8
  wait(w, (i.imm & 15) | (i.imm >> 10 & 0x30), i.imm >> 8 & 15);
}
void barrier(Wave& w, const Inst&) { w.state = AT_BARRIER; }
void end(Wave& w, const Inst&) { w.state = DONE; }
void snop(Wave& w, const Inst& i) { w.slot += i.imm & 15; }
void trap(Wave& w, const Inst& i) {
  report(w, i, UNSUPPORTED, -1, i.imm, 2);
  w.state = FAULT;
}
void quiet(Wave&, const Inst&) {}
void bitset(Wave& w, const Inst& i, bool on) {
  u32 u = 0, a = source32(w, i, 0, u) & 31;
  touch_s(w, i, i.dst);
  put32(w, i, on ? w.s[i.dst] | 1u << a : w.s[i.dst] & ~(1u << a), w.su[i.dst] | all(u));
}
u32 extract(u32 a, u32 b, bool is_signed) {
  u32 offset = b & 31, width = b >> 16 & 127;
  if (!width) return 0;
  if (width > 32 - offset) width = 32 - offset;
  u32 r = a >> offset;
  if (width < 32) r &= (1u << width) - 1;
  return is_signed && width < 32 && (r >> (width - 1) & 1) ? r | ~0u << width : r;
}
u64 extract64(u64 a, u32 b, bool is_signed) {
  u32 offset = b & 63, width = b >> 16 & 127;
  if (!width) return 0;
  if (width > 64 - offset) width = 64 - offset;
  u64 r = a >> offset;
  if (width < 64) r &= (1ull << width) - 1;
  return is_signed && width < 64 && (r >> (width - 1) & 1) ? r | ~0ull << width : r;
}
u32 brev(u32 x) {
  u32 r = 0;
  for (int k = 0; k < 32; k++) r |= (x >> k & 1) << (31 - k);
  return r;
}
u64 brev64(u64 x) { return (u64)brev((u32)x) << 32 | brev(x >> 32); }
u32 wqm(u32 x) {
  u32 r = 0;
  for (int k = 0; k < 32; k += 4)
    if (x >> k & 15) r |= 15u << k;
  return r;
}

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
// GPR indexing: M0[7:0] is the index, M0[15:12] which operands it is added to (bits: the three sources, the
// destination).
void put_m0(Wave& w, u32 mask, u32 value, u32 unwritten) {
  w.s[M0] = (w.s[M0] & ~mask) | (value & mask);
  w.su[M0] = (w.su[M0] & ~mask) | (unwritten ? mask : 0);
  salu_wrote(w, M0);
}
void gpr_index_value(Wave& w, const Inst& i) {
  u32 u = 0, a = source32(w, i, 0, u);
  put_m0(w, 0xff, a, u);
}
void gpr_index_mode(Wave& w, const Inst& i) { put_m0(w, 0xf000, (u32)i.imm << 12, 0); }
void gpr_index_on(Wave& w, const Inst& i) {
  gpr_index_value(w, i);
  put_m0(w, 0xf000, (u32)i.src[1] << 12, 0);
  w.indexes = true;
}  // the second operand is a number
void gpr_index_off(Wave& w, const Inst&) { w.indexes = false; }
// While set, vector instructions of every kind are passed over (CDNA3 ISA, section 4.2, VSKIP).
void setvskip(Wave& w, const Inst& i) {
  u32 u = 0, a = source32(w, i, 0, u), b = source32(w, i, 1, u);
  if (u) report(w, i, UNWRITTEN_REGISTER, -1, i.src[0], 2);
  w.skips = a >> (b & 31) & 1;
}
}  // namespace

#define S(name, kind, ...) {name, [](Wave& w, const Inst& i) { __VA_ARGS__; }, kind, 0}
#define K32(name, scc, expr)                                        \
  S(name, SALU, two32(w, i, scc, [](u32 a, u32 b, bool& c) -> u32 { \
      (void)c;                                                      \
      return expr;                                                  \
    }))
#define L(base, l)                                                                  \
  {"s_" base "_b32", logic32<l>, SALU, 0}, {"s_" base "_b64", logic64<l>, SALU, 0}, \
      {"s_" base "_saveexec_b64", saveexec<l>, SALU, 0}
#define CMP(name, T, op) S("s_cmp_" name, SALU, compare(w, i, [](u32 a, u32 b) { return (T)a op(T) b; }))
#define CMPK(name, T, V, op) S("s_cmpk_" name, SALU, comparek(w, i, [](u32 a, i32 b) { return (T)a op(T)(V) b; }))
#define LOAD(n, c) \
  S("s_load_dword" n, SMEM, load_scalars(w, i, c, false)), S("s_buffer_load_dword" n, SMEM, load_scalars(w, i, c, true))

std::vector<Op> scalar_ops() {
  return {
    S("s_mov_b32", SALU, u32 u = 0, a = source32(w, i, 0, u); put32(w, i, a, u)),
        S("s_mov_b64", SALU, u64 u = 0, a = source64(w, i, 0, u); put64s(w, i, a, u)),
        S("s_cmov_b32", SALU, u32 u = 0, a = source32(w, i, 0, u); if (w.scc) put32(w, i, a, u)),
        S("s_cmov_b64", SALU, u64 u = 0, a = source64(w, i, 0, u); if (w.scc) put64s(w, i, a, u)),
        S("s_movk_i32", SALU, put32(w, i, (u32)i.imm, 0)),
        S("s_cmovk_i32", SALU, if (w.scc) put32(w, i, (u32)i.imm, 0)),
        S("s_not_b32", SALU, one32(w, i, true, [](u32 a) { return ~a; })),
        S("s_not_b64", SALU, u64 u = 0, a = source64(w, i, 0, u); put64s(w, i, ~a, u); set_scc(w, ~a != 0, u)),
        S("s_wqm_b32", SALU, one32(w, i, true, wqm)),
        S("s_wqm_b64", SALU, one64(w, i, true, [](u64 a) { return (u64)wqm(a >> 32) << 32 | wqm((u32)a); })),
        S("s_brev_b32", SALU, one32(w, i, false, brev)), S("s_brev_b64", SALU, one64(w, i, false, brev64)),
        S("s_bcnt0_i32_b32", SALU, one32(w, i, true, [](u32 a) { return (u32)__builtin_popcount(~a); })),
        S("s_bcnt1_i32_b32", SALU, one32(w, i, true, [](u32 a) { return (u32)__builtin_popcount(a); })),
        S("s_bcnt0_i32_b64", SALU, u64 u = 0, a = source64(w, i, 0, u); u32 r = __builtin_popcountll(~a);
          put32(w, i, r, u ? ~0u : 0); set_scc(w, r, u)),
        S("s_bcnt1_i32_b64", SALU, u64 u = 0, a = source64(w, i, 0, u); u32 r = __builtin_popcountll(a);
          put32(w, i, r, u ? ~0u : 0); set_scc(w, r, u)),
        S("s_ff0_i32_b32", SALU, one32(w, i, false, [](u32 a) { return ~a ? (u32)__builtin_ctz(~a) : ~0u; })),
        S("s_ff1_i32_b32", SALU, one32(w, i, false, [](u32 a) { return a ? (u32)__builtin_ctz(a) : ~0u; })),
        S("s_ff0_i32_b64", SALU, u64 u = 0, a = source64(w, i, 0, u);
          put32(w, i, ~a ? (u32)__builtin_ctzll(~a) : ~0u, u ? ~0u : 0)),
        S("s_ff1_i32_b64", SALU, u64 u = 0, a = source64(w, i, 0, u);
          put32(w, i, a ? (u32)__builtin_ctzll(a) : ~0u, u ? ~0u : 0)),
        S("s_flbit_i32_b32", SALU, one32(w, i, false, [](u32 a) { return a ? (u32)__builtin_clz(a) : ~0u; })),
        S("s_flbit_i32", SALU,
          one32(w, i, false, [](u32 a) { return a == 0 || a == ~0u ? ~0u : (u32)__builtin_clz((i32)a < 0 ? ~a : a); })),
        S("s_flbit_i32_b64", SALU, u64 u = 0, a = source64(w, i, 0, u);
          put32(w, i, a ? (u32)__builtin_clzll(a) : ~0u, u ? ~0u : 0)),
        S("s_sext_i32_i8", SALU, one32(w, i, false, [](u32 a) { return (u32)(i32)(i8)a; })),
        S("s_sext_i32_i16", SALU, one32(w, i, false, [](u32 a) { return (u32)(i32)(i16)a; })),
        S("s_bitset0_b32", SALU, bitset(w, i, false)), S("s_bitset1_b32", SALU, bitset(w, i, true)),
        S("s_abs_i32", SALU, one32(w, i, true, [](u32 a) { return (i32)a < 0 ? 0u - a : a; })),
        S("s_getpc_b64", SALU, put64s(w, i, after(w, i), 0)),
        S("s_setpc_b64", BRANCH, u64 u = 0, a = source64(w, i, 0, u); to_address(w, i, a)),
        S("s_swappc_b64", BRANCH, u64 u = 0, a = source64(w, i, 0, u); put64s(w, i, after(w, i), 0);
          to_address(w, i, a)),
        S("s_call_b64", BRANCH, put64s(w, i, after(w, i), 0); w.next = i.target), L("and", AND), L("or", OR),
        L("xor", XOR), L("andn2", ANDN2), L("orn2", ORN2), L("nand", NAND), L("nor", NOR), L("xnor", XNOR),
        S("s_andn1_saveexec_b64", SALU, andn1_saveexec(w, i, false)),
        S("s_orn1_saveexec_b64", SALU, andn1_saveexec(w, i, true)),
        K32("s_add_u32", true, (c = (u64)a + b >> 32, a + b)), K32("s_sub_u32", true, (c = b > a, a - b)),
        K32("s_add_i32", true, (c = ((~(a ^ b) & (a ^ (a + b))) >> 31), a + b)),
        K32("s_sub_i32", true, (c = (((a ^ b) & (a ^ (a - b))) >> 31), a - b)),
        S("s_addc_u32", SALU, u32 u = w.sccu, a = source32(w, i, 0, u), b = source32(w, i, 1, u);
          u64 r = (u64)a + b + w.scc; put32(w, i, (u32)r, all(u)); set_scc(w, r >> 32, u)),
        S("s_subb_u32", SALU, u32 u = w.sccu, a = source32(w, i, 0, u), b = source32(w, i, 1, u);
          u64 r = (u64)a - b - w.scc; put32(w, i, (u32)r, all(u)); set_scc(w, r >> 32 & 1, u)),
        K32("s_min_i32", true, (c = (i32)a < (i32)b, c ? a : b)), K32("s_min_u32", true, (c = a < b, c ? a : b)),
        K32("s_max_i32", true, (c = (i32)a > (i32)b, c ? a : b)), K32("s_max_u32", true, (c = a > b, c ? a : b)),
        {"s_cselect_b32", cselect32, SALU, 0}, {"s_cselect_b64", cselect64, SALU, 0},
        K32("s_lshl_b32", true, (c = (a << (b & 31)) != 0, a << (b & 31))),
        K32("s_lshr_b32", true, (c = (a >> (b & 31)) != 0, a >> (b & 31))),
        K32("s_ashr_i32", true, (c = ((i32)a >> (b & 31)) != 0, (u32)((i32)a >> (b & 31)))),
        S("s_lshl_b64", SALU, shift64(w, i, [](u64 a, u32 b) { return a << b; })),
        S("s_lshr_b64", SALU, shift64(w, i, [](u64 a, u32 b) { return a >> b; })),
        S("s_ashr_i64", SALU, shift64(w, i, [](u64 a, u32 b) { return (u64)((i64)a >> b); })),
        K32("s_bfm_b32", false, ((1u << (a & 31)) - 1) << (b & 31)),
        S("s_bfm_b64", SALU, u32 u = 0, a = source32(w, i, 0, u), b = source32(w, i, 1, u);
          put64s(w, i, ((1ull << (a & 63)) - 1) << (b & 63), u ? ~0ull : 0)),
        K32("s_mul_i32", false, a * b), K32("s_mul_hi_u32", false, (u32)((u64)a * b >> 32)),
        K32("s_mul_hi_i32", false, (u32)((i64)(i32)a * (i32)b >> 32)),
        K32("s_bfe_u32", true, (c = extract(a, b, false) != 0, extract(a, b, false))),
        K32("s_bfe_i32", true, (c = extract(a, b, true) != 0, extract(a, b, true))),
        S("s_bfe_u64", SALU, u64 u = 0, a = source64(w, i, 0, u); u32 ub = 0, b = source32(w, i, 1, ub);
          u64 r = extract64(a, b, false); put64s(w, i, r, all(u | ub)); set_scc(w, r != 0, u | ub)),
        S("s_bfe_i64", SALU, u64 u = 0, a = source64(w, i, 0, u); u32 ub = 0, b = source32(w, i, 1, ub);
          u64 r = extract64(a, b, true); put64s(w, i, r, all(u | ub)); set_scc(w, r != 0, u | ub)),
        K32("s_absdiff_i32", true, (c = a != b, (i32)a > (i32)b ? a - b : b - a)),
        K32("s_lshl1_add_u32", true, (c = ((u64)a << 1) + b >> 32, (a << 1) + b)),
        K32("s_lshl2_add_u32", true, (c = ((u64)a << 2) + b >> 32, (a << 2) + b)),
        K32("s_lshl3_add_u32", true, (c = ((u64)a << 3) + b >> 32, (a << 3) + b)),
        K32("s_lshl4_add_u32", true, (c = ((u64)a << 4) + b >> 32, (a << 4) + b)),
        K32("s_pack_ll_b32_b16", false, (a & 0xffff) | b << 16),
        K32("s_pack_lh_b32_b16", false, (a & 0xffff) | (b & 0xffff0000)),
        K32("s_pack_hh_b32_b16", false, a >> 16 | (b & 0xffff0000)),
        S("s_addk_i32", SALU, touch_s(w, i, i.dst); u32 a = w.s[i.dst], b = (u32)i.imm, u = w.su[i.dst];
          put32(w, i, a + b, all(u)); set_scc(w, (~(a ^ b) & (a ^ (a + b))) >> 31, u)),
        S("s_mulk_i32", SALU, touch_s(w, i, i.dst); put32(w, i, w.s[i.dst] * (u32)i.imm, all(w.su[i.dst]))),
        CMP("eq_i32", i32, ==), CMP("lg_i32", i32, !=), CMP("gt_i32", i32, >), CMP("ge_i32", i32, >=),
        CMP("lt_i32", i32, <), CMP("le_i32", i32, <=), CMP("eq_u32", u32, ==), CMP("lg_u32", u32, !=),
        CMP("gt_u32", u32, >), CMP("ge_u32", u32, >=), CMP("lt_u32", u32, <), CMP("le_u32", u32, <=),
        S("s_cmp_eq_u64", SALU, compare64(w, i, [](u64 a, u64 b) { return a == b; })),
        S("s_cmp_lg_u64", SALU, compare64(w, i, [](u64 a, u64 b) { return a != b; })),
        S("s_bitcmp0_b32", SALU, compare(w, i, [](u32 a, u32 b) { return !(a >> (b & 31) & 1); })),
        S("s_bitcmp1_b32", SALU, compare(w, i, [](u32 a, u32 b) { return (bool)(a >> (b & 31) & 1); })),
        CMPK("eq_i32", i32, i32, ==), CMPK("lg_i32", i32, i32, !=), CMPK("gt_i32", i32, i32, >),
        CMPK("ge_i32", i32, i32, >=), CMPK("lt_i32", i32, i32, <), CMPK("le_i32", i32, i32, <=),
        CMPK("eq_u32", u32, u16, ==), CMPK("lg_u32", u32, u16, !=), CMPK("gt_u32", u32, u16, >),
        CMPK("ge_u32", u32, u16, >=), CMPK("lt_u32", u32, u16, <), CMPK("le_u32", u32, u16, <=),
        S("s_getreg_b32", SALU, getreg(w, i)), S("s_setreg_b32", SALU, touch_s(w, i, i.dst); setreg(w, i, w.s[i.dst])),
        S("s_setreg_imm32_b32", SALU, setreg(w, i, (u32)i.literal)), {"s_branch", jump, BRANCH, 0},
        S("s_cbranch_scc0", BRANCH, branch(w, i, !w.scc, w.sccu)),
        S("s_cbranch_scc1", BRANCH, branch(w, i, w.scc, w.sccu)),
        S("s_cbranch_vccz", BRANCH, touch_s(w, i, VCC); touch_s(w, i, VCC + 1);
          branch(w, i, w.pair(VCC) == 0, w.su[VCC] | w.su[VCC + 1])),
        S("s_cbranch_vccnz", BRANCH, touch_s(w, i, VCC); touch_s(w, i, VCC + 1);
          branch(w, i, w.pair(VCC) != 0, w.su[VCC] | w.su[VCC + 1])),
        S("s_cbranch_execz", BRANCH, branch(w, i, w.exec() == 0, 0)),
        S("s_cbranch_execnz", BRANCH, branch(w, i, w.exec() != 0, 0)), {"s_waitcnt", waitcnt, SPECIAL, 0},
        {"s_barrier", barrier, SPECIAL, 0}, {"s_endpgm", end, SPECIAL, 0}, {"s_nop", snop, SPECIAL, 0},
        {"s_trap", trap, SPECIAL, 0}, {"s_sleep", quiet, SPECIAL, 0}, {"s_setprio", quiet, SPECIAL, 0},
        {"s_icache_inv", quiet, SPECIAL, 0}, {"s_sendmsg", quiet, SPECIAL, 0}, {"s_sethalt", quiet, SPECIAL, 0},
        {"s_ttracedata", quiet, SPECIAL, 0}, {"s_inst_prefetch", quiet, SPECIAL, 0},
        {"s_set_gpr_idx_off", gpr_index_off, SPECIAL, 0}, {"s_set_gpr_idx_on", gpr_index_on, SPECIAL, 0},
        {"s_set_gpr_idx_idx", gpr_index_value, SPECIAL, 0}, {"s_set_gpr_idx_mode", gpr_index_mode, SPECIAL, 0},
        {"s_setvskip", setvskip, SPECIAL, 0}, {"s_code_end", trap, SPECIAL, 0}, LOAD("", 1), LOAD("x2", 2),
        LOAD("x4", 4), LOAD("x8", 8), LOAD("x16", 16), {"s_memtime", memtime, SMEM, 0},
        {"s_memrealtime", memtime, SMEM, 0}, {"s_dcache_inv", quiet, SMEM, 0}, {"s_dcache_wb", quiet, SMEM, 0},
        {"s_dcache_inv_vol", quiet, SMEM, 0}, {"s_dcache_wb_vol", quiet, SMEM, 0},
  };
}
