// EARLY: the kernel of large.cuh in another order, for codes whose products are scaled run by run, one after the other.
//
// The sums of a tile and the products of a run are in different registers. So a consumer begins the first run of its
// next tile before it has written the results of the last one, and writes those of each run while the matrix unit makes
// the same run of the next tile's first block of k: what a run has written is free for its next sums. The matrix unit
// has work at a tile's end, and the first scales of a tile have come when they are needed.
//
// Stages are waited for and released in the same order as without EARLY: a consumer has released all of a tile's before
// it waits for the next one's, and no stage waits for a store.

constexpr int RUN_SLICES = BLOCK_N / CUTS / SLICE_COLUMNS;
constexpr int TOGETHER = STAGED ? RUN_SLICES : RUN_SLICES % 2 ? 1 : 2;  // that are written between two meetings
constexpr u32 PLACES = RESULT_SLICES / TOGETHER;                        // of a consumer, for so many slices each
static_assert(SCALED && !W_BY_ROW && !OVERLAP && ALTERNATE == 0 && SETS == 1);
static_assert(BLOCK_N / CUTS % SLICE_COLUMNS == 0);

KERNEL(THREADS)
product(MAP x_map, MAP w_map, MAP y_map, const float* x_scale, const float* w_scale, const u16* bias,
        long long x_scale_row, long long x_scale_block, long long w_scale_row, long long w_scale_block, int m
#ifdef GROUPS
        ,
        u8* y, const int* offsets, const int* sizes, long long x_scale_group, long long w_scale_group, int groups
#endif
) {
  DYNAMIC_SHARED_MEMORY(memory);
  const u32 ring = (shared_address(memory) + 1023) & ~1023u;
  const u32 slices = ring + STAGES * STAGE_BYTES;
  const u32 full = slices + RESULT_SLICES * CONSUMERS * SLICE_BYTES, empty = full + 8 * STAGES;
  const u32 thread = threadIdx.x, group = uniform(thread / 128);
  const int rank = CLUSTER > 1 ? (int)cluster_rank() : 0;

  if (thread == 0) {
    prefetch_map(x_map);
    prefetch_map(w_map);
    prefetch_map(y_map);
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(full + 8 * i, FILLERS);
      barrier_init(empty + 8 * i, ARRIVALS);
    }
    barrier_init_done();
  }
  if constexpr (CLUSTER > 1) meet_cluster();
  else __syncthreads();
  start_next();
  wait_for_previous();

#ifdef GROUPS
  constexpr bool MASKED_ROWS = GROUPS == MASKED;
#else
  constexpr bool MASKED_ROWS = false;
  constexpr long long x_scale_group = 0, w_scale_group = 0;
