// State of the machine: instructions, waves, workgroups, memory, and the records that the judgements read.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i8 = int8_t;
using i16 = int16_t;
using i32 = int32_t;
using i64 = int64_t;

constexpr int LANES = 64;
constexpr int VGPR = 256;  // operand codes from here are vector registers; accumulation registers are already resolved
constexpr int VCC = 106, M0 = 124, EXEC = 126;
enum Arch { GFX90A, GFX942, GFX950 };
enum Counter : u8 { NO_COUNTER, VM, LDS_OP, SMEM_OP };

// One instruction, as isa/encode.py lays it out: the order of the fields is the order of its columns.
struct Inst {
  i32 op, size, encoding, dst, sdst, src[4], literal, neg, abs, omod, clamp, opsel, opsel_hi, neg_hi;
  i32 variant, dpp, row_mask, bank_mask, bound, dst_sel, dst_unused, src_sel[2], sext;
  i32 imm, imm1, flags, cbsz, abid, blgp, target, pc;
  i32 m, n, k, blocks, atype, btype, dtype, scale[2];
};
enum Flag { SC0 = 1, NT = 2, SC1 = 4, TO_LDS = 8, OFFEN = 16, IDXEN = 32, GDS = 64 };
enum Variant { PLAIN, DPP16, SDWA_ };

enum Unit { XDL, DGEMM, SGEMM };  // which matrix unit: dependencies differ

// What the hazard rules of single opcodes ask for.
enum Trait : u8 {
  IS_DOT = 1,
  LANE_READ = 2,
  LANE_SELECT = 4,
  DIV_FMAS = 8,
  FMA64 = 16,
  LANE_SWAP = 32,
  CVT_SCALE = 64,
  READS_M0 = 128
};

// What an opcode is, for the hazard rules and the counts.
enum Class : u8 { SALU, VALU, TRANS, MFMA, SMEM, VMEM, DSOP, BRANCH, SPECIAL };

enum Rule : u8 {
  OUTSTANDING,
  UNWRITTEN_REGISTER,
  UNWRITTEN_MEMORY,
  UNWRITTEN_LDS,
  LDS_RACE,
  GLOBAL_RACE,
  OUT_OF_BOUNDS,
  LDS_BOUNDS,
  MISALIGNED,
  WAIT_STATES,
  BARRIER,
  RESOURCES,
  UNSUPPORTED,
  ENDLESS,
  RULES
};

struct Allocation {
  u64 base, size;
  u8* host;
  u8* unwritten;
  u64* writer;
  u32* reader;
  u32 writable;
  u32 pad;
};

struct Finding {
  i32 rule, inst, wave, group, lane, detail;
  u64 address;
};

// Who accessed a dword of LDS last, and which of its bytes (the masks). Where waves share a dword, the latest is known.
// tainted: what was written is a value that nothing wrote.
struct LdsWord {
  u32 write_epoch, read_epoch;
  u16 readers;
  u8 writer, written, writer_mask, reader_mask, tainted;
};

struct Pending {
  u32 seq;
  Counter counter;
  u8 write, size;
  u64 lanes;
  u32 offset[LANES];
};

// A loaded value that arrives only when a wait asks for it.
struct Arrival {
  int reg;
  Counter counter;
  u32 seq;
  u64 lanes;
  u32 value[LANES];
};

struct Machine;
struct Group;
struct Wave;
using Handler = void (*)(Wave&, const Inst&);
struct Op {
  const char* name;
  Handler run;
  Class kind;
  u8 traits;
};

struct Group {
  Machine* m;
  u32 id, x, y, z, epoch = 1;
  std::vector<u8> lds;
  std::vector<LdsWord> shadow;
  std::vector<Wave*> waves;
  std::vector<u32> releases;
  u32 acquired = 0;
};

enum State : u8 { RUNNING, AT_BARRIER, DONE, FAULT };

struct Wave {
  Machine* m;
  Group* g;
  u32 index;
  State state = RUNNING;
  i32 pc = 0, next = 0;
  alignas(64) u32 s[VGPR];
  u32 su[VGPR];  // scalar registers, and which of their bits nothing wrote
  u32 scc = 0, sccu = ~0u;
  u32 (*v)[LANES];
  u64* vu;  // vector registers, and in which lanes nothing wrote them
  u32 mode = 0;
  bool skips = false;    // s_setvskip
  bool indexes = false;  // s_set_gpr_idx_on: which operands M0's low byte is added to, M0[15:12]
  // Outstanding operations: a register's sequence number in its counter, and how far each counter has completed.
  u8 vflag[768];
  u8 sflag[VGPR];  // nonzero: the slow check looks at the arrays below
  Counter vcounter[768], scounter[VGPR];
  u32 vseq[768], sseq[VGPR];
  u32 issued[4] = {}, done[4] = {}, flat = 0;
  std::vector<Pending> pending;   // LDS accesses that no wait has covered
  std::vector<Arrival> arrivals;  // what loads will bring, where they are late
  // Wait states: the issue slot at which something was written, per register.
  u64 slot = 1000;
  u64 valu_v[768], valu_s[VGPR], trans_v[768], part_v[768], mfma_v[768], store_v[768], dot_v[768], addend_v[768];
  u64 valu_exec = 0, salu_m0 = 0, setreg[64] = {}, double_mfma = 0;  // setreg: by hardware register
  u16 mfma_passes[768], mfma_first[768], addend_passes[768];
  u8 mfma_kind[768];  // passes, first register of the result, and unit
  i32 dot_op[768];    // which dot product wrote it
  u64 executed = 0, scratch_base = 0;
  u64 und = 0, mask = 0;  // of the current instruction: lanes whose sources nothing wrote; lanes written
  u64 exec() const {
    u64 e;
    memcpy(&e, &s[EXEC], 8);
    return e;
  }
  u64 pair(int r) const {
    u64 e;
    memcpy(&e, &s[r], 8);
    return e;
  }
  void set_pair(int r, u64 x) { memcpy(&s[r], &x, 8); }
};

