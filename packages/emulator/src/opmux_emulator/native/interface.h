// What the interpreter's library offers: to Python (native/library.py has the same structures) and to the HIP library.
#pragma once
#include "machine.h"

struct Launch {
  u64 grid[3];
  u64 groups[3];
  u32 workgroup[3], waves;
  u32 lds_size, arch, vgprs, sgprs;
  u32 mode, workitem_id;
  u64 scratch_per_lane, limit;
  u64 code_base, enabled;
  u32 user_sgprs, packed_ids;
  u32 group_id[3], group_info, private_offset;
  u32 max_findings;
  i32 accum_offset;
  u32 first_group, group_count, entry;
  u32 late, backwards, quantum;  // loads arrive late; the waves' order; instructions in a turn, 0 for the default
  // What the waves of the first workgroup execute: for each of them so many pairs, of an instruction's index and the
  // passes, cycles of LDS or lines of memory that it took; and how many pairs there are.
  u32 trace_limit;
  i32* trace;
  u32* trace_lengths;
};

#pragma GCC visibility push(default)  // all else is hidden: a call between units goes straight to its target
extern "C" {
int emulator_op_count();
const char* emulator_op_name(int k);
int emulator_op_class(int k);
int emulator_inst_fields();
int emulator_finding_size();
int emulator_counts_size();
int emulator_launch_size();
int emulator_allocation_size();
// Runs a grid. Returns the number of findings written; `suppressed` counts repeats of one rule at one instruction.
int emulator_run(const Launch* launch, const i32* code, int instructions, const i32* at, int dwords, const u32* user,
                 Allocation* memory, int allocations, Finding* findings, u64* suppressed, Counts* counts);
}
#pragma GCC visibility pop
