// Control: branches, waits and barriers, hardware registers, GPR indexing. CDNA3 ISA, chapter 4, sections 12.3 to 12.5.
#include "scalar.h"

namespace {
void jump(Wave& w, const Inst& i) { w.next = i.target; }
void branch(Wave& w, const Inst& i, bool taken, u64 und) {
  if (und) report(w, i, UNWRITTEN_REGISTER, -1, 0, 2);
  if (taken) w.next = i.target;
}
void branch_vcc(Wave& w, const Inst& i, bool nonzero) {
  touch_s(w, i, VCC);
  touch_s(w, i, VCC + 1);
  branch(w, i, (w.pair(VCC) != 0) == nonzero, w.su[VCC] | w.su[VCC + 1]);
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
u64 next_address(const Wave& w, const Inst& i) { return w.m->code_base + i.pc + i.size; }
void setpc(Wave& w, const Inst& i) {
  u64 u = 0, a = source64(w, i, 0, u);
  to_address(w, i, a);
}
void swappc(Wave& w, const Inst& i) {
  u64 u = 0, a = source64(w, i, 0, u);
  put64s(w, i, next_address(w, i), 0);
  to_address(w, i, a);
}
void call(Wave& w, const Inst& i) {
  put64s(w, i, next_address(w, i), 0);
  w.next = i.target;
}
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
void setreg_of(Wave& w, const Inst& i) {
  touch_s(w, i, i.dst);
  setreg(w, i, w.s[i.dst]);
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
void nop(Wave&, const Inst&) {}
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
  put_m0(w, 0xf000, (u32)i.src[1] << 12, 0);  // the second operand is a number
  w.indexes = true;
}
void gpr_index_off(Wave& w, const Inst&) { w.indexes = false; }
// While set, vector instructions of every kind are passed over (CDNA3 ISA, section 4.2, VSKIP).
void setvskip(Wave& w, const Inst& i) {
  u32 u = 0, a = source32(w, i, 0, u), b = source32(w, i, 1, u);
  if (u) report(w, i, UNWRITTEN_REGISTER, -1, i.src[0], 2);
  w.skips = a >> (b & 31) & 1;
}
}  // namespace

std::vector<Op> control_ops() {
  return {
      S("s_getpc_b64", SALU, put64s(w, i, next_address(w, i), 0)),
      {"s_setpc_b64", setpc, BRANCH, 0},
      {"s_swappc_b64", swappc, BRANCH, 0},
      {"s_call_b64", call, BRANCH, 0},
      S("s_getreg_b32", SALU, getreg(w, i)),
      {"s_setreg_b32", setreg_of, SALU, 0},
      S("s_setreg_imm32_b32", SALU, setreg(w, i, (u32)i.literal)),
      {"s_branch", jump, BRANCH, 0},
      S("s_cbranch_scc0", BRANCH, branch(w, i, !w.scc, w.sccu)),
      S("s_cbranch_scc1", BRANCH, branch(w, i, w.scc, w.sccu)),
      S("s_cbranch_vccz", BRANCH, branch_vcc(w, i, false)),
      S("s_cbranch_vccnz", BRANCH, branch_vcc(w, i, true)),
      S("s_cbranch_execz", BRANCH, branch(w, i, w.exec() == 0, 0)),
      S("s_cbranch_execnz", BRANCH, branch(w, i, w.exec() != 0, 0)),
      {"s_waitcnt", waitcnt, SPECIAL, 0},
      {"s_barrier", barrier, SPECIAL, 0},
      {"s_endpgm", end, SPECIAL, 0},
      {"s_nop", snop, SPECIAL, 0},
      {"s_trap", trap, SPECIAL, 0},
      {"s_sleep", nop, SPECIAL, 0},
      {"s_setprio", nop, SPECIAL, 0},
      {"s_icache_inv", nop, SPECIAL, 0},
      {"s_sendmsg", nop, SPECIAL, 0},
      {"s_sethalt", nop, SPECIAL, 0},
      {"s_ttracedata", nop, SPECIAL, 0},
      {"s_inst_prefetch", nop, SPECIAL, 0},
      {"s_set_gpr_idx_off", gpr_index_off, SPECIAL, 0},
      {"s_set_gpr_idx_on", gpr_index_on, SPECIAL, 0},
      {"s_set_gpr_idx_idx", gpr_index_value, SPECIAL, 0},
      {"s_set_gpr_idx_mode", gpr_index_mode, SPECIAL, 0},
      {"s_setvskip", setvskip, SPECIAL, 0},
      {"s_code_end", trap, SPECIAL, 0},
  };
}
