// Running a grid: waves of a workgroup in turn, workgroups one after the other; and the interface that Python loads.
#include "interface.h"
#include "lds.h"
#include "memory.h"
#include "tables.h"
#include <algorithm>
#include <memory>
#include <mutex>

namespace {
const std::vector<Op>& all_ops() {
  static const std::vector<Op> ops = [] {
    std::vector<Op> all;
    for (auto table : {scalar_ops, control_ops, scalar_memory_ops, lane_ops, conversion_ops, small_float_ops, float_ops,
                       division_ops, integer_ops, comparison_ops, packed_ops, matrix_ops, memory_ops, memory_atomic_ops,
                       lds_ops, lds_lane_ops}) {
      std::vector<Op> part = table();
      all.insert(all.end(), part.begin(), part.end());
    }
    for (Op& op : all) op.traits = traits_of(op.name);
    return all;
  }();
  return ops;
}

void trace(Wave& w, size_t index, u64 cost) {
  Machine& m = *w.m;
  u32& n = m.trace_lengths[w.index];
  if (n < m.trace_limit) {
    i32* at = m.trace + 2 * ((size_t)w.index * m.trace_limit + n);
    at[0] = (i32)index;
    at[1] = (i32)cost;
  }
  n++;  // a trace that is cut off shows by its length
}

// An instruction whose vector registers M0 moves (CDNA3 ISA, section 3.7 "GPR indexing").
Inst indexed(const Wave& w, const Inst& i) {
  Inst moved = i;
  u32 by = w.s[M0] & 0xff, which = w.s[M0] >> 12;
  for (int k = 0; k < 3; k++)
    if (which >> k & 1 && moved.src[k] >= VGPR) moved.src[k] += by;
  if (which >> 3 & 1 && moved.dst >= VGPR) moved.dst += by;
  return moved;
}
void run_wave(Wave& w, u64 quantum) {
  Machine& m = *w.m;
  const Op* ops = m.ops->data();
  const Inst* code = m.code.data();
  i32 n = (i32)m.code.size();
  const bool traced = m.trace && w.g->id == m.traced_group;
  for (u64 k = 0; k < quantum && w.state == RUNNING; k++) {
    if (w.pc < 0 || w.pc >= n) {
      w.pc = n - 1;
      report(w, code[n - 1], OUT_OF_BOUNDS, -1, 0, 5);
      w.state = FAULT;
      return;
    }
    const Inst& i = code[w.pc];
    if (i.op < 0) {
      report(w, i, UNSUPPORTED);
      w.state = FAULT;
      return;
    }
    const Op& op = ops[i.op];
    w.next = w.pc + 1;
    w.slot++;
    w.executed++;
    m.counts.instructions[op.kind]++;
    m.counts.opcodes[i.op]++;
    const Inst* run = &i;
    Inst moved;
    if (__builtin_expect(w.skips | w.indexes, 0) && op.kind != SALU && op.kind != SMEM && op.kind != BRANCH &&
        op.kind != SPECIAL) {
      if (w.skips) {
        w.pc = w.next;
        continue;
      }
      if (op.kind == VALU || op.kind == TRANS) {
        moved = indexed(w, i);
        run = &moved;
      }
    }
    if (run->variant == DPP16 || op.kind == MFMA || op.kind == VMEM || op.kind == DSOP || op.traits) before(w, *run);
    u64 taken = traced ? m.counts.lds_cycles + m.counts.vmem_lines + m.counts.mfma_passes : 0;
    op.run(w, *run);
    if (__builtin_expect(traced, 0))
      trace(w, &i - code, m.counts.lds_cycles + m.counts.vmem_lines + m.counts.mfma_passes - taken);
    if (op.kind == TRANS || op.traits & (IS_DOT | CVT_SCALE)) after(w, *run, op);
    if (w.executed > m.limit) {
      report(w, i, ENDLESS, -1, w.executed);
      w.state = FAULT;
      return;
    }
    if (m.stop) return;
    w.pc = w.next;
  }
}

// Run until every wave is done; false where the quantum ran out first.
bool run_group(Group& g, u64 quantum) {
  for (;;) {
    bool running = false;
    for (size_t k = 0; k < g.waves.size(); k++) {
      Wave* w = g.waves[g.m->backwards ? g.waves.size() - 1 - k : k];
      if (w->state == RUNNING) run_wave(*w, quantum);
      if (g.m->stop) return true;
      running |= w->state == RUNNING;
    }
    if (running) return false;
    size_t waiting = 0, done = 0;
    for (Wave* w : g.waves) {
      waiting += w->state == AT_BARRIER;
      done += w->state == DONE || w->state == FAULT;
    }
    if (!waiting) return true;
    if (done) {  // some waves ended: the barrier of the others is never complete as the manual words it
      for (Wave* w : g.waves)
        if (w->state == AT_BARRIER) {
          report(*w, g.m->code[std::max(0, w->pc - 1)], BARRIER, -1, 0, (int)done);
          break;
        }
    }
    // Waves may wait at different instructions: the hardware counts arrivals, and hand-written kernels give each wave
    // its own code.
    for (Wave* w : g.waves)
      if (w->state == AT_BARRIER) w->state = RUNNING;
    g.epoch++;
    g.m->counts.barriers++;
    lds_restamp(g);
  }
}
}  // namespace

