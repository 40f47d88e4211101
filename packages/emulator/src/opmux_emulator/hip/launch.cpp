// Launches: the kernarg segment, a run of the interpreter on the host's memory, and what was judged.
#include "runtime.h"
#include <algorithm>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <sstream>

namespace {
constexpr int MAX_FINDINGS = 256;
std::string last_report;

decltype(&emulator_run) interpreter() {
  static decltype(&emulator_run) run = nullptr;
  if (run) return run;
  void* library = dlopen(interpreter_path().c_str(), RTLD_NOW | RTLD_LOCAL);
  auto size = library ? (decltype(&emulator_allocation_size))dlsym(library, "emulator_allocation_size") : nullptr;
  if (size && size() == sizeof(Allocation)) run = (decltype(&emulator_run))dlsym(library, "emulator_run");
  return run;
}
Error check_size(const Function& f, const LaunchSize& s) {
  u64 threads = (u64)s.block[0] * s.block[1] * s.block[2];
  for (int k = 0; k < 3; k++)
    if (!s.grid[k] || !s.block[k])
      return fail(hipErrorInvalidConfiguration,
                  "%s: expected a grid and a block of at least 1 in each direction, got (%u, %u, %u) and (%u, %u, %u)",
                  f.name.c_str(), s.grid[0], s.grid[1], s.grid[2], s.block[0], s.block[1], s.block[2]);
  if (threads > f.max_threads)
    return fail(hipErrorInvalidConfiguration, "%s: `block`: expected at most %u threads, got %llu", f.name.c_str(),
                f.max_threads, (unsigned long long)threads);
  if (f.lds + s.shared > device().lds)
    return fail(hipErrorInvalidValue,
                "%s: `sharedMemBytes`: %s has %zu bytes of LDS, of which the kernel uses %u itself; got %zu",
                f.name.c_str(), device().arch, device().lds, f.lds, s.shared);
  return hipSuccess;
}
// The explicit arguments: from an array of pointers to each, or as one buffer.
Error gather(const Function& f, void** parameters, void** extra, std::string& out) {
  if (parameters) {
    if (!f.described)
      return fail(hipErrorInvalidValue,
                  "%s: its metadata describe no arguments: pass them as a buffer (HIP_LAUNCH_PARAM_BUFFER_POINTER)",
                  f.name.c_str());
    out.assign(f.explicit_end, 0);
    for (size_t k = 0; k < f.arguments.size(); k++) {
      if (!parameters[k])
        return fail(hipErrorInvalidValue, "%s: argument %zu: expected the address of %u bytes, got null",
                    f.name.c_str(), k, f.arguments[k].size);
      memcpy(&out[f.arguments[k].offset], parameters[k], f.arguments[k].size);
    }
    return hipSuccess;
  }
  const void* buffer = nullptr;
  size_t size = 0;
  for (int k = 0; extra && k < 8 && (u64)extra[k] != 3; k += 2) {
    if ((u64)extra[k] == 1) buffer = extra[k + 1];
    else if ((u64)extra[k] == 2) size = *(size_t*)extra[k + 1];
    else
      return fail(hipErrorInvalidValue, "%s: `extra`: expected HIP_LAUNCH_PARAM_* at position %d, got %p",
                  f.name.c_str(), k, extra[k]);
  }
  u32 most = std::max(f.kernarg, (f.explicit_end + 15) & ~15u);  // structures end on a multiple of their alignment
  if (f.described && (size < f.explicit_end || size > most))
    return fail(hipErrorInvalidValue, "%s: its arguments have %u bytes (%u with the hidden ones), got a buffer of %zu",
                f.name.c_str(), f.explicit_end, f.kernarg, size);
  if (!f.described && f.kernarg && size > f.kernarg)
    return fail(hipErrorInvalidValue, "%s: its kernarg segment has %u bytes, got a buffer of %zu", f.name.c_str(),
                f.kernarg, size);
  if (size && !buffer)
    return fail(hipErrorInvalidValue, "%s: `extra`: %zu bytes of arguments, and no buffer", f.name.c_str(), size);
  out.assign((const char*)buffer, size);
  return hipSuccess;
}
// Readable and writable memory of this process that is no block: what a device that takes page faults could reach.
void add_pageable(std::vector<Allocation>& to) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  std::vector<Allocation> found;
  while (std::getline(maps, line)) {
    unsigned long long first, end;
    char access[8];
    if (sscanf(line.c_str(), "%llx-%llx %7s", &first, &end, access) != 3 || access[0] != 'r' || first >= 1ull << 47)
      continue;
    for (const Allocation& a : to) {  // without the blocks, which are in order
      if (a.base + a.size <= first || a.base >= end) continue;
      if (a.base > first)
        found.push_back({first, a.base - first, (u8*)first, nullptr, nullptr, nullptr, access[1] == 'w', 0});
      first = a.base + a.size;
    }
    if (first < end) found.push_back({first, end - first, (u8*)first, nullptr, nullptr, nullptr, access[1] == 'w', 0});
  }
  to.insert(to.end(), found.begin(), found.end());
  std::sort(to.begin(), to.end(), [](const Allocation& x, const Allocation& y) { return x.base < y.base; });
}
struct Shadow {
  u64* writer;
  u32* reader;
};
struct Shadows {  // who accessed what: fresh for every launch
  std::vector<Shadow> all;
  ~Shadows() {
    for (Shadow& s : all) {
      free(s.writer);
      free(s.reader);
    }
  }
  Shadow add(size_t size) {
    Shadow s{(u64*)calloc(size / 4 + 2, 8), (u32*)calloc(size / 4 + 2, 4)};
    all.push_back(s);
    return s;
  }
};
struct Scratch {
  Block* block;
  ~Scratch() {
    if (block) release(block);
  }
};
}  // namespace

