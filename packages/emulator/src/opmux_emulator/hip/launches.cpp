// The calls that launch, and those that ask how a launch would fit.
#include "runtime.h"
#include <algorithm>
#include <cstdio>

EXPORT const char* hipGetErrorString(Error code);

namespace {
thread_local std::vector<std::pair<LaunchSize, void*>> configurations;  // of <<<...>>>

// Programs seldom look at what a launch returns: a failed one is also told on stderr.
Error tell(Error e) {
  if (e) fprintf(stderr, "opmux: %s\n", hipGetErrorString(e));
  return e;
}
Error start(const char* call, Function* f, const LaunchSize& size, void* stream, void** parameters, void** extra) {
  if (!is_function(f))
    return tell(fail(hipErrorInvalidHandle, "%s: %p is no function of this library, or its module was unloaded", call,
                     (void*)f));
  if (Error e = check_stream(stream)) return tell(e);
  return tell(launch(f, size, parameters, extra));
}
Error start_host(const void* host, const LaunchSize& size, void* stream, void** parameters) {
  Function* f;
  if (Error e = function_of_host(host, &f)) return tell(e);
  if (Error e = check_stream(stream)) return tell(e);
  return tell(launch(f, size, parameters, nullptr));
}
// These calls give the grid in threads.
Error start_threads(const char* call, Function* f, const u32 (&threads)[3], const u32 (&block)[3], size_t shared,
                    void* stream, void** parameters, void** extra, void* begin, void* end) {
  LaunchSize size{{0, 0, 0}, {block[0], block[1], block[2]}, shared};
  for (int k = 0; k < 3; k++) {
    if (!block[k] || threads[k] % block[k])
      return fail(hipErrorInvalidConfiguration,
                  "%s: expected a grid of whole workgroups, got %u threads in workgroups of %u", call, threads[k],
                  block[k]);
    size.grid[k] = threads[k] / block[k];
  }
  if (begin) record_event(begin);
  Error e = start(call, f, size, stream, parameters, extra);
  if (end) record_event(end);
  return e;
}
// Workgroups that fit on a compute unit: four SIMDs of 512 registers a lane and eight waves each, and its LDS.
int resident(const Function& f, int threads, size_t shared) {
  int waves = std::max(1, (threads + 63) / 64),
      by_registers = std::min(8, 512 / (int)std::max(f.vgprs, 1u)) * 4 / waves;
  size_t lds = f.lds + shared;
  return std::max(0, lds ? std::min<int>(by_registers, (int)(device().lds / lds)) : by_registers);
}
Error best_block(int* grid, int* block, const Function& f, size_t shared, int limit) {
  int most = std::min<int>(limit > 0 ? limit : 1024, f.max_threads), best = std::min(64, most);
  for (int threads = 64; threads <= most; threads += 64)
    if (resident(f, threads, shared) * threads >= resident(f, best, shared) * best) best = threads;
  *block = best;
  *grid = resident(f, best, shared) * device().units;
  return hipSuccess;
}
}  // namespace

