// y[g] += dy^T x over the rows of group g, of codes with scales, persistent: each block computes tiles of
// BLOCK_M x BLOCK_N of y's N x K.
//
// Both operands lie across y's rows and columns, codes of neighbouring rows next to each other, so that the dim which
// is summed is k of the matrix unit, which transposes no codes. Threads are shared out as in large.cuh, and so are
// barriers, clusters, turns and slices: a producer copies 128 rows of BLOCK_M columns of dy and BLOCK_N columns of x
// into a ring, consumers multiply BLOCK_M / CONSUMERS columns of dy by the tile's columns of x, scale the products and
// add them up in float32. In a cluster of two blocks, whose tiles lie below each other, each copies half of their
// common columns of x.
//
// Scales belong to 128 rows of a column, counted from row 0. A stage has the scales of its columns of x, which the
// producer's other warps bring. Groups begin at any row and have any number of rows; both are data on the device. Rows
// of a group's first and last block that are not its own are set to 0 in shared memory, in both operands, since NaN
// times 0 is NaN. Each element of y is added to once, so equal inputs give equal bits. Groups without rows add nothing.

constexpr int BLOCK_ROWS = 128;  // that are summed, of a stage: those that share a scale
constexpr int UNITS = (N + CLUSTER * BLOCK_M - 1) / (CLUSTER * BLOCK_M);  // rows of tiles, of all blocks of a cluster
constexpr int N_TILES = (K + BLOCK_N - 1) / BLOCK_N, TILES = UNITS * N_TILES;
constexpr int COLUMNS = BLOCK_M / CONSUMERS, PARTS = COLUMNS / 64, VALUES = BLOCK_N / 2;
constexpr u32 DY_BYTES = BLOCK_M * 128, STAGE_BYTES = DY_BYTES + BLOCK_N * 128;
constexpr int SLICE_COLUMNS = 32, SLICES = BLOCK_N / SLICE_COLUMNS;  // of float32, 128 bytes of each row
constexpr u32 SLICE_BYTES = 64 * 128;
constexpr u32 THREADS = 128 * (CONSUMERS + 1);
constexpr u32 LOADERS = STAGES < 3 ? STAGES : 3;   // warps that bring scales, no more than stages, as in large.cuh
constexpr u32 CLEARED = 1 + CONSUMERS, TURNS = 4;  // named barriers, behind those for results
// That empty a stage: one of each thread that reads scales in it, and one of each warp of the other block. As in
// large.cuh, threads arrive for themselves so that the race checker can follow them.
constexpr u32 ARRIVALS = 128 * CONSUMERS + 4 * CONSUMERS * (CLUSTER - 1);

// A tile, of those that are left, and the group that it is in: where its rows begin and end, its first block of rows
// and how many there are.
struct Walk {
  int tile, group, start, stop, first, blocks;
};

// Goes on to the group that the tile is in; says whether there is one. `tile` counts from the group's first.
DEVICE bool find(Walk& walk, const int* offsets, const int* sizes, int groups, int m) {
  while (walk.group < 0 || walk.blocks == 0 || walk.tile >= TILES) {
    if (walk.group >= 0 && walk.blocks > 0) walk.tile -= TILES;
    if (++walk.group >= groups) return false;
    walk.start = offsets[walk.group];
    if (walk.start < 0) walk.start = m;  // offsets and counts that break the op's rules must not break memory
    int rows = sizes ? sizes[walk.group] : offsets[walk.group + 1] - walk.start;
    rows = rows < m - walk.start ? rows : m - walk.start;
    walk.stop = walk.start + rows;
    walk.first = walk.start / BLOCK_ROWS;
    walk.blocks = rows > 0 ? (walk.stop + BLOCK_ROWS - 1) / BLOCK_ROWS - walk.first : 0;
  }
  return true;
}

// The tile's first column of dy and of x. GROUP rows of tiles are walked together, down first.
struct Place {
  int row, column;
};

DEVICE Place place_of(int tile, int rank) {
  constexpr int OF_GROUP = GROUP * N_TILES;
  const int first = tile / OF_GROUP * GROUP, inside = tile % OF_GROUP;
  const int rows = UNITS - first < GROUP ? UNITS - first : GROUP;
  return {((first + inside % rows) * CLUSTER + rank) * BLOCK_M, inside / rows * BLOCK_N};
}