#endif
  const int first = (int)blockIdx.x / CLUSTER, step = (int)gridDim.x / CLUSTER;
  u32 stage = 0, phase = 0;

  if (group == CONSUMERS) {
    if constexpr (CONSUMERS > 1) registers_down<24>();
    if (thread == 128 * CONSUMERS) {
      for (TILES(walk)) {
        const Place place = place_of(walk.tile, walk.units, rank);
        const int x_row = walk.start + place.row, w_row = walk.group * N + place.column;
        for (int block = 0; block < K_BLOCKS; ++block) {
          const u32 x_at = ring + stage * STAGE_BYTES, w_at = x_at + X_BYTES;
          barrier_wait(empty + 8 * stage, phase ^ 1);
          barrier_expect(full + 8 * stage, STAGE_BYTES);
          const auto load = [&](u32 to, const TensorMap& map, int row, int rows, bool shared) {
            const int share = shared ? rank * (rows / CLUSTER) : 0;
            if (shared)
              tma_load_multicast(to + share * 128, map, full + 8 * stage, block * BLOCK_K, row + share,
                                 (1 << CLUSTER) - 1);
            else tma_load(to, map, full + 8 * stage, block * BLOCK_K, row);
          };
          load(x_at, x_map, x_row, BLOCK_M, SHARE_X);
          load(w_at, w_map, w_row, BLOCK_N, CLUSTER > 1 && !SHARE_X);
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
  } else {
    if constexpr (CONSUMERS > 1) registers_up<240>();
    const u32 lane = thread % 32;
    const bool leader = thread % 128 == 0;
    u32 free = 0;  // the place where results are written next
    float total[PARTS][VALUES] = {};
    float part[PIECE] = {};
    // Whose sums are in `total`: the tile's first row in its group and first column, the group's first row and rows.
    int row = 0, column = 0, start = 0, rows = 0;

    // Writes the results of a run to shared memory, and stores them from there.
    const auto write = [&](int run) {
      const int p = run / CUTS, cut = run % CUTS, left = rows - row - 64 * p;
      if (BIAS && run == 0) add_bias(total, column, bias);
#ifdef GROUPS
      if (left < 64) {
        if (left > 0 && cut == 0) store_rows(y, total[p], start + row + 64 * p, left, column);
        return;
      }
#endif
#pragma unroll
      for (int i = cut * RUN_SLICES; i < (cut + 1) * RUN_SLICES; i += TOGETHER) {
        const u32 at = slices + (group * RESULT_SLICES + free * TOGETHER) * SLICE_BYTES;
        if (leader) store_wait_read<PLACES - 1>();
        sync_threads(1 + group, 128);
#pragma unroll
        for (int j = 0; j < TOGETHER; ++j) write_slice(at + j * SLICE_BYTES, total[p], (i + j) * SLICE_COLUMNS / 8);
        fence_async_shared();
        sync_threads(1 + group, 128);
        if (leader) {
#pragma unroll
          for (int j = 0; j < TOGETHER; ++j) {
            const int to = column + (i + j) * SLICE_COLUMNS;
            if (to < N && left > 0) tma_store(y_map, at + j * SLICE_BYTES, to, start + row + 64 * p);
          }
          store_commit();
        }
        if (++free == PLACES) free = 0;
      }
    };
    const auto begin = [&](int run) {
      const u32 x_at = ring + stage * STAGE_BYTES + group * GROUP_ROWS * 128 + run / CUTS * 8192;
      const u32 w_at = ring + stage * STAGE_BYTES + X_BYTES + run % CUTS * (BLOCK_N / CUTS) * 128;
      const u64 x_from = descriptor(x_at), w_from = descriptor(w_at);
      settle(part);
      products_begin();
#pragma unroll
      for (int i = 0; i < 4; ++i) multiply(part, advanced(x_from, 32 * i), advanced(w_from, 32 * i), i != 0);
      products_commit();
    };

    for (TILES(walk)) {
      barrier_wait(full + 8 * stage, phase);
      begin(0);
      const Place place = place_of(walk.tile, walk.units, rank);
      const int next_row = place.row + group * GROUP_ROWS;
      const float* x_rows[2 * PARTS];
      const float* w_rows[W_SCALES];
#pragma unroll
      for (int i = 0; i < 2 * PARTS; ++i) {
        const int at = next_row + 64 * (i / 2) + (int)fragment_row(thread) + 8 * (i % 2);
        const int inside = at < walk.rows ? at : walk.rows - 1;  // rows beyond the last are not stored
        x_rows[i] = x_scale + (MASKED_ROWS ? walk.group * x_scale_group + inside * x_scale_row
                                           : (walk.start + inside) * x_scale_row);
      }
#pragma unroll
      for (int i = 0; i < W_SCALES; ++i) {
        const int at = place.column / 128 + i;
        w_rows[i] = w_scale + walk.group * w_scale_group + (at < W_SCALE_ROWS ? at : W_SCALE_ROWS - 1) * w_scale_row;
      }
      const int border = 128 - place.column % 128;
      Scales next;
      Factors own, factors{};
      const auto load_next = [&](int block) {  // or the last one: no branch, for which products would be waited for
        load_scales(next, x_rows, w_rows, x_scale_block, w_scale_block, block < K_BLOCKS ? block : K_BLOCKS - 1);
      };
      const int own_block = (int)thread % QUAD;  // of each QUAD
      load_next(own_block);
      const auto multiply_block = [&](int block, int in_quad, bool first) {
#pragma unroll
        for (int run = 0; run < RUNS; ++run) {
          if (!first || run > 0) begin(run);
          if (first) {
            if (rows > 0) write(run);
#pragma unroll
            for (int i = 0; i < PIECE; ++i) total[run / CUTS][run % CUTS * PIECE + i] = 0.0f;
          }
          if (run == 0) {
            if (in_quad == 0) {
              make_factors(own, next);
              load_next(block + QUAD + own_block);
            }
            take_factors(factors, own, in_quad);
          }
          products_wait<0>();
          if (run == RUNS - 1) release(empty + 8 * stage, lane);
          settle(part);
          add_scaled(total[run / CUTS], part, factors.of[run / CUTS], run % CUTS * (BLOCK_N / CUTS), border);
        }
        if (++stage == STAGES) stage = 0, phase ^= 1;
      };
      multiply_block(0, 0, true);
      row = next_row, column = place.column, start = walk.start, rows = walk.rows;
      for (int block = 1; block < K_BLOCKS; block += QUAD) {
#pragma unroll
        for (int i = 0; i < QUAD; ++i) {
          if ((K_BLOCKS - 1) % QUAD && block + i >= K_BLOCKS) break;
          barrier_wait(full + 8 * stage, phase);
          multiply_block(block + i, (i + 1) % QUAD, false);
        }
      }
    }
#pragma unroll
    for (int run = 0; run < RUNS; ++run) write(run);
    if (leader) store_wait_all();
  }
  // Another block of the cluster may still write to this one's memory, or arrive at its barriers.
  if constexpr (CLUSTER > 1) meet_cluster();
}
