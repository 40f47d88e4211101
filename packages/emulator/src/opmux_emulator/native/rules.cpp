// The judgements: outstanding results, wait states, resources, and how each finding is recorded.
#include "machine.h"
#include <algorithm>
#include <string>

void report(Wave& w, const Inst& i, Rule rule, int lane, u64 address, int detail) {
  Machine& m = *w.m;
  if (!(m.enabled >> rule & 1) && rule != UNSUPPORTED && rule != ENDLESS) return;
  size_t index = &i - m.code.data();
  if (index >= m.code.size()) index = w.pc;
  u8& seen = m.seen[index * RULES + rule];
  if (seen) {
    m.suppressed++;
    return;
  }
  seen = 1;
  if (m.findings.size() < m.max_findings)
    m.findings.push_back({rule, (i32)index, (i32)w.index, (i32)w.g->id, lane, detail, address});
  else m.suppressed++;
  if (rule == UNSUPPORTED || rule == ENDLESS) m.stop = true;
}

namespace {
bool pending(Wave& w, Counter c, u32 seq) { return seq > w.done[c]; }
// Wait states that lie between a write in slot `then` and now: the instruction right after has none.
u64 between(const Wave& w, u64 then) { return w.slot - then - 1; }
void require(Wave& w, const Inst& i, u64 then, u32 states, int detail) {
  if (then && between(w, then) < states) report(w, i, WAIT_STATES, -1, states, detail);
}
}  // namespace

constexpr u32 NOT_YET = 0x7fe5a5a5;  // what a register holds until a late load arrives
void outstanding_v(Wave& w, int code, Counter c) {
  int r = code - VGPR;
  w.vcounter[r] = c;
  w.vseq[r] = w.issued[c];
  w.vflag[r] |= 1;
  if (!w.m->late) return;
  w.arrivals.push_back({r, c, w.issued[c], w.exec(), {}});
  Arrival& a = w.arrivals.back();
  memcpy(a.value, w.v[r], sizeof a.value);
  for (int l = 0; l < LANES; l++)
    if (a.lanes >> l & 1) w.v[r][l] = NOT_YET;
}
void outstanding_s(Wave& w, int r) {
  if (r < 0 || r >= VGPR) return;
  w.scounter[r] = SMEM_OP;
  w.sseq[r] = w.issued[SMEM_OP];
  w.sflag[r] |= 1;
  if (!w.m->late) return;
  w.arrivals.push_back({-1 - r, SMEM_OP, w.issued[SMEM_OP], 0, {}});
  w.arrivals.back().value[0] = w.s[r];
  w.s[r] = NOT_YET;
}
void arrive(Wave& w) {  // in order of issue, so that the last load into a register wins
  size_t kept = 0;
  for (Arrival& a : w.arrivals) {
    if (a.seq > w.done[a.counter]) {
      w.arrivals[kept++] = a;
      continue;
    }
    if (a.reg < 0) w.s[-1 - a.reg] = a.value[0];
    else
      for (int l = 0; l < LANES; l++)
        if (a.lanes >> l & 1) w.v[a.reg][l] = a.value[l];
  }
  w.arrivals.resize(kept);
}

void settle(Wave& w, int code) {
  size_t kept = 0;
  for (Arrival& a : w.arrivals) {
    if (a.reg != code - VGPR) {
      w.arrivals[kept++] = a;
      continue;
    }
    for (int l = 0; l < LANES; l++)
      if (a.lanes >> l & 1) w.v[a.reg][l] = a.value[l];
  }
  w.arrivals.resize(kept);
}

u8 traits_of(const char* text) {
  std::string name = text;
  u8 t = 0;
  if (name.rfind("v_dot", 0) == 0) t |= IS_DOT;
  if (name == "v_readlane_b32" || name == "v_readfirstlane_b32") t |= LANE_READ;
  if (name == "v_readlane_b32" || name == "v_writelane_b32") t |= LANE_SELECT;
  if (name.rfind("v_div_fmas", 0) == 0) t |= DIV_FMAS;
  if (name == "v_fma_f64" || name == "v_fmac_f64") t |= FMA64;
  if (name.rfind("v_permlane", 0) == 0) t |= LANE_SWAP;
  for (const char* start : {"v_cvt_scale", "v_cvt_pk_fp8", "v_cvt_pk_bf8", "v_cvt_sr_fp8", "v_cvt_sr_bf8"})
    if (name.rfind(start, 0) == 0) t |= CVT_SCALE;
  if (name == "s_sendmsg" || name == "s_ttracedata") t |= READS_M0;
  return t;
}

