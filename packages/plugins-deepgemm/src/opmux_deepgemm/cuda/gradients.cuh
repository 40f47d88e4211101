// y[g] += dy^T x over the rows of group g, persistent: each block computes tiles of BLOCK_M x BLOCK_N of y's N x K.
//
// Threads are shared out as in large.cuh: a producer copies blocks of 64 rows of dy and x into a ring, consumers
// multiply BLOCK_M / CONSUMERS columns of dy by the tile's columns of x. Both operands lie across the dim that is
// summed, so the matrix unit transposes both as it reads them. A stage holds them in chunks of 64 columns, 128 bytes of
// each row.
//
// Groups begin at any row and have any number of rows; both are data on the device. The last block of a group may reach
// into the rows of the next one, or of none: these are set to 0 in shared memory, of both operands, since NaN times 0
// is NaN. Each element is added to once, so equal inputs give equal bits. Groups without rows add nothing.

constexpr int BLOCK_ROWS = 64;  // that are summed, of a stage
constexpr int M_TILES = (N + BLOCK_M - 1) / BLOCK_M, N_TILES = (K + BLOCK_N - 1) / BLOCK_N, TILES = M_TILES * N_TILES;
constexpr int PARTS = BLOCK_M / CONSUMERS / 64, VALUES = BLOCK_N / 2;
constexpr u32 CHUNK_BYTES = BLOCK_ROWS * 128;  // of 64 columns
constexpr u32 DY_CHUNKS = BLOCK_M / 64, X_CHUNKS = BLOCK_N / 64;
constexpr u32 STAGE_BYTES = (DY_CHUNKS + X_CHUNKS) * CHUNK_BYTES;
constexpr int SLICE_COLUMNS = 32, SLICES = BLOCK_N / SLICE_COLUMNS;  // of float32, 128 bytes of each row
constexpr u32 SLICE_BYTES = 64 * 128;
constexpr u32 THREADS = 128 * (CONSUMERS + 1);
#ifdef TURNED_OPERANDS
// DY_TURNED, X_TURNED: the operand's rows are next to each other, instead of its columns. A stage holds it as rows of
// 64 summed values, of one column each, and the matrix unit reads it as it lies.
constexpr u32 DY_STEP = DY_TURNED ? 32 : 2048;  // bytes to the next 16 summed rows
constexpr u32 X_STEP = X_TURNED ? 32 : 2048;
#endif  // TURNED_OPERANDS

// A tile, of those that are left, and the group that it is in: its first row, how many it has, blocks of them.
struct Walk {
  int tile, group, start, rows, blocks;
#ifdef TURNED_OPERANDS
  // Copies begin at multiples of 8 rows: where a group begins elsewhere, its first block has so many rows of the group
  // before, which are set to 0. `start` and `rows` count them.
  int lead = 0;
#endif  // TURNED_OPERANDS
};

// Goes on to the group that the tile is in; says whether there is one. `tile` counts from the group's first.
DEVICE bool find(Walk& walk, const int* offsets, const int* sizes, int groups, int m) {
  while (walk.group < 0 || walk.rows <= 0 || walk.tile >= TILES) {
    if (walk.group >= 0 && walk.rows > 0) walk.tile -= TILES;
    if (++walk.group >= groups) return false;
    walk.start = offsets[walk.group];
    if (walk.start < 0) walk.start = m;  // offsets and counts that break the op's rules must not break memory
    walk.rows = sizes ? sizes[walk.group] : offsets[walk.group + 1] - walk.start;
    walk.rows = walk.rows < m - walk.start ? walk.rows : m - walk.start;
#ifdef TURNED_OPERANDS
    if (walk.rows > 0) {
      walk.lead = walk.start % 8;
      walk.start -= walk.lead;
      walk.rows += walk.lead;
    }
#endif  // TURNED_OPERANDS
    walk.blocks = (walk.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
  }
  return true;
}

#ifdef TURNED_OPERANDS
// Copies a block of rows of COUNT chunks of columns.
template <bool TURNED, u32 COUNT>
DEVICE void load(u32 to, const TensorMap& map, u32 barrier, int column, int summed) {
  if constexpr (TURNED) {
    tma_load(to, map, barrier, summed, column);
  } else {
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) tma_load(to + i * CHUNK_BYTES, map, barrier, column + 64 * (int)i, summed);
  }
}

