// Hopper's own instructions, one function each, in PTX; no header of a toolkit is used.
// Sources: PTX ISA, "mbarrier", "cp.async.bulk.tensor", "wgmma.mma_async", "setmaxnreg", "stmatrix", "griddepcontrol",
// "barrier.cluster". Addresses of shared memory are 32-bit addresses of its own space.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct alignas(64) TensorMap {
  u64 words[16];
};

#define DEVICE static __device__ __forceinline__
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
#define MAP const __grid_constant__ TensorMap
#define DYNAMIC_SHARED_MEMORY(name) extern __shared__ u8 name[]

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// A barrier in shared memory. A phase is over when `count` arrivals and all announced bytes have come.
DEVICE void barrier_init(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Makes initialised barriers visible to the other blocks of the cluster and to the copy engine.
DEVICE void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}

DEVICE void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the barrier at the same address in another block of the cluster. Its scope is the block's, although the
// other block waits: it says that products which this thread has waited for have read a stage, and publishes no write.
// A release to the cluster would be a fence of the whole GPU's memory (MEMBAR.ALL.GPU) for each stage.
DEVICE void barrier_arrive_at(u32 barrier, u32 block) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(block)
      : "memory");
}

// Arrives, and announces bytes that copies will bring.
DEVICE void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Waits until the phase of this parity is over. A fresh barrier counts as just past a phase of parity 1. The scope is
// the block's: what follows reads shared memory that copies have written, or copies over it, wherever the copies were
// started. Acquiring from the cluster would drop the multiprocessor's whole first-level cache (CCTL.IVALL) each time.
DEVICE void barrier_wait(u32 barrier, u32 parity) {
  u32 done = 0;
  while (!done)
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
}

DEVICE void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// Copies a box of a matrix to shared memory; what lies outside of the matrix is filled with zeros, and counts as bytes.
DEVICE void tma_load(u32 to, const TensorMap& map, u32 barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}

// The same to these blocks of the cluster, at the same address, each with its own barrier.
DEVICE void tma_load_multicast(u32 to, const TensorMap& map, u32 barrier, int column, int row, u16 blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "h"(blocks)
      : "memory");
}

// Copies a box of shared memory to a matrix; nothing is written outside of the matrix.
DEVICE void tma_store(const TensorMap& map, u32 from, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
               "r"(from), "r"(column), "r"(row)
               : "memory");
}

// Adds a box of float32 in shared memory to a matrix, in the second-level cache.
DEVICE void tma_add(const TensorMap& map, u32 from, int column, int row) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
      "r"(from), "r"(column), "r"(row)
      : "memory");
}

DEVICE void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but the last MOST stores of this thread have read their shared memory.
template <int MOST>
DEVICE void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(MOST) : "memory");
}

DEVICE void store_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Orders this thread's ordinary writes to shared memory before what the copy engine and the matrix unit read next.
DEVICE void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE void sync_threads(u32 barrier, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Counts this thread among those that a barrier waits for, without waiting.
DEVICE void arrive_threads(u32 barrier, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// A value that all threads of a warp have, told to the compiler: what follows from it is computed once for the warp.
DEVICE u32 uniform(u32 value) { return __shfl_sync(0xFFFFFFFF, value, 0); }

// The value of the thread in this place of four that are next to each other; the warp's threads all take part.
DEVICE float of_quad(float value, int place) { return __shfl_sync(0xFFFFFFFF, value, place, 4); }

// The value of this thread of the warp; the warp's threads all take part.
DEVICE float of_lane(float value, int lane) { return __shfl_sync(0xFFFFFFFF, value, lane); }

DEVICE void sync_warp() { __syncwarp(); }

DEVICE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks of the cluster; also orders their memory accesses.
DEVICE void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// The same without an order of memory accesses: for barriers whose initialisation was fenced, and before a block ends.
DEVICE void meet_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

DEVICE float load_of_block(u32 address, u32 block) {
  float value;
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [remote];\n}"
      : "=f"(value)
      : "r"(address), "r"(block)
      : "memory");
  return value;
}

template <int COUNT>
DEVICE void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
DEVICE void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all but the last MOST committed groups of products are done.
template <int MOST>
DEVICE void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(MOST) : "memory");
}

// Keeps the compiler from moving what is done with these values across this place: products write them in the
// background.
template <int COUNT>
DEVICE void settle(float (&values)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// Four 8x8 matrices of 16-bit elements, of which each thread holds a pair of each; thread i addresses row i % 8 of
// matrix i / 8.
DEVICE void store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

DEVICE void store_shared(u32 address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

DEVICE float load_shared(u32 address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

DEVICE void store_shared_word(u32 address, u32 value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

DEVICE u32 load_shared_word(u32 address) {
  u32 value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

DEVICE void store_shared_pair(u32 address, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(first), "f"(second) : "memory");
}

// Two floats rounded to bfloat16, the first in the lower half.
DEVICE u32 bfloat16_pair(float first, float second) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

DEVICE float bfloat16_value(u16 bits) { return __uint_as_float((u32)bits << 16); }

// An instruction of its own: the compiler would move a value that all threads share to a uniform register, and wait for
// the load at once to do so.
DEVICE float load_constant(const float* pointer) {
  float value;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(pointer));
  return value;
}

DEVICE u16 load_constant(const u16* pointer) { return __ldg(pointer); }

// Programmatic dependent launch: the next kernel may be started; the one before has finished and its writes are seen.
DEVICE void start_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

DEVICE void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