Error launch(Function* function, const LaunchSize& size, void** parameters, void** extra) {
  Function& f = *function;
  std::string segment;
  if (f.module->arch != device().arch)
    return fail(hipErrorNoBinaryForGpu, "%s: the device plays %s; the kernel is for %s", f.name.c_str(), device().arch,
                f.module->arch.c_str());
  if (Error e = check_size(f, size)) return e;
  if (Error e = gather(f, parameters, extra, segment)) return e;
  if (f.table.empty()) {
    Reply reply = ask(TABLES, Message().put(f.id));
    if (reply.status) return fail(reply.status, "%s", reply.data.c_str());
    std::string table = reply.text(), at = reply.text();
    f.table.resize(table.size() / 4);
    memcpy(f.table.data(), table.data(), table.size());
    f.at.resize(at.size() / 4);
    memcpy(f.at.data(), at.data(), at.size());
    f.instructions = (int)(table.size() / sizeof(Inst));
  }
  Scratch kernarg{
      allocate(std::max<size_t>(std::max<size_t>(segment.size(), f.kernarg), 4), DEVICE, "kernarg segment")},
      packet{allocate(64, DEVICE, "dispatch packet")};
  if (!kernarg.block || !packet.block)
    return fail(hipErrorOutOfMemory, "%s: no memory for its arguments", f.name.c_str());
  kernarg.block->writable = packet.block->writable = false;
  Message wanted;
  wanted.put(f.id)
      .put(size.grid)
      .put(size.block)
      .put((u32)size.shared)
      .put(f.module->image->base)
      .put(kernarg.block->base)
      .put(packet.block->base);
  Reply prepared = ask(PREPARE, wanted.text(settings().text).text(segment));
  if (prepared.status) return fail(prepared.status, "%s", prepared.data.c_str());
  std::string settings_of = prepared.text(), user = prepared.text(), arguments = prepared.text(), aql = prepared.text();
  Launch run{};
  memcpy(&run, settings_of.data(), std::min(sizeof run, settings_of.size()));
  memcpy((void*)kernarg.block->base, arguments.data(), std::min<size_t>(arguments.size(), kernarg.block->size));
  memcpy((void*)packet.block->base, aql.data(), std::min<size_t>(aql.size(), 64));
  auto execute = interpreter();
  if (!execute)
    return fail(hipErrorNotInitialized, "the interpreter %s cannot be loaded, or is of another version",
                interpreter_path().c_str());

  std::vector<Allocation> memory;
  Shadows shadows;
  for (Block* b : blocks()) {
    Shadow s = shadows.add(b->size);
    memory.push_back({b->base, b->size, (u8*)b->base, b->unwritten.empty() ? nullptr : b->unwritten.data(), s.writer,
                      s.reader, b->writable, 0});
  }
  if (settings().pageable) add_pageable(memory);
  std::vector<Finding> findings(MAX_FINDINGS);
  Counts counts{};
  u64 repeats = 0;
  int found = execute(&run, f.table.data(), f.instructions, f.at.data(), (int)f.at.size(), (const u32*)user.data(),
                      memory.data(), (int)memory.size(), findings.data(), &repeats, &counts);
  Message judged;
  judged.put(f.id)
      .put(size.grid)
      .put(size.block)
      .put((u32)size.shared)
      .put(repeats)
      .text(std::string((const char*)&counts, sizeof counts));
  judged.text(std::string((const char*)findings.data(), found * sizeof(Finding)))
      .text(settings().text)
      .put((u32)blocks().size());
  for (Block* b : blocks()) judged.put(b->base).put((u64)b->size).text(b->name);
  Reply verdict = ask(JUDGE, judged);
  if (verdict.status == hipErrorNotInitialized) return fail(verdict.status, "%s", verdict.data.c_str());
  std::string text = verdict.text();
  last_report = verdict.text();
  if (!verdict.status) return hipSuccess;
  return launch_failed(verdict.status, text);
}

// The report of the last launch as JSON, as `opmux emulate --json` prints it; empty before the first.
EXPORT const char* opmuxHipReport() {
  Guard lock(everything);
  static std::string kept;
  kept = last_report;
  return kept.c_str();
}