// Wait states that an instruction needs after the matrix instruction that wrote register r (CDNA3 ISA, section 7.5
// "Dependency resolution"; CDNA2 ISA, section 7.4). One-pass counts: of the instruction that wrote.
u32 after_matrix(Wave& w, const Inst& i, int r, const Op& op, bool memory, bool writes) {
  if (op.kind == MFMA && writes) return 0;  // matrix instructions finish in order
  u32 passes = w.mfma_passes[r], kind = w.mfma_kind[r];
  bool gfx940 = w.m->arch != GFX90A, is_double = i.atype == 10;
  // The whole result as SrcC, whatever the destination. So in LLVM's GCNHazardRecognizer too (checkMAIHazards90A),
  // which looks at what a matrix instruction reads alone.
  if (op.kind == MFMA && w.mfma_first[r] == i.src[2])
    return kind == DGEMM ? (passes <= 4 && is_double && i.m == 4 ? 4 : 0) : gfx940 && passes == 2 ? 2 : 0;
  u32 late = w.m->arch == GFX950 && passes != 2;  // gfx950 needs one more after the instructions of the XDL unit
  u32 read = !gfx940 ? (passes <= 2 ? 5 : passes <= 8 ? 11 : 19) : kind == SGEMM ? passes + 2 : passes + 3 + late;
  u32 of_double = passes <= 4 ? 6 : passes <= 8 ? 11 : 19;
  if (op.kind == VALU || op.kind == TRANS || (memory && writes)) return kind == DGEMM ? of_double : read;
  if (memory) return kind == DGEMM ? (passes <= 4 ? 9 : 18) : read;
  if (op.kind != MFMA) return 0;
  int code = r + VGPR, c = i.src[2], registers = i.m * i.m * i.blocks / 64 * (i.atype == 10 ? 2 : 1);
  bool as_ab = false, by_xdl = !is_double && (!gfx940 || i.atype != 0);
  for (int k = 0; k < 2; k++)
    as_ab |= code >= i.src[k] && code < i.src[k] + 8 && i.src[k] >= VGPR &&
             !(c >= VGPR && code >= c && code < c + registers);
  if (as_ab) return kind == DGEMM ? of_double : read;
  if (kind == DGEMM) return by_xdl ? 0 : passes <= 4 ? 4 : passes <= 8 ? 9 : 17;
  if (!gfx940) return (passes <= 2 ? 2 : passes <= 8 ? 8 : 16) + is_double;
  if (kind == SGEMM) return by_xdl ? 0 : passes;
  return passes + 1 + (by_xdl ? w.m->arch == GFX950 : late);
}