struct Counts {
  u64 instructions[16], opcodes[2048];
  u64 lds_accesses, lds_conflict_cycles, lds_cycles, vmem_requests, vmem_bytes, vmem_lines, barriers, mfma_passes,
      flops;
};

struct Machine {
  Arch arch;
  std::vector<Inst> code;
  std::vector<Op> const* ops;
  std::vector<Allocation> memory;
  size_t last = 0;
  std::vector<Finding> findings;
  u64 suppressed = 0;
  u64 enabled = ~0ull;
  Counts counts;
  u32 clock = 1;  // of atomics, which order workgroups
  u64 limit = 1ull << 40;
  bool stop = false;
  u32 max_findings = 64;
  bool late = false, backwards = false;
  i32* trace = nullptr;
  u32* trace_lengths = nullptr;
  u32 trace_limit = 0, traced_group = 0;
  u32 lds_size = 0, waves_per_group = 0, vgprs = 0, sgprs = 0, arch_vgprs = 0;
  u64 scratch_per_lane = 0;
  Allocation* scratch = nullptr;
  u64 lds_aperture = 1ull << 45, scratch_aperture = 1ull << 46;
  u64 code_base = 0;
  std::vector<i32> at;   // where the code lies; instruction at each dword of it
  std::vector<u8> seen;  // one bit a rule for each instruction: each is reported once
};

void report(Wave& w, const Inst& i, Rule rule, int lane = -1, u64 address = 0, int detail = 0);
void slow_read_v(Wave& w, const Inst& i, int r);
void slow_write_v(Wave& w, const Inst& i, int r);
void slow_read_s(Wave& w, const Inst& i, int r);
void slow_write_s(Wave& w, const Inst& i, int r);
void range_fault(Wave& w, const Inst& i, int r, bool vector);
void before(Wave& w, const Inst& i);  // hazards of the instruction's kind
void after_mfma(Wave& w, const Inst& i, int r, int count, int passes, int kind);
void after(Wave& w, const Inst& i, const Op& op);           // what an instruction's kind leaves behind
void check_flag_source(Wave& w, const Inst& i, bool exec);  // VCCZ or EXECZ as an operand
u8 traits_of(const char* name);
u8* translate(Wave& w, const Inst& i, u64 address, u32 bytes, bool write, int lane, Allocation** found = nullptr);
constexpr u32 MOST_VM = 63, MOST_LGKM = 15;  // what the counters of s_waitcnt hold
void issue(Wave& w, Counter c);
void wait(Wave& w, u32 vm, u32 lgkm);
bool lds_access(Wave& w, const Inst& i, u32 address, u32 bytes, bool write, int lane, bool atomic = false,
                const void* data = nullptr);
void lds_note(Wave& w, Counter counter, bool write, u32 size, u64 lanes, const u32* offsets);
void lds_restamp(Group& g);
void outstanding_v(Wave& w, int code, Counter c);
void settle(Wave& w, int code);  // before a load that keeps half of its register
void outstanding_s(Wave& w, int r);

inline const u32* read_v(Wave& w, const Inst& i, int code) {
  int r = code - VGPR;
  if (__builtin_expect((u32)r >= w.m->vgprs, 0)) {
    range_fault(w, i, r, true);
    r = 0;
  }
  if (__builtin_expect(w.vflag[r], 0)) slow_read_v(w, i, r);
  return w.v[r];
}
inline u32* write_v(Wave& w, const Inst& i, int code) {
  int r = code - VGPR;
  if (__builtin_expect((u32)r >= w.m->vgprs, 0)) {
    range_fault(w, i, r, true);
    r = 0;
  }
  if (__builtin_expect(w.vflag[r], 0)) slow_write_v(w, i, r);
  return w.v[r];
}
inline void touch_s(Wave& w, const Inst& i, int r) {
  if (__builtin_expect(w.sflag[r], 0)) slow_read_s(w, i, r);
  if (__builtin_expect(r < 102 && (u32)r >= w.m->sgprs, 0)) range_fault(w, i, r, false);
}
inline void write_s(Wave& w, const Inst& i, int r, u32 value, u32 unwritten) {
  if (r < 0 || r >= 128) return;
  if (__builtin_expect(w.sflag[r], 0)) slow_write_s(w, i, r);
  if (__builtin_expect(r < 102 && (u32)r >= w.m->sgprs, 0)) range_fault(w, i, r, false);
  w.s[r] = value;
  w.su[r] = unwritten;
  if (__builtin_expect((r & ~1) == EXEC && unwritten, 0)) report(w, i, UNWRITTEN_REGISTER, -1, r, 1);
}
inline void write_s64(Wave& w, const Inst& i, int r, u64 value, u64 unwritten) {
  write_s(w, i, r, (u32)value, (u32)unwritten);
  write_s(w, i, r + 1, value >> 32, unwritten >> 32);
}