// Sets the rows of a block below `from` and not below `to` to 0, in COUNT chunks of columns; so many threads share the
// work.
template <bool TURNED, u32 COUNT>
DEVICE void keep_rows(u32 chunks, int from, int to, u32 thread, u32 threads) {
  if constexpr (TURNED) {
    for (u32 i = thread; i < COUNT * 64 * 32; i += threads) {
      const int row = (int)(i % 32) * 2;  // the first of two, which a word of a column holds
      if (row >= from && row + 2 <= to) continue;
      const u32 kept = (row >= from && row < to ? 0xFFFFu : 0) | (row + 1 >= from && row + 1 < to ? 0xFFFF0000u : 0);
      const u32 at = chunks + swizzled<128>(i / 32 * 128 + 2 * row);
      store_shared_word(at, kept ? load_shared_word(at) & kept : 0);
    }
  } else {
    for (u32 i = 8 * thread; i < COUNT * CHUNK_BYTES; i += 8 * threads) {
      const int row = (int)(i / 128 % BLOCK_ROWS);
      if (row < from || row >= to) store_shared_pair(chunks + i, 0.0f, 0.0f);
    }
  }
}

#else  // TURNED_OPERANDS
// Sets the rows from `first` on to 0, in COUNT chunks; so many threads share the work.
template <u32 COUNT>
DEVICE void clear_rows(u32 chunks, u32 first, u32 thread, u32 threads) {
  const u32 bytes = (BLOCK_ROWS - first) * 128;
#pragma unroll
  for (u32 chunk = 0; chunk < COUNT; ++chunk)
    for (u32 i = 8 * thread; i < bytes; i += 8 * threads)
      store_shared_pair(chunks + chunk * CHUNK_BYTES + first * 128 + i, 0.0f, 0.0f);
}

#endif  // TURNED_OPERANDS
// Adds the first rows of a part, where the next 64 are not all the group's.
DEVICE void add_rows(float* y, const float (&values)[VALUES], int rows, int column) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int inside = (int)fragment_row(threadIdx.x) + 8 * half;
    if (inside >= rows) continue;
#pragma unroll
    for (int j = 0; j < BLOCK_N / 8; ++j) {
      const int at = column + 8 * j + (int)fragment_column(threadIdx.x);
      if (at >= K) continue;
      float* to = y + (long long)inside * K + at;
      to[0] += values[4 * j + 2 * half];
      to[1] += values[4 * j + 2 * half + 1];
    }
  }
}

DEVICE void write_slice(u32 slice, const float (&values)[VALUES], int first) {
#pragma unroll
  for (int j = 0; j < SLICE_COLUMNS / 8; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* pair = &values[4 * (first + j) + 2 * half];
      const u32 row = fragment_row(threadIdx.x) + 8 * half;
      store_shared_pair(slice + swizzled<128>(row * 128 + (8 * j + fragment_column(threadIdx.x)) * 4), pair[0],
                        pair[1]);
    }
}

