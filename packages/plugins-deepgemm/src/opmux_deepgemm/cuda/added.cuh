// y += x w^T of codes with scales of 1x128 blocks of both, which the copy engine brings; persistent, as large.cuh is.
//
// Threads, stages, barriers and the walk over tiles are those of large.cuh. Each sum of products is multiplied by a
// scale of its row of x and one of its row of w, so that shared memory, which is what is short, gives scales for each
// column of the tile besides both operands. A slot has the scales of QUAD blocks of k, and comes with the first of
// their stages. X_IN_ROWS, W_IN_ROWS: those of a row are next to each other, else those of a block of k.
//
// While the products of a block of k are made, a consumer reads their scales and multiplies those of rows and columns,
// as many as it has registers for; behind the products one multiplication and addition is left for each value.
//
// PIECES, OVERLAP: as in large.cuh.

constexpr int QUAD = 4;  // blocks of k whose scales come together
constexpr int K_BLOCKS = (K + 127) / 128;
constexpr int N_BLOCKS = (N + BLOCK_N - 1) / BLOCK_N;
constexpr int GROUP_ROWS = BLOCK_M / CONSUMERS;
constexpr int PARTS = GROUP_ROWS / 64, VALUES = BLOCK_N / 2;
constexpr int CUTS = PIECES ? PIECES : 1, TOGETHER = PIECES ? 1 : PARTS;  // parts that are multiplied at once
constexpr int RUNS = PARTS / TOGETHER * CUTS;
constexpr int COLUMNS = BLOCK_N / CUTS, PIECE = COLUMNS / 2, EIGHTS = COLUMNS / 8;  // of a run
constexpr int HELD = PARTS * VALUES + (OVERLAP ? 2 : TOGETHER) * PIECE;             // sums and products of a thread
// Groups of eight columns whose scales are read while products are made; the others' are read behind them.
constexpr int SPARE = HELD < 204 ? (204 - HELD) / 2 : 0, AHEAD = SPARE < EIGHTS ? SPARE / 2 * 2 : EIGHTS;
// Of these, the groups for which the factors of all values are made then.
constexpr int LEFT = (200 - HELD - 2 * AHEAD) / (4 * TOGETHER - 2), READY = LEFT < 0 ? 0 : LEFT < AHEAD ? LEFT : AHEAD;
// Blocks of k in a round of the loop, which take registers.
constexpr int AT_ONCE = OVERLAP                                                         ? (RUNS == 1 ? 2 * QUAD : QUAD)
                        : HELD < 192 || (HELD == 192 && CUTS == 1 && TOGETHER == PARTS) ? QUAD
                                                                                        : 1;
constexpr u32 X_BYTES = BLOCK_M * 128, STAGE_BYTES = X_BYTES + BLOCK_N * 128;
// A slot is filled again when its stage has been released, by which a consumer has scaled the blocks before that one.
// So many slots have the scales of STAGES + 1 blocks that follow each other, of which one may be the last of a tile.
constexpr u32 SLOTS = 2 + (STAGES + 2) / QUAD;
static_assert(K_BLOCKS % QUAD == 0 || K_BLOCKS > STAGES);
constexpr u32 X_SCALES_BYTES = BLOCK_M * QUAD * 4, W_SCALES_BYTES = BLOCK_N * QUAD * 4;
constexpr u32 SLOT_BYTES = X_SCALES_BYTES + W_SCALES_BYTES;
constexpr int SLICE_COLUMNS = SLICE_WIDTH / 4, SLICES = BLOCK_N / SLICE_COLUMNS;
constexpr u32 SLICE_BYTES = 64 * SLICE_WIDTH;
constexpr u32 THREADS = 128 * (CONSUMERS + 1);
static_assert(SCALED && ACCUMULATE && CLUSTER == 1 && PARTS % TOGETHER == 0);

// The tile's first row and column of y. GROUP rows of tiles are walked together, down first.
struct Place {
  int row, column;
};

DEVICE Place place_of(int tile, int units) {
  constexpr int OF_GROUP = GROUP * N_BLOCKS;
  const int first = tile / OF_GROUP * GROUP, inside = tile % OF_GROUP;
  const int rows = units - first < GROUP ? units - first : GROUP;
  return {(first + inside % rows) * BLOCK_M, inside / rows * BLOCK_N};
}

// The scales of a thread's two columns in a group of eight.
struct Pair {
  float of[2];
};

DEVICE Pair load_w_scales(u32 scales, int column, int place) {
  Pair found;
  if constexpr (W_IN_ROWS) {
#pragma unroll
    for (int i = 0; i < 2; ++i) found.of[i] = load_shared(scales + ((column + i) * QUAD + place) * 4);
  } else {
    load_shared_pair(scales + (place * BLOCK_N + column) * 4, found.of[0], found.of[1]);
  }
  return found;
}

DEVICE float load_x_scale(u32 scales, int row, int place) {
  return load_shared(scales + (X_IN_ROWS ? row * QUAD + place : place * BLOCK_M + row) * 4);
}

