// Plays the instructions of `cuda/instructions.cuh` on a CPU, so that a kernel's own text runs without a GPU.
//
// Each thread of a cluster is a fiber; they take turns in an order drawn from a seed. Copies, products and stores
// happen in the background: as early or as late as the waits permit, again by the seed, so that a stage which is freed
// or read too early gives wrong results. Nobody being able to go on is reported as a deadlock. What it knows of
// descriptors, swizzles, fragments and barriers is written from the PTX ISA, and shares nothing with the kernels.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

#define DEVICE static inline
#define KERNEL(threads) static void
#define MAP const TensorMap
#define DYNAMIC_SHARED_MEMORY(name) u8* name = model::now->block->shared.data()
#define threadIdx (model::now->thread_index)
#define blockIdx (model::now->block->index)
#define gridDim (model::grid)

struct TensorMap {
  u8* data;
  long rows, columns, row_bytes;  // columns are elements
  int element_bytes, box_rows, box_columns, swizzle;
  long matrices = 1, matrix_bytes = 0;
};

namespace model {

struct Index {
  u32 x, y;
};

[[noreturn]] static void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

constexpr u32 START = 1040;  // of dynamic shared memory: no multiple of 1024

struct Barrier {
  int count = 0, missing = 0;
  long bytes = 0;
  u32 phase = 0;
};

struct Meeting {  // of threads that wait for each other
  u32 arrived = 0, generation = 0;
};

struct Block {
  Index index;
  u32 rank;
  std::vector<u8> shared;
  std::map<u32, Barrier> barriers;
  std::map<u32, Meeting> meetings;
};

struct Product {
  float* values;
  int count;
  u64 a, b;
  bool accumulate;
};

struct StoredRow {
  u32 address, values[4];
};

struct Fiber {
  Block* block;
  Index thread_index;
  ucontext_t context;
  std::vector<u8> stack;
  bool done = false, unfenced = false, fenced_products = false;
  u32 shuffles = 0;
  std::vector<Product> open;                // products that are not committed
  std::deque<std::vector<Product>> groups;  // committed ones that may not be done
  std::vector<std::function<void()>> open_stores;
  std::deque<std::vector<std::function<void()>>> store_groups;
};

struct Warp {
  StoredRow rows[32];
  float shared[2][32];  // what the threads of quads give each other
  Meeting meeting;
};

static Index grid;
static Fiber* now = nullptr;
static ucontext_t scheduler;
static long progress = 0;
static bool eager;  // whether background work is done at once
static int operand_bytes;
static bool a_across, b_across;  // whether the operand lies across the dim that is summed
static std::mt19937 draw;
static std::vector<std::unique_ptr<Block>> blocks;
static std::vector<std::unique_ptr<Fiber>> fibers;
static std::map<std::pair<u32, u32>, Warp> warps;
static std::vector<std::function<void()>> copies;
static Meeting cluster_meeting;

static void yield() { swapcontext(&now->context, &scheduler); }

template <typename Condition>
static void wait_until(Condition condition) {
  while (!condition()) yield();
  ++progress;
}

static u8* at(Block* block, u32 address, u32 bytes) {
  if (address < START || address + bytes > START + block->shared.size()) fail("shared memory: address out of bounds");
  return &block->shared[address - START];
}

static Barrier& barrier(Block* block, u32 address) {
  if (!block->barriers.count(address)) fail("barrier: used before it was initialised");
  return block->barriers[address];
}

static void check_phase(Barrier& found) {
  if (found.missing < 0) fail("barrier: more arrivals than it counts");
  if (found.missing || found.bytes) return;
  found.phase ^= 1;
  found.missing = found.count;
  ++progress;
}

static void arrive(Block* block, u32 address) {
  Barrier& found = barrier(block, address);
  --found.missing;
  check_phase(found);
}

static void bytes_come(Block* block, u32 address, long bytes) {
  Barrier& found = barrier(block, address);
  found.bytes -= bytes;
  check_phase(found);
}

static void arrive_at(Meeting& meeting, u32 threads, const std::function<void()>& last = [] {}) {
  if (++meeting.arrived < threads) return;
  last();
  meeting.arrived = 0;
  ++meeting.generation;
  ++progress;
}

static void meet(Meeting& meeting, u32 threads, const std::function<void()>& last = [] {}) {
  const u32 generation = meeting.generation;
  arrive_at(meeting, threads, last);
  wait_until([&] { return meeting.generation != generation; });
}

static u32 swizzled(u32 address, int width) {
  const u32 row = address >> 7;  // of 128 bytes; narrower swizzles permute by the upper ones of its bits' neighbours
  switch (width) {
    case 128: return address ^ (row & 7) << 4;
    case 64: return address ^ (row & 3) << 4;
    case 32: return address ^ (row & 1) << 4;
    case 0: return address;
  }
  fail("tensor map: unknown swizzle");
}

template <typename Move>
static void each_chunk(const TensorMap& map, u32 address, int column, int row, Move move) {
  const int width = map.box_columns * map.element_bytes;
  if (map.swizzle && width > map.swizzle) fail("tensor map: the box is wider than its swizzle");
  if (address % 128) fail("copy: shared memory not aligned to 128 bytes");
  if (column * map.element_bytes % 16) fail("copy: column not aligned to 16 bytes");
  if (map.row_bytes % 16 || map.matrix_bytes % 16) fail("tensor map: rows or matrices not aligned to 16 bytes");
  for (int i = 0; i < map.box_rows; ++i)
    for (int j = 0; j < width; j += 16) {
      const long r = (long)row + i, c = (long)column * map.element_bytes + j;
      const bool in_row = r >= 0 && r < map.rows;
      const long inside = in_row ? std::min(16l, map.columns * map.element_bytes - c) : 0;
      move(swizzled(address + i * width + j, map.swizzle), map.data + r * map.row_bytes + c, std::max(0l, inside));
    }
}

static float value_of(const u8* code) {
  if (operand_bytes == 2) {
    u16 half;
    std::memcpy(&half, code, 2);
    const u32 bits = (u32)half << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  const int exponent = *code >> 3 & 15, mantissa = *code & 7;
  if ((*code & 127) == 127) return NAN;
  const float size = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
  return *code & 128 ? -size : size;
}

static float operand(Block* block, u64 descriptor, u32 row, u32 k, bool across) {
  if (descriptor >> 62 != 1) fail("descriptor: not the 128-byte swizzle");
  if (descriptor >> 49 & 7) fail("descriptor: base offset");
  const u32 chunk = (descriptor >> 16 & 0x3FFF) << 4;
  const u32 start = (descriptor & 0x3FFF) << 4, stride = (descriptor >> 32 & 0x3FFF) << 4;
  const u32 down = across ? k : row, along = across ? row : k;
  const u32 inside = along * operand_bytes;
  const u32 address = swizzled(start + inside / 128 * chunk + down / 8 * stride + down % 8 * 128 + inside % 128, 128);
  return value_of(at(block, address, operand_bytes));
}

static void multiply_now(Fiber* fiber, const Product& product) {
  const u32 thread = fiber->thread_index.x % 128, warp = thread / 32, lane = thread % 32;
  for (int i = 0; i < product.count; ++i) {
    const u32 row = 16 * warp + lane / 4 + 8 * (i / 2 % 2), column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    float sum = product.accumulate ? product.values[i] : 0.0f;
    for (u32 k = 0; k < 32u / operand_bytes; ++k)
      sum += operand(fiber->block, product.a, row, k, a_across) * operand(fiber->block, product.b, column, k, b_across);
    product.values[i] = sum;
  }
}

static std::function<void()> kernel;

static void run_thread() {
  kernel();
  if (!now->open.empty() || !now->groups.empty()) fail("products: a thread ended before they were done");
  if (!now->store_groups.empty()) fail("stores: a thread ended before they were done");
  now->done = true;
  ++progress;
}

__attribute__((noinline)) static void prepare(Fiber& fiber) {
  fiber.stack.resize(96 << 10);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = fiber.stack.size();
  fiber.context.uc_link = &scheduler;
  makecontext(&fiber.context, run_thread, 0);
}

// Runs the blocks of a cluster, of which `first` is the first one's index.
static void run_cluster(Index first, u32 cluster, u32 threads, u32 shared) {
  blocks.clear(), fibers.clear(), warps.clear(), copies.clear();
  cluster_meeting = {};
  for (u32 rank = 0; rank < cluster; ++rank) {
    auto block = std::make_unique<Block>();
    block->index = {first.x + rank, first.y};
    block->rank = rank;
    block->shared.assign(shared, 0xFF);
    for (u32 thread = 0; thread < threads; ++thread) {
      auto fiber = std::make_unique<Fiber>();
      fiber->block = block.get();
      fiber->thread_index = {thread, 0};
      prepare(*fiber);
      fibers.push_back(std::move(fiber));
    }
    blocks.push_back(std::move(block));
  }
  std::vector<Fiber*> order;
  for (auto& fiber : fibers) order.push_back(fiber.get());
  while (!order.empty()) {
    const long before = progress;
    std::shuffle(order.begin(), order.end(), draw);
    for (Fiber* fiber : order) {
      now = fiber;
      swapcontext(&scheduler, &fiber->context);
    }
    std::vector<Fiber*> left;
    for (Fiber* fiber : order)
      if (!fiber->done) left.push_back(fiber);
    order = left;
    const bool had_copies = !copies.empty();
    std::vector<std::function<void()>> ready, later;
    for (auto& copy : copies) (eager || draw() % 4 == 0 ? ready : later).push_back(copy);
    copies = later;
    std::shuffle(ready.begin(), ready.end(), draw);
    for (auto& copy : ready) copy();
    if (!had_copies && before == progress) fail("deadlock: " + std::to_string(order.size()) + " threads wait");
  }
  for (auto& block : blocks)
    for (auto& [address, found] : block->barriers)
      if (found.bytes) fail("barrier: bytes are missing at the end");
}

}  // namespace model

static inline void __syncthreads() {
  model::meet(model::now->block->meetings[0], model::fibers.size() / model::blocks.size());
}

DEVICE u32 shared_address(const void* pointer) {
  return model::START + (u32)((const u8*)pointer - model::now->block->shared.data());
}

DEVICE void barrier_init(u32 barrier, u32 count) {
  if (barrier % 8) model::fail("barrier: not aligned to 8 bytes");
  model::at(model::now->block, barrier, 8);
  model::now->block->barriers[barrier] = {(int)count, (int)count, 0, 0};
}

DEVICE void barrier_init_done() {}
DEVICE void barrier_arrive(u32 barrier) { model::arrive(model::now->block, barrier); }
DEVICE void barrier_arrive_at(u32 barrier, u32 block) {
  if (model::blocks.size() <= block) model::fail("cluster: no such block");
  for (auto& fiber : model::fibers)
    if (fiber->block == model::blocks[block].get() && !fiber->done) return model::arrive(fiber->block, barrier);
  model::fail("cluster: a barrier of a block that has ended");
}

DEVICE void barrier_expect(u32 barrier, u32 bytes) {
  model::barrier(model::now->block, barrier).bytes += bytes;
  model::arrive(model::now->block, barrier);
}

DEVICE void barrier_wait(u32 barrier, u32 parity) {
  model::Barrier& found = model::barrier(model::now->block, barrier);
  model::wait_until([&] { return found.phase != parity; });
}

DEVICE void prefetch_map(const TensorMap&) {}

static void tma_load_to(model::Block* block, u32 to, const TensorMap& map, u32 barrier, int column, int row) {
  model::copies.push_back([=] {
    model::each_chunk(map, to, column, row, [&](u32 address, const u8* from, long bytes) {
      u8 chunk[16] = {};
      std::memcpy(chunk, from, bytes);
      std::memcpy(model::at(block, address, 16), chunk, 16);
    });
    model::bytes_come(block, barrier, (long)map.box_rows * map.box_columns * map.element_bytes);
  });
}

DEVICE void tma_load(u32 to, const TensorMap& map, u32 barrier, int column, int row) {
  tma_load_to(model::now->block, to, map, barrier, column, row);
}

DEVICE void tma_load_multicast(u32 to, const TensorMap& map, u32 barrier, int column, int row, u16 mask) {
  for (auto& block : model::blocks)
    if (mask >> block->rank & 1) tma_load_to(block.get(), to, map, barrier, column, row);
}

// The map of one of several matrices; one that there is not has no rows.
static TensorMap matrix_of(TensorMap map, int matrix) {
  if (matrix < 0 || matrix >= map.matrices) map.rows = 0;
  map.data += matrix * map.matrix_bytes;
  return map;
}

DEVICE void tma_load_of(u32 to, const TensorMap& map, u32 barrier, int column, int row, int matrix) {
  tma_load(to, matrix_of(map, matrix), barrier, column, row);
}

DEVICE void tma_load_multicast_of(u32 to, const TensorMap& map, u32 barrier, int column, int row, int matrix,
                                  u16 mask) {
  tma_load_multicast(to, matrix_of(map, matrix), barrier, column, row, mask);
}

DEVICE void tma_store(const TensorMap& map, u32 from, int column, int row) {
  model::Block* block = model::now->block;
  model::now->open_stores.push_back([=] {
    model::each_chunk(map, from, column, row,
                      [&](u32 address, u8* to, long bytes) { std::memcpy(to, model::at(block, address, 16), bytes); });
  });
  if (model::eager) {
    for (auto& store : model::now->open_stores) store();
    model::now->open_stores.clear();
  }
}

DEVICE void tma_add(const TensorMap& map, u32 from, int column, int row) {
  model::Block* block = model::now->block;
  model::now->open_stores.push_back([=] {
    model::each_chunk(map, from, column, row, [&](u32 address, u8* to, long bytes) {
      for (long i = 0; i < bytes; i += 4) {
        float value, sum;
        std::memcpy(&value, model::at(block, address + i, 4), 4);
        std::memcpy(&sum, to + i, 4);
        sum += value;
        std::memcpy(to + i, &sum, 4);
      }
    });
  });
}

DEVICE void store_commit() {
  model::now->store_groups.push_back(model::now->open_stores);
  model::now->open_stores.clear();
}

template <int MOST>
DEVICE void store_wait_read() {
  while (model::now->store_groups.size() > MOST) {
    for (auto& store : model::now->store_groups.front()) store();
    model::now->store_groups.pop_front();
  }
}

DEVICE void store_wait_all() { store_wait_read<0>(); }

DEVICE void fence_async_shared() { model::now->unfenced = false; }

DEVICE void sync_threads(u32 barrier, u32 threads) {
  if (barrier == 0 || barrier > 15) model::fail("named barrier: number from 1 to 15");
  if (model::now->unfenced) model::fail("named barrier: writes to shared memory are not fenced for the copy engine");
  model::meet(model::now->block->meetings[barrier], threads);
}

DEVICE void arrive_threads(u32 barrier, u32 threads) {
  if (barrier == 0 || barrier > 15) model::fail("named barrier: number from 1 to 15");
  model::arrive_at(model::now->block->meetings[barrier], threads);
}

DEVICE u32 uniform(u32 value) { return value; }

DEVICE void sync_warp() {
  model::meet(model::warps[{model::now->block->rank, model::now->thread_index.x / 32}].meeting, 32);
}

DEVICE float of_lane(float value, int from) {
  auto& warp = model::warps[{model::now->block->rank, model::now->thread_index.x / 32}];
  const u32 lane = model::now->thread_index.x % 32;
  float* shared = warp.shared[model::now->shuffles++ % 2];  // the other half may still be read
  shared[lane] = value;
  model::meet(warp.meeting, 32);
  return shared[from];
}

DEVICE float of_quad(float value, int place) {
  return of_lane(value, (int)(model::now->thread_index.x % 32 / 4 * 4) + place);
}

DEVICE u32 cluster_rank() { return model::now->block->rank; }

DEVICE void sync_cluster() {
  for (auto& fiber : model::fibers)
    if (fiber->done) model::fail("cluster: a thread ended before the others met");
  model::meet(model::cluster_meeting, model::fibers.size());
}

DEVICE void meet_cluster() { sync_cluster(); }

DEVICE float load_of_block(u32 address, u32 block) {
  float value;
  std::memcpy(&value, model::at(model::blocks[block].get(), address, 4), 4);
  return value;
}

template <int COUNT>
DEVICE void registers_down() {}
template <int COUNT>
DEVICE void registers_up() {}

DEVICE void products_begin() { model::now->fenced_products = true; }

template <int COUNT>
DEVICE void multiply(float (&values)[COUNT], u64 a, u64 b, bool accumulate) {
  if (!model::now->fenced_products) model::fail("products: begun without a fence");
  model::now->open.push_back({values, COUNT, a, b, accumulate});
}

DEVICE void products_commit() {
  model::now->groups.push_back(model::now->open);
  model::now->open.clear();
  if (model::eager) {
    for (auto& product : model::now->groups.back()) model::multiply_now(model::now, product);
    model::now->groups.back().clear();
  }
}

template <int MOST>
DEVICE void products_wait() {
  // The warps of a group do not go in step, and others run before the products are done.
  if (!model::eager) model::yield();
  while (model::now->groups.size() > MOST) {
    for (auto& product : model::now->groups.front()) model::multiply_now(model::now, product);
    model::now->groups.pop_front();
  }
  ++model::progress;
  model::now->fenced_products = false;
}

template <int COUNT>
DEVICE void settle(float (&values)[COUNT]) {
  for (auto& group : model::now->groups)
    for (auto& product : group)
      if (product.values == values) model::fail("products: used before they were done");
}

DEVICE void store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d) {
  const u32 thread = model::now->thread_index.x, lane = thread % 32;
  model::Warp& warp = model::warps[{model::now->block->rank, thread / 32}];
  if (address % 16) model::fail("stmatrix: not aligned to 16 bytes");
  warp.rows[lane] = {address, {a, b, c, d}};
  model::Block* block = model::now->block;
  model::meet(warp.meeting, 32, [&] {
    for (u32 matrix = 0; matrix < 4; ++matrix)
      for (u32 row = 0; row < 8; ++row)
        for (u32 pair = 0; pair < 4; ++pair)
          std::memcpy(model::at(block, warp.rows[8 * matrix + row].address + 4 * pair, 4),
                      &warp.rows[4 * row + pair].values[matrix], 4);
  });
  model::now->unfenced = true;
}