KERNEL(THREADS)
product(MAP dy_map, MAP x_map, MAP y_map, float* y, const int* offsets, const int* sizes, int m, int groups) {
  DYNAMIC_SHARED_MEMORY(memory);
  const u32 ring = (shared_address(memory) + 1023) & ~1023u;
  const u32 slices = ring + STAGES * STAGE_BYTES;
  const u32 full = slices + 2 * CONSUMERS * SLICE_BYTES, empty = full + 8 * STAGES;
  const u32 thread = threadIdx.x, group = uniform(thread / 128);

  if (thread == 0) {
    prefetch_map(dy_map);
    prefetch_map(x_map);
    prefetch_map(y_map);
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, 4 * CONSUMERS);
    }
    barrier_init_done();
  }
  __syncthreads();
  start_next();
  wait_for_previous();

  u32 stage = 0, phase = 0;
  Walk walk{(int)blockIdx.x, -1, 0, 0, 0};
  if (group == CONSUMERS) {
    if constexpr (CONSUMERS > 1) registers_down<24>();
    if (thread == 128 * CONSUMERS) {
      for (; find(walk, offsets, sizes, groups, m); walk.tile += gridDim.x) {
        const int row = walk.tile % M_TILES * BLOCK_M, column = walk.tile / M_TILES * BLOCK_N;
        for (int block = 0; block < walk.blocks; ++block) {
          const u32 at = ring + stage * STAGE_BYTES;
          const int summed = walk.start + block * BLOCK_ROWS;
          barrier_wait(empty + 8 * stage, phase ^ 1);
          barrier_expect(full + 8 * stage, STAGE_BYTES);
#ifdef TURNED_OPERANDS
          load<DY_TURNED, DY_CHUNKS>(at, dy_map, full + 8 * stage, row, summed);
          load<X_TURNED, X_CHUNKS>(at + DY_CHUNKS * CHUNK_BYTES, x_map, full + 8 * stage, column, summed);
#else  // TURNED_OPERANDS
#pragma unroll
          for (u32 i = 0; i < DY_CHUNKS; ++i)
            tma_load(at + i * CHUNK_BYTES, dy_map, full + 8 * stage, row + 64 * (int)i, summed);
#pragma unroll
          for (u32 i = 0; i < X_CHUNKS; ++i)
            tma_load(at + (DY_CHUNKS + i) * CHUNK_BYTES, x_map, full + 8 * stage, column + 64 * (int)i, summed);
#endif  // TURNED_OPERANDS
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
  } else {
    if constexpr (CONSUMERS > 1) registers_up<240>();
    const u32 lane = thread % 32;
    const bool leader = thread % 128 == 0;
    u32 slice = 0;
    float total[PARTS][VALUES] = {};
    for (; find(walk, offsets, sizes, groups, m); walk.tile += gridDim.x) {
      const int row = walk.tile % M_TILES * BLOCK_M + group * PARTS * 64, column = walk.tile / M_TILES * BLOCK_N;
      u32 read = 0;  // the stage of the products that may not be done yet
      for (int block = 0; block < walk.blocks; ++block) {
        const u32 dy_at = ring + stage * STAGE_BYTES + group * PARTS * CHUNK_BYTES;
        const u32 x_at = ring + stage * STAGE_BYTES + DY_CHUNKS * CHUNK_BYTES;
        const int left = walk.rows - block * BLOCK_ROWS;
        barrier_wait(full + 8 * stage, phase);
#ifdef TURNED_OPERANDS
        const int first = block == 0 ? walk.lead : 0;
        if (first > 0 || left < BLOCK_ROWS) {
          keep_rows<DY_TURNED, PARTS>(dy_at, first, left, thread % 128, 128);
          keep_rows<X_TURNED, X_CHUNKS>(x_at, first, left, thread, 128 * CONSUMERS);
          fence_async_shared();
          sync_threads(1 + CONSUMERS, 128 * CONSUMERS);
        }
        const u64 dy_from = DY_TURNED ? descriptor(dy_at) : across_descriptor(dy_at, CHUNK_BYTES);
        const u64 x_from = X_TURNED ? descriptor(x_at) : across_descriptor(x_at, CHUNK_BYTES);
#else   // TURNED_OPERANDS
        if (left < BLOCK_ROWS) {
          clear_rows<PARTS>(dy_at, left, thread % 128, 128);
          clear_rows<X_CHUNKS>(x_at, left, thread, 128 * CONSUMERS);
          fence_async_shared();
          sync_threads(1 + CONSUMERS, 128 * CONSUMERS);
        }
        const u64 dy_from = across_descriptor(dy_at, CHUNK_BYTES), x_from = across_descriptor(x_at, CHUNK_BYTES);
#endif  // TURNED_OPERANDS
        products_begin();
#pragma unroll
        for (int i = 0; i < BLOCK_ROWS / 16; ++i)
#pragma unroll
          for (int p = 0; p < PARTS; ++p)
#ifdef TURNED_OPERANDS
            multiply(total[p], advanced(dy_from, p * CHUNK_BYTES + DY_STEP * i), advanced(x_from, X_STEP * i),
                     block + i != 0);
#else   // TURNED_OPERANDS
            multiply(total[p], advanced(dy_from, p * CHUNK_BYTES + 2048 * i), advanced(x_from, 2048 * i),
                     block + i != 0);
#endif  // TURNED_OPERANDS
        products_commit();
        products_wait<1>();
        if (block > 0 && lane == 0) barrier_arrive(empty + 8 * read);
        read = stage;
        if (++stage == STAGES) stage = 0, phase ^= 1;
      }
      products_wait<0>();
#pragma unroll
      for (int p = 0; p < PARTS; ++p) settle(total[p]);
      if (lane == 0) barrier_arrive(empty + 8 * read);

#pragma unroll
      for (int p = 0; p < PARTS; ++p) {
        const int first = row + 64 * p, left = N - first;
        const long long y_row = (long long)walk.group * N + first;
        if (left < 64) {  // the next rows are those of the next group
          if (left > 0) add_rows(y + y_row * K, total[p], left, column);
          continue;
        }
#pragma unroll
        for (int i = 0; i < SLICES; ++i) {
          const int at = column + i * SLICE_COLUMNS;
          const u32 to = slices + (2 * group + slice) * SLICE_BYTES;
          if (leader) store_wait_read<1>();  // of this slice's last use: the other one may still be read
          sync_threads(1 + group, 128);
          write_slice(to, total[p], i * SLICE_COLUMNS / 8);
          fence_async_shared();
          sync_threads(1 + group, 128);
          if (leader) {
            if (at < K) tma_add(y_map, to, at, (int)y_row);
            store_commit();
          }
          slice ^= 1;
        }
      }
    }
    if (leader) store_wait_all();
  }
}