// Writes the values of one slice into shared memory, in the swizzle by which the copy engine reads it.
DEVICE void write_slice(u32 slice, const float (&values)[VALUES], int first) {
#pragma unroll
  for (int j = 0; j < SLICE_COLUMNS / 8; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* pair = &values[4 * (first + j) + 2 * half];
      const u32 row = fragment_row(threadIdx.x) + 8 * half;
      const u32 offset = row * SLICE_WIDTH + (8 * j + fragment_column(threadIdx.x)) * 4;
      store_shared_pair(slice + swizzled<SLICE_WIDTH>(offset), pair[0], pair[1]);
    }
}

KERNEL(THREADS)
product(MAP x_map, MAP w_map, MAP y_map, MAP x_scales_map, MAP w_scales_map, int m) {
  DYNAMIC_SHARED_MEMORY(memory);
  const u32 ring = (shared_address(memory) + 1023) & ~1023u;
  const u32 slices = ring + STAGES * STAGE_BYTES;
  const u32 scales = slices + 2 * CONSUMERS * SLICE_BYTES;
  const u32 full = scales + SLOTS * SLOT_BYTES, empty = full + 8 * STAGES;
  const u32 thread = threadIdx.x, group = uniform(thread / 128);

  if (thread == 0) {
    prefetch_map(x_map);
    prefetch_map(w_map);
    prefetch_map(y_map);
    prefetch_map(x_scales_map);
    prefetch_map(w_scales_map);
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, 4 * CONSUMERS);
    }
    barrier_init_done();
  }
  __syncthreads();
  start_next();
  wait_for_previous();

  const int units = (m + BLOCK_M - 1) / BLOCK_M;
  u32 stage = 0, phase = 0, slot = scales;
  const auto next_slot = [&] {
    slot += SLOT_BYTES;
    if (slot == scales + SLOTS * SLOT_BYTES) slot = scales;
  };

  if (group == CONSUMERS) {
    if constexpr (CONSUMERS > 1) registers_down<24>();
    if (thread == 128 * CONSUMERS) {
      for (int tile = (int)blockIdx.x; tile < units * N_BLOCKS; tile += (int)gridDim.x) {
        const Place place = place_of(tile, units);
#pragma unroll 1
        for (int block = 0; block < K_BLOCKS; ++block) {
          const u32 x_at = ring + stage * STAGE_BYTES, w_at = x_at + X_BYTES, filled = full + 8 * stage;
          barrier_wait(empty + 8 * stage, phase ^ 1);
          const bool brings = block % QUAD == 0;
          barrier_expect(filled, STAGE_BYTES + (brings ? SLOT_BYTES : 0));
          if (brings) {
            if constexpr (X_IN_ROWS) tma_load(slot, x_scales_map, filled, block, place.row);
            else tma_load(slot, x_scales_map, filled, place.row, block);
            if constexpr (W_IN_ROWS) tma_load(slot + X_SCALES_BYTES, w_scales_map, filled, block, place.column);
            else tma_load(slot + X_SCALES_BYTES, w_scales_map, filled, place.column, block);
            next_slot();
          }
          tma_load(x_at, x_map, filled, block * 128, place.row);
          tma_load(w_at, w_map, filled, block * 128, place.column);
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
  } else {
    if constexpr (CONSUMERS > 1) registers_up<240>();
    const bool leader = thread % 128 == 0;
    const int own_row = (int)(group * GROUP_ROWS + fragment_row(thread)), own_column = (int)fragment_column(thread);
    u32 slice = 0;
    float total[PARTS][VALUES], part[OVERLAP ? 2 : 1][TOGETHER][PIECE] = {};
    for (int tile = (int)blockIdx.x; tile < units * N_BLOCKS; tile += (int)gridDim.x) {
      const Place place = place_of(tile, units);
      const int row = place.row + (int)group * GROUP_ROWS;
#pragma unroll
      for (int p = 0; p < PARTS; ++p)
#pragma unroll
        for (int i = 0; i < VALUES; ++i) total[p][i] = 0.0f;

      // Begins the products of a run of the stage's block of k.
      const auto start = [&](int run, float (&products)[TOGETHER][PIECE]) {
        const u32 x_at = ring + stage * STAGE_BYTES + group * GROUP_ROWS * 128 + run / CUTS * TOGETHER * 8192;
        const u32 w_at = ring + stage * STAGE_BYTES + X_BYTES + run % CUTS * COLUMNS * 128;
        const u64 x_from = descriptor(x_at), w_from = descriptor(w_at);
        if (run == 0) barrier_wait(full + 8 * stage, phase);
#pragma unroll
        for (int p = 0; p < TOGETHER; ++p) settle(products[p]);
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int p = 0; p < TOGETHER; ++p)
            multiply(products[p], advanced(x_from, p * 8192 + 32 * i), advanced(w_from, 32 * i), i != 0);
        products_commit();
        // The assembler keeps what follows behind the products, which would wait for it; and one thread of the warp
        // releases a stage, and so the slot of the block before, for the others.
        sync_warp();
      };
      // Scales and adds the products of a run, which are waited for with all but `later` groups of them. They are of
      // the block in this place of a slot, and of this stage, which the last run releases.
      const auto finish = [&](int run, float (&products)[TOGETHER][PIECE], u32 from, int in_slot, u32 read,
                              bool later) {
        const int first = run / CUTS * TOGETHER, column = run % CUTS * COLUMNS;
        const u32 w_scales = from + X_SCALES_BYTES;
        float of_x[TOGETHER][2];
        Pair of_w[EIGHTS];
#pragma unroll
        for (int i = 0; i < 2 * TOGETHER; ++i)
          of_x[i / 2][i % 2] = load_x_scale(from, own_row + 64 * (first + i / 2) + 8 * (i % 2), in_slot);
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) of_w[j] = load_w_scales(w_scales, column + 8 * j + own_column, in_slot);
        float ready[TOGETHER][READY ? 4 * READY : 1] = {};
#pragma unroll
        for (int p = 0; p < TOGETHER; ++p)
#pragma unroll
          for (int i = 0; i < 4 * READY; ++i) ready[p][i] = of_x[p][i / 2 % 2] * of_w[i / 4].of[i % 2];
        if (later) products_wait<1>();
        else products_wait<0>();
        if (run == RUNS - 1 && thread % 32 == 0) barrier_arrive(empty + 8 * read);
#pragma unroll
        for (int p = 0; p < TOGETHER; ++p) settle(products[p]);
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
          if (j >= AHEAD) of_w[j] = load_w_scales(w_scales, column + 8 * j + own_column, in_slot);
#pragma unroll
          for (int p = 0; p < TOGETHER; ++p)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float factor = j < READY ? ready[p][4 * j + i] : of_x[p][i / 2] * of_w[j].of[i % 2];
              total[first + p][column / 2 + 4 * j + i] += products[p][4 * j + i] * factor;
            }
        }
      };
      const auto next_stage = [&] {
        if (++stage == STAGES) stage = 0, phase ^= 1;
      };
      if constexpr (OVERLAP) {
        // The first block of a round begins when all products are done: the assembler makes products one by one where
        // some are under way from one round of a loop to the next.
        u32 read = stage, from = slot;  // of the run before
        const auto multiply_run = [&](int count, int blocks) {
          const int run = count % RUNS, before = (count + RUNS - 1) % RUNS, block = count / RUNS;
          start(run, part[count % 2]);
          if (count > 0) finish(before, part[(count + 1) % 2], from, (count - 1) / RUNS % QUAD, read, true);
          read = stage, from = slot;
          if (run == RUNS - 1) {
            if (block % QUAD == QUAD - 1 || block == blocks - 1) next_slot();
            next_stage();
          }
          if (count == blocks * RUNS - 1) finish(run, part[count % 2], from, block % QUAD, read, false);
        };
        constexpr int REST = K_BLOCKS % AT_ONCE;
#pragma unroll 1
        for (int block = 0; block < K_BLOCKS / AT_ONCE * AT_ONCE; block += AT_ONCE) {
#pragma unroll
          for (int i = 0; i < AT_ONCE * RUNS; ++i) multiply_run(i, AT_ONCE);
        }
#pragma unroll
        for (int i = 0; i < REST * RUNS; ++i) multiply_run(i, REST);
      } else {
        // A block of k, which is the one in this place of its slot.
        const auto multiply_block = [&](int in_slot) {
#pragma unroll
          for (int run = 0; run < RUNS; ++run) {
            start(run, part[0]);
            finish(run, part[0], slot, in_slot, stage, false);
          }
          next_stage();
        };
        constexpr int WHOLE = AT_ONCE == QUAD ? K_BLOCKS / QUAD * QUAD : 0;
#pragma unroll 1
        for (int block = 0; block < WHOLE; block += QUAD) {
#pragma unroll
          for (int i = 0; i < QUAD; ++i) multiply_block(i);
          next_slot();
        }
        if constexpr (AT_ONCE == QUAD) {
#pragma unroll
          for (int i = 0; i < K_BLOCKS - WHOLE; ++i) multiply_block(i);
          if constexpr (K_BLOCKS > WHOLE) next_slot();
        } else {
#pragma unroll 1
          for (int block = 0; block < K_BLOCKS; ++block) {
            multiply_block(block % QUAD);
            if (block % QUAD == QUAD - 1 || block == K_BLOCKS - 1) next_slot();
          }
        }
      }

#pragma unroll
      for (int p = 0; p < PARTS; ++p)
#pragma unroll
        for (int i = 0; i < SLICES; ++i) {
          const int column = place.column + i * SLICE_COLUMNS;
          const u32 at = slices + (2 * group + slice) * SLICE_BYTES;
          if (leader) store_wait_read<1>();  // of this slice's last use: the other one may still be read
          sync_threads(1 + group, 128);
          write_slice(at, total[p], i * SLICE_COLUMNS / 8);
          fence_async_shared();
          sync_threads(1 + group, 128);
          if (leader) {
            if (column < N && row + 64 * p < m) tma_add(y_map, at, column, row + 64 * p);
            store_commit();
          }
          slice ^= 1;
        }
    }
    if (leader) store_wait_all();
  }
}