DEVICE void store_shared(u32 address, float value) { std::memcpy(model::at(model::now->block, address, 4), &value, 4); }

DEVICE float load_shared(u32 address) {
  float value;
  std::memcpy(&value, model::at(model::now->block, address, 4), 4);
  return value;
}

DEVICE void store_shared_word(u32 address, u32 value) {
  std::memcpy(model::at(model::now->block, address, 4), &value, 4);
  model::now->unfenced = true;
}

DEVICE u32 load_shared_word(u32 address) {
  u32 value;
  std::memcpy(&value, model::at(model::now->block, address, 4), 4);
  return value;
}

DEVICE void store_shared_pair(u32 address, float first, float second) {
  if (address % 8) model::fail("st.shared.v2: not aligned to 8 bytes");
  store_shared(address, first);
  store_shared(address + 4, second);
  model::now->unfenced = true;
}

DEVICE u32 rounded(float value) {
  u32 bits;
  std::memcpy(&bits, &value, 4);
  return value != value ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

DEVICE u32 bfloat16_pair(float first, float second) { return rounded(first) | rounded(second) << 16; }

DEVICE float bfloat16_value(u16 half) {
  const u32 bits = (u32)half << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

struct Four {
  float of[4];
};

DEVICE Four load_shared_four(u32 address) {
  if (address % 16) model::fail("ld.shared.v4: not aligned to 16 bytes");
  Four found;
  std::memcpy(found.of, model::at(model::now->block, address, 16), 16);
  return found;
}

DEVICE Four load_constant_four(const float* pointer) {
  Four found;
  if ((u64)pointer % 16) model::fail("ld.global.v4: not aligned to 16 bytes");
  std::memcpy(found.of, pointer, 16);
  return found;
}

DEVICE void load_shared_pair(u32 address, float& first, float& second) {
  if (address % 8) model::fail("ld.shared.v2: not aligned to 8 bytes");
  first = load_shared(address);
  second = load_shared(address + 4);
}

DEVICE float load_constant(const float* pointer) { return *pointer; }
DEVICE u16 load_constant(const u16* pointer) { return *pointer; }
DEVICE void start_next() {}
DEVICE void wait_for_previous() {}