#define GRID u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz
EXPORT Error hipModuleLaunchKernel(Function* f, GRID, u32 shared, void* stream, void** parameters, void** extra) {
  Guard lock(everything);
  return start("hipModuleLaunchKernel", f, {{gx, gy, gz}, {bx, by, bz}, shared}, stream, parameters, extra);
}
EXPORT Error hipModuleLaunchCooperativeKernel(Function* f, GRID, u32 shared, void* stream, void** parameters) {
  Guard lock(everything);
  return start("hipModuleLaunchCooperativeKernel", f, {{gx, gy, gz}, {bx, by, bz}, shared}, stream, parameters,
               nullptr);
}
EXPORT Error hipExtModuleLaunchKernel(Function* f, GRID, size_t shared, void* stream, void** parameters, void** extra,
                                      void* begin, void* end, u32) {
  Guard lock(everything);
  return start_threads("hipExtModuleLaunchKernel", f, {gx, gy, gz}, {bx, by, bz}, shared, stream, parameters, extra,
                       begin, end);
}
EXPORT Error hipHccModuleLaunchKernel(Function* f, GRID, size_t shared, void* stream, void** parameters, void** extra,
                                      void* begin, void* end) {
  Guard lock(everything);
  return start_threads("hipHccModuleLaunchKernel", f, {gx, gy, gz}, {bx, by, bz}, shared, stream, parameters, extra,
                       begin, end);
}
EXPORT Error hipDrvLaunchKernelEx(const DriverLaunchConfig* c, Function* f, void** parameters, void** extra) {
  Guard lock(everything);
  if (!c) return fail(hipErrorInvalidValue, "hipDrvLaunchKernelEx: expected a configuration, got null");
  return start("hipDrvLaunchKernelEx", f,
               {{c->grid[0], c->grid[1], c->grid[2]}, {c->block[0], c->block[1], c->block[2]}, c->shared}, c->stream,
               parameters, extra);
}
EXPORT Error hipLaunchKernel(const void* host, Dim3 grid, Dim3 block, void** parameters, size_t shared, void* stream) {
  Guard lock(everything);
  return start_host(host, {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared}, stream, parameters);
}
EXPORT Error hipLaunchCooperativeKernel(const void* host, Dim3 grid, Dim3 block, void** parameters, u32 shared,
                                        void* stream) {
  return hipLaunchKernel(host, grid, block, parameters, shared, stream);
}
EXPORT Error hipLaunchKernelExC(const LaunchConfig* c, const void* host, void** parameters) {
  return hipLaunchKernel(host, c->grid, c->block, parameters, c->shared, c->stream);
}
EXPORT Error hipExtLaunchKernel(const void* host, Dim3 grid, Dim3 block, void** parameters, size_t shared, void* stream,
                                void* begin, void* end, int) {
  Guard lock(everything);
  if (begin) record_event(begin);
  Error e = hipLaunchKernel(host, grid, block, parameters, shared, stream);
  if (end) record_event(end);
  return e;
}
EXPORT Error __hipPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void* stream) {
  configurations.push_back({{{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared}, stream});
  return hipSuccess;
}
EXPORT Error __hipPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared, void** stream) {
  if (configurations.empty())
    return fail(hipErrorMissingConfiguration, "__hipPopCallConfiguration: no launch was configured");
  auto [size, on] = configurations.back();
  configurations.pop_back();
  *grid = {size.grid[0], size.grid[1], size.grid[2]};
  *block = {size.block[0], size.block[1], size.block[2]};
  *shared = size.shared;
  *stream = on;
  return hipSuccess;
}

EXPORT Error hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* out, Function* f, int threads, size_t shared) {
  Guard lock(everything);
  if (!is_function(f))
    return fail(hipErrorInvalidHandle,
                "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor: %p is no function of this library", (void*)f);
  *out = resident(*f, threads, shared);
  return hipSuccess;
}
EXPORT Error hipModuleOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* out, Function* f, int threads,
                                                                         size_t shared, unsigned) {
  return hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(out, f, threads, shared);
}
EXPORT Error hipOccupancyMaxActiveBlocksPerMultiprocessor(int* out, const void* host, int threads, size_t shared) {
  Guard lock(everything);
  Function* f;
  if (Error e = function_of_host(host, &f)) return e;
  *out = resident(*f, threads, shared);
  return hipSuccess;
}
EXPORT Error hipOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* out, const void* host, int threads,
                                                                   size_t shared, unsigned) {
  return hipOccupancyMaxActiveBlocksPerMultiprocessor(out, host, threads, shared);
}
EXPORT Error hipOccupancyMaxPotentialBlockSize(int* grid, int* block, const void* host, size_t shared, int limit) {
  Guard lock(everything);
  Function* f;
  if (Error e = function_of_host(host, &f)) return e;
  return best_block(grid, block, *f, shared, limit);
}
EXPORT Error hipModuleOccupancyMaxPotentialBlockSize(int* grid, int* block, Function* f, size_t shared, int limit) {
  Guard lock(everything);
  if (!is_function(f))
    return fail(hipErrorInvalidHandle, "hipModuleOccupancyMaxPotentialBlockSize: %p is no function of this library",
                (void*)f);
  return best_block(grid, block, *f, shared, limit);
}