// Flags of a vector register: 1 outstanding, 2 written in part, 4 stored from, 8 written by a matrix instruction, 16 by
// a transcendental one, 32 by a dot product, 64 the addend of a matrix instruction.
void slow_read_v(Wave& w, const Inst& i, int r) {
  if (w.vflag[r] & 1) {
    if (pending(w, w.vcounter[r], w.vseq[r])) {
      report(w, i, OUTSTANDING, -1, VGPR + r, w.vcounter[r]);
    } else w.vflag[r] &= ~1;
  }
  const Op& op = (*w.m->ops)[i.op];
  bool gfx940 = w.m->arch != GFX90A;
  bool memory = op.kind == VMEM || op.kind == DSOP;
  if (w.vflag[r] & 8) {
    if (between(w, w.mfma_v[r]) > 20) w.vflag[r] &= ~8;
    else {
      u32 need = after_matrix(w, i, r, op, memory, false);
      if (between(w, w.mfma_v[r]) < need) report(w, i, WAIT_STATES, -1, need, VGPR + r);
    }
  }
  // CDNA3 ISA, section 4.5: a transcendental result needs one wait state before a VALU that is none.
  if (w.vflag[r] & 16 && gfx940) {
    if ((op.kind == VALU || op.kind == MFMA) && between(w, w.trans_v[r]) < 1 && w.valu_v[r] <= w.trans_v[r])
      report(w, i, WAIT_STATES, -1, 1, VGPR + r);
    if (between(w, w.trans_v[r]) > 2) w.vflag[r] &= ~16;
  }
  if (w.vflag[r] & 2 && gfx940) {  // a result written through op_sel or SDWA's dst_sel: one wait state before a VALU
    if (between(w, w.part_v[r]) < 1 && (op.kind == VALU || op.kind == TRANS || op.kind == MFMA))
      report(w, i, WAIT_STATES, -1, 1, VGPR + r);
    if (between(w, w.part_v[r]) > 2) w.vflag[r] &= ~2;
  }
  if (w.vflag[r] & 32) {  // a dot product's result: three wait states, but none as the addend of the same instruction
    bool as_factor = i.src[0] == VGPR + r || i.src[1] == VGPR + r;
    if (op.kind != MFMA && (w.dot_op[r] != i.op || as_factor)) require(w, i, w.dot_v[r], 3, VGPR + r);
    if (between(w, w.dot_v[r]) > 3) w.vflag[r] &= ~32;
  }
}
void slow_write_v(Wave& w, const Inst& i, int r) {
  const Op& op = (*w.m->ops)[i.op];
  bool gfx940 = w.m->arch != GFX90A, memory = op.kind == VMEM || op.kind == DSOP;
  if (w.vflag[r] & 1) {
    // Loads of one counter return in order, so another load may follow into the same register.
    bool same = (op.kind == VMEM && w.vcounter[r] == VM) || (op.kind == DSOP && w.vcounter[r] == LDS_OP);
    if (pending(w, w.vcounter[r], w.vseq[r]) && !same) {
      report(w, i, OUTSTANDING, -1, VGPR + r, w.vcounter[r] | 16);
      w.vflag[r] &= ~1;
    } else if (!same) w.vflag[r] &= ~1;
  }
  if (w.vflag[r] & 4) {  // section 4.5: a store of more than 64 bits reads its data for one or two slots
    if (op.kind == VALU || op.kind == TRANS || op.kind == MFMA) require(w, i, w.store_v[r], gfx940 ? 2 : 1, VGPR + r);
    if (between(w, w.store_v[r]) > 2) w.vflag[r] &= ~4;
  }
  if (w.vflag[r] & 8) {
    u32 need = after_matrix(w, i, r, op, memory, true);
    if (between(w, w.mfma_v[r]) < need) report(w, i, WAIT_STATES, -1, need, VGPR + r);
    if (op.kind != MFMA) w.vflag[r] &= ~8;
  }
  if (w.vflag[r] & 32) {
    if (op.kind != MFMA && w.dot_op[r] != i.op) require(w, i, w.dot_v[r], 3, VGPR + r);
    w.vflag[r] &= ~32;
  }
  if (w.vflag[r] & 64) {  // a matrix instruction may still be reading its addend there: all passes but one
    if (op.kind != MFMA) require(w, i, w.addend_v[r], w.addend_passes[r] - 1u, VGPR + r);
    if (between(w, w.addend_v[r]) > 16) w.vflag[r] &= ~64;
  }
}
void slow_read_s(Wave& w, const Inst& i, int r) {
  if (w.sflag[r] & 1) {
    if (pending(w, SMEM_OP, w.sseq[r])) report(w, i, OUTSTANDING, -1, r, SMEM_OP);
    else w.sflag[r] &= ~1;
  }
  if (w.sflag[r] & 2) {  // written by a VALU
    const Op& op = (*w.m->ops)[i.op];
    bool gfx940 = w.m->arch != GFX90A;
    u32 need = 0;
    if (op.kind == VMEM) need = 5;
    else if (op.kind == VALU || op.kind == TRANS) {
      if (gfx940) need = 2;
      if (r == i.src[1] && op.traits & LANE_SELECT) need = 4;
      if ((r == VCC || r == VCC + 1) && op.traits & DIV_FMAS) need = 4;
    }
    if (between(w, w.valu_s[r]) < need) report(w, i, WAIT_STATES, -1, need, r);
    if (between(w, w.valu_s[r]) > 5) w.sflag[r] &= ~2;
  }
}
void slow_write_s(Wave& w, const Inst& i, int r) {
  if (w.sflag[r] & 1) {
    bool same = (*w.m->ops)[i.op].kind == SMEM;
    if (!same && pending(w, SMEM_OP, w.sseq[r])) report(w, i, OUTSTANDING, -1, r, SMEM_OP | 16);
    w.sflag[r] &= ~1;
  }
  if ((*w.m->ops)[i.op].kind != VALU) w.sflag[r] &= ~2;
}
void range_fault(Wave& w, const Inst& i, int r, bool vector) {
  report(w, i, RESOURCES, -1, vector ? VGPR + r : r, vector ? w.m->vgprs : w.m->sgprs);
}