extern "C" {
int emulator_op_count() { return (int)all_ops().size(); }
const char* emulator_op_name(int k) { return all_ops()[k].name; }
int emulator_op_class(int k) { return all_ops()[k].kind; }
int emulator_inst_fields() { return sizeof(Inst) / 4; }
int emulator_finding_size() { return sizeof(Finding); }
int emulator_counts_size() { return sizeof(Counts); }
int emulator_launch_size() { return sizeof(Launch); }
int emulator_allocation_size() { return sizeof(Allocation); }

int emulator_run(const Launch* launch, const i32* code, int instructions, const i32* at, int dwords, const u32* user,
                 Allocation* memory, int allocations, Finding* findings, u64* suppressed, Counts* counts) {
  static std::mutex one_at_a_time;
  std::lock_guard<std::mutex> lock(one_at_a_time);  // the registry of groups is one
  Machine m;
  m.arch = (Arch)launch->arch;
  m.ops = &all_ops();
  m.limit = launch->limit;
  m.enabled = launch->enabled;
  m.max_findings = launch->max_findings;
  m.code.resize(instructions);
  memcpy((void*)m.code.data(), code, sizeof(Inst) * instructions);
  m.seen.assign((size_t)instructions * RULES, 0);
  m.at.assign(at, at + dwords);
  m.code_base = launch->code_base;
  m.memory.assign(memory, memory + allocations);
  m.lds_size = launch->lds_size;
  m.vgprs = launch->vgprs;
  m.sgprs = launch->sgprs;
  memset(&m.counts, 0, sizeof m.counts);
  u64 total = launch->groups[0] * launch->groups[1] * launch->groups[2];
  u32 waves = launch->waves, threads = launch->workgroup[0] * launch->workgroup[1] * launch->workgroup[2];
  std::vector<Group*> registry(total, nullptr);
  set_registry(&registry);
  forget_patterns();
  m.scratch_per_lane = launch->scratch_per_lane;
  u64 scratch_bytes = launch->scratch_per_lane * LANES;
  struct Resident {
    Group group;
    std::vector<std::unique_ptr<Wave>> waves;
    std::vector<u32> registers;
    std::vector<u64> unwritten;
    std::vector<u8> scratch, fresh;
    u32 slot = 0;
  };
  std::vector<std::unique_ptr<Resident>> residents;
  std::vector<std::unique_ptr<Resident>> spare;
  std::vector<std::unique_ptr<Group>> finished;
  u64 next = 0;
  const u64 quantum = launch->quantum ? launch->quantum : 1 << 20;
  m.late = launch->late;
  m.backwards = launch->backwards;
  m.trace = launch->trace;
  m.trace_lengths = launch->trace_lengths;
  m.trace_limit = launch->trace_limit;
  m.traced_group = launch->first_group;
  auto begin = [&](u64 id) {
    std::unique_ptr<Resident> r;
    if (!spare.empty()) {
      r = std::move(spare.back());
      spare.pop_back();
    } else r = std::make_unique<Resident>();
    Group& g = r->group;
    g.m = &m;
    g.id = (u32)id;
    g.epoch = 1;
    g.releases.clear();
    g.acquired = 0;
    g.x = (u32)(id % launch->groups[0]);
    g.y = (u32)(id / launch->groups[0] % launch->groups[1]);
    g.z = (u32)(id / launch->groups[0] / launch->groups[1]);
    g.lds.assign(launch->lds_size, 0xcd);
    g.shadow.assign(launch->lds_size / 4 + 4, LdsWord{});
    g.waves.clear();
    r->registers.assign((size_t)waves * m.vgprs * LANES, 0xdeadbeef);
    r->unwritten.assign((size_t)waves * 768, ~0ull);
    if (r->waves.size() != waves) {
      r->waves.clear();
      for (u32 k = 0; k < waves; k++) r->waves.push_back(std::make_unique<Wave>());
    }
    for (u32 k = 0; k < waves; k++) {
      Wave& w = *r->waves[k];
      w = Wave();
      w.m = &m;
      w.g = &g;
      w.index = k;
      memset(w.vflag, 0, sizeof w.vflag);
      memset(w.sflag, 0, sizeof w.sflag);
      memset(w.valu_v, 0, sizeof w.valu_v);
      memset(w.valu_s, 0, sizeof w.valu_s);
      memset(w.trans_v, 0, sizeof w.trans_v);
      memset(w.part_v, 0, sizeof w.part_v);
      memset(w.mfma_v, 0, sizeof w.mfma_v);
      memset(w.store_v, 0, sizeof w.store_v);
      memset(w.dot_v, 0, sizeof w.dot_v);
      for (int s = 0; s < VGPR; s++) {
        w.s[s] = 0xdeadbeef;
        w.su[s] = ~0u;
      }
      w.v = (u32(*)[LANES])(r->registers.data() + (size_t)k * m.vgprs * LANES);
      w.vu = r->unwritten.data() + (size_t)k * 768;  // of any register that an instruction can name
      u32 first = k * LANES, active = threads > first ? std::min<u32>(threads - first, LANES) : 0;
      u64 exec = active == 64 ? ~0ull : (1ull << active) - 1;
      w.set_pair(EXEC, exec);
      w.su[EXEC] = w.su[EXEC + 1] = 0;
      w.mode = launch->mode;
      w.pc = launch->entry;
      u32 n = launch->user_sgprs;
      for (u32 s = 0; s < n; s++) {
        w.s[s] = user[s];
        w.su[s] = 0;
      }
      auto give = [&](u32 x) {
        w.s[n] = x;
        w.su[n] = 0;
        n++;
      };
      if (launch->group_id[0]) give(g.x);
      if (launch->group_id[1]) give(g.y);
      if (launch->group_id[2]) give(g.z);
      if (launch->group_info) give(0);
      if (launch->private_offset) give(0);
      w.s[VCC] = w.s[VCC + 1] = 0;
      w.su[VCC] = w.su[VCC + 1] = ~0u;
      for (int l = 0; l < LANES; l++) {
        u32 t = first + l, x = t % launch->workgroup[0], y = t / launch->workgroup[0] % launch->workgroup[1],
            z = t / launch->workgroup[0] / launch->workgroup[1];
        if (launch->packed_ids) w.v[0][l] = x | y << 10 | z << 20;
        else {
          w.v[0][l] = x;
          if (launch->workitem_id >= 1 && m.vgprs > 1) w.v[1][l] = y;
          if (launch->workitem_id >= 2 && m.vgprs > 2) w.v[2][l] = z;
        }
      }
      for (u32 v = 0; v <= (launch->packed_ids ? 0 : launch->workitem_id) && v < m.vgprs; v++) w.vu[v] = 0;
      g.waves.push_back(&w);
    }
    // Scratch lies behind all else: one allocation for each resident group.
    if (scratch_bytes) {
      r->scratch.assign(scratch_bytes * waves, 0xcd);
      r->fresh.assign(scratch_bytes * waves, 1);
      r->slot = 0;
      while (std::any_of(residents.begin(), residents.end(), [&](auto& o) { return o->slot == r->slot; })) r->slot++;
      u64 base = (1ull << 47) + (u64)r->slot * ((scratch_bytes * waves + 0xffffull) & ~0xffffull);
      Allocation a{base, scratch_bytes * waves, r->scratch.data(), r->fresh.data(), nullptr, nullptr, 1, 0};
      auto place = std::find_if(m.memory.begin(), m.memory.end(), [&](const Allocation& b) { return b.base == base; });
      if (place == m.memory.end()) m.memory.push_back(a);
      else *place = a;
      std::sort(m.memory.begin(), m.memory.end(),
                [](const Allocation& x, const Allocation& y) { return x.base < y.base; });
      for (u32 k = 0; k < waves; k++) r->waves[k]->scratch_base = base + k * scratch_bytes;
    }
    registry[id] = &g;
    residents.push_back(std::move(r));
  };
  u64 first = launch->first_group,
      last = launch->group_count ? std::min<u64>(total, first + launch->group_count) : total;
  next = first;
  while ((next < last || !residents.empty()) && !m.stop) {
    if (residents.empty()) begin(next++);
    bool finished_any = false;
    for (size_t k = 0; k < residents.size() && !m.stop;) {
      Group& g = residents[k]->group;
      if (!run_group(g, quantum)) {
        k++;
        continue;
      }
      // What later groups may ask of a finished one: when it released.
      auto kept = std::make_unique<Group>();
      kept->m = &m;
      kept->id = g.id;
      kept->releases = g.releases;
      kept->acquired = g.acquired;
      registry[g.id] = kept.get();
      finished.push_back(std::move(kept));
      finished_any = true;
      for (auto& w : residents[k]->waves) w->pending.clear();
      spare.push_back(std::move(residents[k]));
      residents.erase(residents.begin() + k);
    }
    if (!finished_any && next < last && residents.size() < 256) begin(next++);  // it waits for another: let that one in
  }
  std::copy(m.findings.begin(), m.findings.end(), findings);
  *suppressed = m.suppressed;
  *counts = m.counts;
  return (int)m.findings.size();
}
}