// Sets codes to 0, of COUNT columns, in rows of the block below `from` or not below `to`; so many threads share the
// work.
template <u32 COUNT>
DEVICE void clear_rows(u32 columns, int from, int to, u32 thread, u32 threads) {
  for (u32 i = thread; i < COUNT * 32; i += threads) {
    const int row = (int)(i % 32) * 4;  // the first of four, which a word of a column holds
    if (row >= from && row + 4 <= to) continue;
    u32 kept = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (row + j >= from && row + j < to) kept |= 0xFFu << 8 * j;
    const u32 at = columns + swizzled<128>(i / 32 * 128 + row);
    store_shared_word(at, kept ? load_shared_word(at) & kept : 0);
  }
}

// total += products * scales.
DEVICE void add_scaled(float (&total)[VALUES], const float (&products)[VALUES], const float (&dy)[2], u32 x_scales) {
#pragma unroll
  for (int j = 0; j < VALUES / 4; ++j) {
    const u32 at = x_scales + (8 * j + fragment_column(threadIdx.x)) * 4;
    const float x[2] = {load_shared(at), load_shared(at + 4)};
#pragma unroll
    for (int i = 0; i < 4; ++i) total[4 * j + i] += products[4 * j + i] * (dy[i / 2] * x[i % 2]);
  }
}

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

// Says to every block that filled it that a stage has been read.
DEVICE void release(u32 empty, u32 lane) {
  barrier_arrive(empty);
  if constexpr (CLUSTER > 1) {
    if (lane < CLUSTER && lane != cluster_rank()) barrier_arrive_at(empty, lane);
  }
}