// Hazards that depend on the instruction's kind rather than on one of its registers (CDNA3 ISA, section 4.5).
void before(Wave& w, const Inst& i) {
  const Op& op = (*w.m->ops)[i.op];
  if (i.variant == DPP16) {
    require(w, i, w.valu_exec, 5, EXEC);
    if (i.src[0] >= VGPR) require(w, i, w.valu_v[i.src[0] - VGPR], 2, i.src[0]);
  }
  if ((i.flags & TO_LDS) && op.kind == VMEM) require(w, i, w.salu_m0, 1, M0);
  if (op.kind == MFMA) require(w, i, w.valu_exec, 4, EXEC);
  bool gfx940 = w.m->arch != GFX90A;
  if (gfx940 && op.traits & LANE_READ && i.src[0] >= VGPR) require(w, i, w.valu_v[i.src[0] - VGPR], 1, i.src[0]);
  if (gfx940 && op.traits & (LANE_READ | LANE_SELECT)) require(w, i, w.valu_exec, 4, EXEC);
  if (op.traits & FMA64) require(w, i, w.double_mfma, 2, i.dst);
  if (op.traits & READS_M0) require(w, i, w.salu_m0, 1, M0);
  if (op.traits & LANE_SWAP) {
    require(w, i, w.valu_exec, 4, EXEC);
    require(w, i, w.valu_v[i.dst - VGPR], 2, i.dst);
    require(w, i, w.valu_v[i.src[0] - VGPR], 2, i.src[0]);
  }
  // A double-precision matrix instruction between hides a VALU's result from a memory instruction on gfx90a.
  if (!gfx940 && (op.kind == VMEM || op.kind == DSOP) && w.double_mfma)
    for (int k = 0; k < 2; k++)
      if (i.src[k] >= VGPR && w.double_mfma > w.valu_v[i.src[k] - VGPR])
        require(w, i, w.valu_v[i.src[k] - VGPR], 2, i.src[k]);
}
void after(Wave& w, const Inst& i, const Op& op) {
  if (i.dst < VGPR) return;
  int r = i.dst - VGPR;
  if (op.kind == TRANS) {
    w.trans_v[r] = w.slot;
    w.vflag[r] |= 16;
  }
  if (op.traits & IS_DOT) {
    w.dot_v[r] = w.slot;
    w.dot_op[r] = i.op;
    w.vflag[r] |= 32;
  }
  // Of the conversions to 8 bits those that op_sel puts into an upper byte or half count as a part, to 4 bits all.
  if (op.traits & CVT_SCALE && (i.opsel & 12 || strstr(op.name, "_fp4_"))) {
    w.part_v[r] = w.slot;
    w.vflag[r] |= 2;
  }
}
void check_flag_source(Wave& w, const Inst& i, bool exec) {
  Class kind = (*w.m->ops)[i.op].kind;
  if (kind != VALU && kind != TRANS) return;
  if (exec) require(w, i, w.valu_exec, 5, EXEC);
  else
    for (int k = 0; k < 2; k++) require(w, i, w.valu_s[VCC + k], 5, VCC + k);
}
void after_mfma(Wave& w, const Inst&, int code, int count, int passes, int kind) {
  for (int k = 0; k < count; k++) {
    int r = code - VGPR + k;
    w.mfma_v[r] = w.slot;
    w.mfma_passes[r] = passes;
    w.mfma_kind[r] = kind;
    w.mfma_first[r] = code;
    w.vflag[r] |= 8;
  }
}
namespace {
// All but the last `left` operations of a counter are done.
void complete(Wave& w, Counter c, u32 left) {
  u32 to = w.issued[c] > left ? w.issued[c] - left : 0;
  if (to > w.done[c]) w.done[c] = to;
}
void settle_completed(Wave& w) {
  if (!w.arrivals.empty()) arrive(w);
  auto& p = w.pending;
  p.erase(std::remove_if(p.begin(), p.end(), [&](const Pending& x) { return x.seq <= w.done[x.counter]; }), p.end());
}
bool flat_pending(const Wave& w) { return w.flat > w.done[VM]; }
}  // namespace

// A counter that is full holds back the next operation until one is done. The manuals do not say so, but LLVM relies on
// it: for a result that more operations have followed than a counter holds, it waits for one less than the counter's
// largest value (SIInsertWaitcnts.cpp, WaitcntBrackets::determineWait). AMD's hand-written programs wait so, too.
void issue(Wave& w, Counter c) {
  const u32 most = c == VM ? MOST_VM : MOST_LGKM;
  w.issued[c]++;
  if (w.issued[c] - w.done[c] <= most || flat_pending(w)) return;
  complete(w, c, most);
  settle_completed(w);
}
// s_waitcnt (section 4.4): vector memory and LDS complete in order, scalar loads in any, flat ones count in both.
void wait(Wave& w, u32 vm, u32 lgkm) {
  bool flat = flat_pending(w);
  if (vm < MOST_VM && !(flat && vm > 0)) complete(w, VM, vm);
  if (lgkm < MOST_LGKM) {
    if (!(flat && lgkm > 0)) complete(w, LDS_OP, lgkm);
    if (lgkm == 0) complete(w, SMEM_OP, 0);
  }
  settle_completed(w);
}