KERNEL(THREADS)
product(MAP dy_map, MAP x_map, MAP y_map, float* y, const float* dy_scale, const float* x_scale, const int* offsets,
        const int* sizes, long long dy_scale_block, long long dy_scale_column, long long x_scale_block,
        long long x_scale_column, int m, int groups) {
  DYNAMIC_SHARED_MEMORY(memory);
  const u32 ring = (shared_address(memory) + 1023) & ~1023u;
  const u32 slices = ring + STAGES * STAGE_BYTES;
  const u32 full = slices + 2 * CONSUMERS * SLICE_BYTES, empty = full + 8 * STAGES;
  const u32 x_scales = empty + 8 * STAGES;  // of the columns of x of each stage
  const u32 thread = threadIdx.x, group = uniform(thread / 128);
  const int rank = CLUSTER > 1 ? (int)cluster_rank() : 0;

  if (thread == 0) {
    prefetch_map(dy_map);
    prefetch_map(x_map);
    prefetch_map(y_map);
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(full + 8 * i, 33);  // who announces the bytes, and each thread of a warp that brings scales
      barrier_init(empty + 8 * i, ARRIVALS);
    }
    barrier_init_done();
  }
  if constexpr (CLUSTER > 1) meet_cluster();
  else __syncthreads();
  start_next();
  wait_for_previous();

  const int step = (int)gridDim.x / CLUSTER;
  u32 stage = 0, phase = 0;
  Walk walk{(int)blockIdx.x / CLUSTER, -1, 0, 0, 0, 0};
  if (group == CONSUMERS) {
    if constexpr (CONSUMERS > 1) registers_down<40>();
    const u32 lane = thread % 32, turn = thread % 128 / 32;
    if (thread == 128 * CONSUMERS) {
      for (; find(walk, offsets, sizes, groups, m); walk.tile += step) {
        const Place place = place_of(walk.tile, rank);
        for (int block = 0; block < walk.blocks; ++block) {
          const u32 at = ring + stage * STAGE_BYTES;
          const int rows = (walk.first + block) * BLOCK_ROWS;
          barrier_wait(empty + 8 * stage, phase ^ 1);
          barrier_expect(full + 8 * stage, STAGE_BYTES);
          tma_load(at, dy_map, full + 8 * stage, rows, place.row);
          if constexpr (CLUSTER > 1) {
            const int half = rank * (BLOCK_N / CLUSTER);
            tma_load_multicast(at + DY_BYTES + half * 128, x_map, full + 8 * stage, rows, place.column + half,
                               (1 << CLUSTER) - 1);
          } else {
            tma_load(at + DY_BYTES, x_map, full + 8 * stage, rows, place.column);
          }
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    } else if (turn > 0) {
      u32 count = 1;  // of the warps whose turn it is
      for (; find(walk, offsets, sizes, groups, m); walk.tile += step) {
        const Place place = place_of(walk.tile, rank);
        for (int block = 0; block < walk.blocks; ++block) {
          if (count == turn) {
            barrier_wait(empty + 8 * stage, phase ^ 1);
#pragma unroll
            for (int i = 0; i < BLOCK_N; i += 32) {
              const int at = place.column + i + (int)lane;
              const float* column = x_scale + (at < K ? at : K - 1) * x_scale_column;
              store_shared(x_scales + (stage * BLOCK_N + i + lane) * 4,
                           load_constant(column + (walk.first + block) * x_scale_block));
            }
            barrier_arrive(full + 8 * stage);
          }
          if (++count > LOADERS) count = 1;
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
  } else {
    if constexpr (CONSUMERS > 1) registers_up<232>();
    const u32 lane = thread % 32;
    const bool leader = thread % 128 == 0;
    u32 slice = 0;
    float total[PARTS][VALUES] = {};
    float part[PARTS][VALUES] = {};
    if (ALTERNATE > 0 && group == 1) arrive_threads(TURNS, 256);  // the first turn is the other one's
    for (; find(walk, offsets, sizes, groups, m); walk.tile += step) {
      const Place place = place_of(walk.tile, rank);
      const int row = place.row + group * COLUMNS;
      const float* of_dy[2 * PARTS];
      float next[PARTS][2];
#pragma unroll
      for (int i = 0; i < 2 * PARTS; ++i) {
        const int at = row + 64 * (i / 2) + (int)fragment_row(thread) + 8 * (i % 2);
        of_dy[i] = dy_scale + (at < N ? at : N - 1) * dy_scale_column + walk.first * dy_scale_block;
        next[i / 2][i % 2] = load_constant(of_dy[i]);
      }
#pragma unroll
      for (int p = 0; p < PARTS; ++p)
#pragma unroll
        for (int i = 0; i < VALUES; ++i) total[p][i] = 0.0f;

      for (int block = 0; block < walk.blocks; ++block) {
        const u32 dy_at = ring + stage * STAGE_BYTES + group * COLUMNS * 128,
                  x_at = ring + stage * STAGE_BYTES + DY_BYTES;
        const int begin = (walk.first + block) * BLOCK_ROWS;
        barrier_wait(full + 8 * stage, phase);
        if (begin < walk.start || begin + BLOCK_ROWS > walk.stop) {
          clear_rows<COLUMNS>(dy_at, walk.start - begin, walk.stop - begin, thread % 128, 128);
          clear_rows<BLOCK_N>(x_at, walk.start - begin, walk.stop - begin, thread, 128 * CONSUMERS);
          fence_async_shared();
          sync_threads(CLEARED, 128 * CONSUMERS);
        }
        float scales[PARTS][2];
        const long long ahead = block + 1 < walk.blocks ? dy_scale_block : 0;  // no branch around loads
#pragma unroll
        for (int i = 0; i < 2 * PARTS; ++i) scales[i / 2][i % 2] = next[i / 2][i % 2];
        const u64 dy_from = descriptor(dy_at), x_from = descriptor(x_at);
#pragma unroll
        for (int p = 0; p < PARTS; ++p) settle(part[p]);
        if constexpr (ALTERNATE > 0) sync_threads(TURNS + group, 256);
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int p = 0; p < PARTS; ++p)
            multiply(part[p], advanced(dy_from, p * 8192 + 32 * i), advanced(x_from, 32 * i), i != 0);
          if (i + 1 == ALTERNATE && i < 3) products_commit();
        }
        products_commit();
#pragma unroll
        for (int i = 0; i < 2 * PARTS; ++i) {
          of_dy[i] += ahead;
          next[i / 2][i % 2] = load_constant(of_dy[i]);
        }
        if constexpr (ALTERNATE > 0) {
          products_wait<(ALTERNATE < 4)>();
          arrive_threads(TURNS + 1 - group, 256);
        }
        products_wait<0>();
#pragma unroll
        for (int p = 0; p < PARTS; ++p) settle(part[p]);
#pragma unroll
        for (int p = 0; p < PARTS; ++p) add_scaled(total[p], part[p], scales[p], x_scales + stage * BLOCK_N * 4);
        release(empty + 8 * stage, lane);
        if (++stage == STAGES) stage = 0, phase ^= 1;
      }

#pragma unroll
      for (int p = 0; p < PARTS; ++p) {
        const int first = row + 64 * p, left = N - first;
        const long long y_row = (long long)walk.group * N + first;
        if (left < 64) {  // the next rows are those of the next group
          if (left > 0) add_rows(y + y_row * K, total[p], left, place.column);
          continue;
        }
#pragma unroll
        for (int i = 0; i < SLICES; ++i) {
          const int at = place.column + i * SLICE_COLUMNS;
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
    if (ALTERNATE > 0 && group == 0) sync_threads(TURNS, 256);  // the turn that the other one passed on last
  }
  // Another block of the cluster may still write to this one's memory, or arrive at its barriers.
  if constexpr (CLUSTER > 1) meet_cluster();
}
