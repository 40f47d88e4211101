// y = x w^T, persistent: each block computes tiles of BLOCK_M x BLOCK_N of y, one after the other.
//
// The last warp group is the producer: one thread of it copies blocks of x and w by TMA into a ring of STAGES. The
// others, the consumers, each multiply BLOCK_M / CONSUMERS rows of x by all of the tile's rows of w. A stage has two
// barriers: `full` when its bytes have come, `empty` when every consumer's warp has read it. The results go to y
// through two slices of shared memory for each consumer. The blocks of a cluster compute tiles below each other, and
// each copies its share of their common rows of w for all. Where they SHARE_X, their tiles lie next to each other, and
// the same is done with the rows of x.
//
// GROUPS: the rows of x come in groups, each with a matrix of w of its own; how many rows a group has is data on the
// device. Tiles are counted group by group. RAGGED: a group begins at any row, and ends where its count or the next one
// says; MASKED: each has room for m rows. What a tile has beyond its group's rows is computed and not stored.
//
// SCALED: blocks of k have 128 codes; their products are scaled and added up in float32 by the consumers. Four threads
// share the rows of their results: each loads the scales of one of four blocks of k, while those of the four blocks
// before are used, and gives them to the others. ALTERNATE: two consumers make their products by turns, so that one
// scales while the other's are made: a turn ends when so many of the four steps of a block of k are done. Where both
// only begin by turns, the matrix unit mixes their products, both end at the same time, and it is idle while both
// scale. W_BY_ROW: each row of w has scales of its own; the producer's other warps bring those of a stage into shared
// memory, by turns.
//
// PIECES: a consumer that scales multiplies a block of k in so many pieces of the tile's columns, for each 64 rows, one
// after the other. OVERLAP: it holds two of them beside the sums, and scales one while the next is made, so that the
// matrix unit has work whatever the other consumer does. Where there is one piece, it is scaled while that of the next
// block of k is made.
//
// X_ACROSS, W_ACROSS: columns of k of the operand, which has 16 bits, lie far apart, and its rows next to each other. A
// stage holds it in chunks of 64 rows, of which k runs down, and the matrix unit transposes it as it reads it.
//
// ACCUMULATE: the result is added to y, which is float32, by the copy engine.
//
// STAGED: there is shared memory for the whole results of a tile, so that its consumers meet twice for all slices, and
// wait for no store but those of the tile before.

constexpr int BLOCK_K = 128 / OPERAND_BYTES;
constexpr int K_BLOCKS = (K + BLOCK_K - 1) / BLOCK_K;
constexpr int DOWN = SHARE_X ? 1 : CLUSTER, ALONG = SHARE_X ? CLUSTER : 1;  // tiles of a cluster
constexpr int N_BLOCKS = ((N + BLOCK_N - 1) / BLOCK_N + ALONG - 1) / ALONG;
constexpr int GROUP_ROWS = BLOCK_M / CONSUMERS;
constexpr int PARTS = GROUP_ROWS / 64;        // results of the matrix unit that a consumer holds, 64 rows each
constexpr int VALUES = BLOCK_N / 2;           // of each, in a thread
constexpr int CUTS = PIECES ? PIECES : 1;     // pieces of a part's columns
constexpr int RUNS = PARTS * CUTS;            // products of a block of k that are scaled one by one
constexpr int PIECE = VALUES / CUTS;          // values of a part that a run computes
constexpr int UNROLLED = RUNS == 1 ? 4 : 2;   // blocks of k from one wait for all products to the next
constexpr int QUAD = 4;                       // threads that share the rows of their results
constexpr int AT_ONCE = W_BY_ROW ? 1 : QUAD;  // blocks of k in a round of the loop, without OVERLAP; by row more spill
constexpr int SETS = OVERLAP ? 2 : PIECES ? 1 : PARTS;  // results of a block of k that are held beside the sums

constexpr u32 X_BYTES = BLOCK_M * 128, W_BYTES = BLOCK_N * 128, STAGE_BYTES = X_BYTES + W_BYTES;
constexpr u32 CHUNK_BYTES = 8192;  // of 64 rows of an operand that lies across k
constexpr u32 X_STEP = X_ACROSS ? 2048 : 32, W_STEP = W_ACROSS ? 2048 : 32;  // bytes to the next products' part of k
constexpr int SLICE_COLUMNS = SLICE_WIDTH / OUT_BYTES, SLICES = BLOCK_N / SLICE_COLUMNS;
constexpr u32 SLICE_BYTES = 64 * SLICE_WIDTH;
constexpr u32 RESULT_SLICES = STAGED ? PARTS * SLICES : 2;  // of a consumer that shared memory holds
constexpr u32 THREADS = 128 * (CONSUMERS + 1);
// Arrivals that make a stage full, besides the bytes: of each thread that brings scales.
constexpr u32 FILLERS = W_BY_ROW ? 33 : 1;
// Warps that bring scales: no more than stages, so that a warp which waits for a stage has filled it the last time.
// Else it could be two phases away from the barrier, which tells only one from the next.
constexpr u32 LOADERS = STAGES < 3 ? STAGES : 3;
constexpr u32 TURNS = 4;  // the first of two named barriers, each for a consumer's turn; those before are for results
// That empty a stage: one of each warp that reads it, or of each thread of this block where threads read scales in it.
// A thread that arrives for others would do, but the race checker follows only those that arrive themselves.
constexpr u32 ARRIVALS = W_BY_ROW ? 128 * CONSUMERS + 4 * CONSUMERS * (CLUSTER - 1) : 4 * CONSUMERS * CLUSTER;

// The tile's first row, within its group, and its first column of y.
struct Place {
  int row, column;
};

// GROUP rows of tiles are walked together, down first, so that neighbours in time share rows of w and x in the cache.
DEVICE Place place_of(int tile, int units, int rank) {
  constexpr int OF_GROUP = GROUP * N_BLOCKS;
  const int first = tile / OF_GROUP * GROUP, inside = tile % OF_GROUP;
  const int rows = units - first < GROUP ? units - first : GROUP;
  const int down = SHARE_X ? 0 : rank, along = SHARE_X ? rank : 0;
  return {((first + inside % rows) * DOWN + down) * BLOCK_M, (inside / rows * ALONG + along) * BLOCK_N};
}

#ifdef LAST_TILE_MOVED
// A tile's first row. The last tile begins so that it ends with x, and writes rows that the one before writes too, with
// the same values: the copy engine takes longer for rows of zeros, beyond the last one of x, than for rows of x.
DEVICE int moved(int row, int rows) {
  const int last = rows > BLOCK_M ? rows - BLOCK_M : 0;
  return row < last ? row : last;
}

#endif  // LAST_TILE_MOVED
// Rows of tiles that are computed together, by the blocks of a cluster.
DEVICE int units_of(int rows) { return ((rows + BLOCK_M - 1) / BLOCK_M + DOWN - 1) / DOWN; }

// The tiles of a block of the grid, one after the other.
struct Walk {
  int tile;                // of those that are left
  int start, rows, units;  // of the group that the tile is in: its first row of x, its number of rows
  int group;
#ifdef GROUPS_X_ACROSS
  // Copies begin at multiples of 8 rows of x: where a ragged group begins elsewhere, its tiles have so many rows of the
  // group before, which are computed and not stored. `start` and `rows` count them.
  int lead = 0;
#endif  // GROUPS_X_ACROSS
};

#ifdef GROUPS
DEVICE Walk walk_of(int first, const int*, const int*, int) { return {first, 0, 0, 0, -1}; }

// Goes on to the group that the tile is in; says whether there is one. `tile` counts from the group's first.
DEVICE bool find(Walk& walk, const int* offsets, const int* sizes, int groups, int m) {
  while (walk.tile >= walk.units * N_BLOCKS) {
    walk.tile -= walk.units * N_BLOCKS;
    if (++walk.group >= groups) return false;
    const bool ragged = GROUPS == RAGGED;
    walk.start = ragged ? offsets[walk.group] : walk.group * m;
    if (ragged && walk.start < 0) walk.start = m;  // offsets and counts that break the op's rules must not break memory
    walk.rows = sizes ? sizes[walk.group] : offsets[walk.group + 1] - walk.start;
    const int most = ragged ? m - walk.start : m;
    walk.rows = walk.rows < most ? walk.rows : most;
#ifdef GROUPS_X_ACROSS
    if (ragged && walk.rows > 0) {
      walk.lead = walk.start % 8;
      walk.start -= walk.lead;
      walk.rows += walk.lead;
    }
#endif  // GROUPS_X_ACROSS
    walk.units = walk.rows > 0 ? units_of(walk.rows) : 0;
  }
  return true;
}

#ifdef GROUPS_X_ACROSS
// Copies 64 rows of x. That of each masked group is a matrix of its own, as w of each group is where it lies across k:
// the last block of k has zeros instead of the next group's values.
DEVICE void load_x(u32 to, const TensorMap& x_map, u32 barrier, int row, int column, int group) {
  if constexpr (GROUPS == MASKED) tma_load_of(to, x_map, barrier, row, column, group);
  else tma_load(to, x_map, barrier, row, column);
}

#endif  // GROUPS_X_ACROSS
// Writes the rows of a part that belong to its group, where the next 64 rows are not all of them.
#ifdef GROUPS_X_ACROSS
DEVICE void store_rows(u8* y, const float (&values)[VALUES], int row, int rows, int column, int first = 0) {
#else   // GROUPS_X_ACROSS
DEVICE void store_rows(u8* y, const float (&values)[VALUES], int row, int rows, int column) {
#endif  // GROUPS_X_ACROSS
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int inside = (int)fragment_row(threadIdx.x) + 8 * half;
#ifdef GROUPS_X_ACROSS
    if (inside < first) continue;
#endif  // GROUPS_X_ACROSS
    if (inside >= rows) continue;
    u8* to = y + ((long long)(row + inside) * N + column) * OUT_BYTES;
#pragma unroll
    for (int j = 0; j < BLOCK_N / 8; ++j) {
      const int at = 8 * j + (int)fragment_column(threadIdx.x);
      if (column + at >= N) continue;
      const float* pair = &values[4 * j + 2 * half];
      if constexpr (OUT_BYTES == 2) {
        ((u32*)to)[at / 2] = bfloat16_pair(pair[0], pair[1]);
      } else {
        ((float*)to)[at] = pair[0];
        ((float*)to)[at + 1] = pair[1];
      }
    }
  }
}
// clang-format off: these are heads of loops
#define TILES(walk)                                                                                   \
  Walk walk = walk_of(first, offsets, sizes, groups); find(walk, offsets, sizes, groups, m); walk.tile += step
#else
#define TILES(walk) Walk walk{first, 0, m, units_of(m), 0}; walk.tile < walk.units * N_BLOCKS; walk.tile += step
#endif
// clang-format on

// The scales of a thread's two rows of each part, and of the blocks of w's rows that the tile touches, of a block of k.
struct Scales {
  float x[PARTS][2], w[W_SCALES];
};

DEVICE void load_scales(Scales& scales, const float* const (&x_rows)[2 * PARTS], const float* const (&w_rows)[W_SCALES],
                        long long x_stride, long long w_stride, int block) {
#pragma unroll
  for (int i = 0; i < 2 * PARTS; ++i) scales.x[i / 2][i % 2] = load_constant(x_rows[i] + block * x_stride);
#pragma unroll
  for (int i = 0; i < W_SCALES; ++i) scales.w[i] = load_constant(w_rows[i] + block * w_stride);
}

// By what the products of a thread's rows are multiplied: a scale of x times one of w, or the scale of x alone where
// each row of w has its own.
constexpr int FACTORS = W_BY_ROW ? 1 : W_SCALES;
struct Factors {
  float of[PARTS][2][FACTORS];
};

DEVICE void make_factors(Factors& made, const Scales& scales) {
#pragma unroll
  for (int i = 0; i < 2 * PARTS * FACTORS; ++i) {
    const float x = scales.x[i / FACTORS / 2][i / FACTORS % 2];
    made.of[i / FACTORS / 2][i / FACTORS % 2][i % FACTORS] = W_BY_ROW ? x : x * scales.w[i % FACTORS];
  }
}

// Those that the thread in this place of the quad has.
DEVICE void take_factors(Factors& taken, const Factors& own, int place) {
#pragma unroll
  for (int i = 0; i < 2 * PARTS * FACTORS; ++i) (&taken.of[0][0][0])[i] = of_quad((&own.of[0][0][0])[i], place);
}

// total += products * factors, of a part's columns from `first` on; those of the tile from `border` on, which is a
// multiple of BORDERS up to 128, belong to the second block of w's rows.
constexpr int BORDERS = BLOCK_N % 128 == 0 ? 128 : BLOCK_N % 64 == 0 ? 64 : BLOCK_N % 32 == 0 ? 32 : 16;
DEVICE void add_scaled_to(float (&total)[VALUES], const float (&products)[PIECE], const float (&factors)[2][FACTORS],
                          int first, int border) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int j = 0; j < PIECE / 4; ++j) {
      const bool second = FACTORS > 1 && (first + 8 * j) / BORDERS * BORDERS >= border;
      const float factor = second ? factors[half][FACTORS - 1] : factors[half][0];
#pragma unroll
      for (int i = 4 * j + 2 * half; i < 4 * j + 2 * half + 2; ++i) total[first / 2 + i] += products[i] * factor;
    }
}

// Where there are but two borders, a branch that all threads take together costs less than the choices.
DEVICE void add_scaled(float (&total)[VALUES], const float (&products)[PIECE], const float (&factors)[2][FACTORS],
                       int first, int border) {
  if constexpr (BORDERS == 64) {
    if (border < 128) return add_scaled_to(total, products, factors, first, 64);
  }
  add_scaled_to(total, products, factors, first, BORDERS >= 64 ? 128 : border);
}

// The same with a scale for each row of w, which lie in shared memory.
DEVICE void add_scaled_by_row(float (&total)[VALUES], const float (&products)[PIECE],
                              const float (&factors)[2][FACTORS], u32 w_scales, int first) {
#pragma unroll
  for (int j = 0; j < PIECE / 4; ++j) {
    const u32 at = w_scales + (first + 8 * j + fragment_column(threadIdx.x)) * 4;
    const float w[2] = {load_shared(at), load_shared(at + 4)};
#pragma unroll
    for (int i = 0; i < 4; ++i) total[first / 2 + 4 * j + i] += products[4 * j + i] * (factors[i / 2][0] * w[i % 2]);
  }
}

#ifdef SCALES_COPIED
// The copy engine brings the scales of x, of QUAD blocks of k at a time, with the stage of the first one. X_IN_ROWS:
// those of a row of x are next to each other, else those of a block of k. A consumer holds those of its rows for QUAD
// blocks, so that their place is free when the stage is. W_TOGETHER: those of w of QUAD blocks are loaded at once.
static_assert(SCALED && !W_BY_ROW && !OVERLAP && ALTERNATE == 0);
#ifdef GROUPS
// A copy begins at a multiple of 4 rows, where they are next to each other; a group begins anywhere.
constexpr int SPARE = GROUPS == RAGGED && !X_IN_ROWS ? 4 : 0;
#else
constexpr int SPARE = 0;
#endif
constexpr int BOXES = BLOCK_M + SPARE > 256 ? 2 : 1;  // a box has 256 rows at most; of two, each consumer has one
constexpr int BOX_ROWS = BLOCK_M / BOXES + SPARE;
constexpr u32 BOX_BYTES = BOX_ROWS * QUAD * 4, BOX_STEP = (BOX_BYTES + 127) / 128 * 128;
constexpr u32 SCALES_BYTES = (BLOCK_M + 16) * QUAD * 4;
static_assert(BOXES * BOX_STEP <= SCALES_BYTES);

// Copies the scales of QUAD blocks of k; rows and blocks that there are not have zeros. `row` counts within the group
// where each is a matrix.
DEVICE void copy_scales(u32 to, const TensorMap& map, u32 barrier, int block, int row, int group) {
  const int from = SPARE ? row - row % 4 : row;
#ifdef GROUPS
  if constexpr (GROUPS == MASKED) {
    if constexpr (X_IN_ROWS) tma_load_of(to, map, barrier, block, from, group);
    else tma_load_of(to, map, barrier, from, block, group);
    return;
  }
#endif
  if constexpr (X_IN_ROWS) {
    tma_load(to, map, barrier, block, from);
  } else {
#pragma unroll
    for (int i = 0; i < BOXES; ++i) tma_load(to + i * BOX_STEP, map, barrier, from + i * (BLOCK_M / BOXES), block);
  }
}

// Those of a row of the copy.
DEVICE Four copied_scales(u32 scales, int row) {
  if constexpr (X_IN_ROWS) return load_shared_four(scales + row * 16);
  Four found;
#pragma unroll
  for (int i = 0; i < QUAD; ++i) found.of[i] = load_shared(scales + (i * BOX_ROWS + row) * 4);
  return found;
}

// Those of w of QUAD blocks of k from this one on; beyond the last one, which nobody uses, any.
DEVICE Four load_w_scales(const float* row, long long stride, int block) {
  if constexpr (W_TOGETHER) return load_constant_four(row + (block < K_BLOCKS ? block : K_BLOCKS - QUAD));
  Four found;
#pragma unroll
  for (int i = 0; i < QUAD; ++i)
    found.of[i] = load_constant(row + (block + i < K_BLOCKS ? block + i : K_BLOCKS - 1) * stride);
  return found;
}

#endif  // SCALES_COPIED
// Says to every block that filled it that a warp has read a stage.
DEVICE void release(u32 empty, u32 lane) {
  if constexpr (W_BY_ROW) barrier_arrive(empty);
  if constexpr (CLUSTER > 1) {
    if (lane < CLUSTER && !(W_BY_ROW && lane == cluster_rank())) barrier_arrive_at(empty, lane);
  } else {
    if (!W_BY_ROW && lane == 0) barrier_arrive(empty);
  }
}

// Multiplies every block of k, AT_ONCE of them in a round of the loop, so that a block's place among them is constant.
// `whole` is K_BLOCKS, which the compiler does not know. Large tiles take the blocks that are left behind the loop, 2
// to 4 % faster than with a branch to its end behind each block. Tiles of 64x48 to 128x160 are up to 10 % faster with
// such a branch, which keeps the compiler from moving work from block to block. Others have it where blocks are left.
template <typename Multiply>
DEVICE void each_block(const Multiply& multiply_block, int whole) {
  constexpr bool BEHIND = BLOCK_M * BLOCK_N >= 128 * 192, APART = !BEHIND && !STAGED && BLOCK_N >= 48;
  constexpr int ROUNDS = BEHIND ? K_BLOCKS / AT_ONCE * AT_ONCE : K_BLOCKS;
  for (int block = 0; block < ROUNDS; block += AT_ONCE) {
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      if (APART ? block + i >= whole : !BEHIND && K_BLOCKS % AT_ONCE && block + i >= K_BLOCKS) break;
      multiply_block(block + i, AT_ONCE == QUAD ? i : block % QUAD);
    }
  }
#pragma unroll
  for (int i = 0; i < K_BLOCKS - ROUNDS; ++i) multiply_block(ROUNDS + i, i);
}

DEVICE void add_bias(float (&total)[PARTS][VALUES], int column, const u16* bias) {
#pragma unroll
  for (int j = 0; j < BLOCK_N / 8; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = column + 8 * j + (int)fragment_column(threadIdx.x) + i;
      const float shift = at < N ? bfloat16_value(load_constant(bias + at)) : 0.0f;
#pragma unroll
      for (int p = 0; p < PARTS; ++p) {
        total[p][4 * j + i] += shift;
        total[p][4 * j + 2 + i] += shift;
      }
    }
}

// Writes the values of one slice into shared memory, in the swizzle by which the copy engine reads it.
DEVICE void write_slice(u32 slice, const float (&values)[VALUES], int first) {
  const u32 thread = threadIdx.x;
  if constexpr (OUT_BYTES == 2) {
    const u32 row = thread % 128 / 32 * 16 + thread % 16;
#pragma unroll
    for (int j = 0; j < SLICE_COLUMNS / 8; j += 2) {
      u32 pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &values[4 * (first + j + i / 2) + 2 * (i % 2)];
        pairs[i] = bfloat16_pair(pair[0], pair[1]);
      }
      const u32 offset = row * SLICE_WIDTH + (j + thread % 32 / 16) * 16;
      store_matrices(slice + swizzled<SLICE_WIDTH>(offset), pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < SLICE_COLUMNS / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* pair = &values[4 * (first + j) + 2 * half];
        const u32 row = fragment_row(thread) + 8 * half;
        const u32 offset = row * SLICE_WIDTH + (8 * j + fragment_column(thread)) * 4;
        store_shared_pair(slice + swizzled<SLICE_WIDTH>(offset), pair[0], pair[1]);
      }
  }
}

KERNEL(THREADS)
#ifdef SCALES_COPIED
product(MAP x_map, MAP w_map, MAP y_map, MAP scales_map, const float*, const float* w_scale, const u16* bias,
#else   // SCALES_COPIED
product(MAP x_map, MAP w_map, MAP y_map, const float* x_scale, const float* w_scale, const u16* bias,
#endif  // SCALES_COPIED
        long long x_scale_row, long long x_scale_block, long long w_scale_row, long long w_scale_block, int m
#ifdef GROUPS
        ,
        u8* y, const int* offsets, const int* sizes, long long x_scale_group, long long w_scale_group, int groups
#endif
) {
  DYNAMIC_SHARED_MEMORY(memory);
  const u32 ring = (shared_address(memory) + 1023) & ~1023u;
  const u32 slices = ring + STAGES * STAGE_BYTES;
#ifdef SCALES_COPIED
  const u32 scales = slices + RESULT_SLICES * CONSUMERS * SLICE_BYTES;  // of x, of each stage
  const u32 full = scales + STAGES * SCALES_BYTES, empty = full + 8 * STAGES, row_scales = 0;
  const u32 thread = threadIdx.x, group = uniform(thread / 128);
#else   // SCALES_COPIED
  const u32 full = slices + RESULT_SLICES * CONSUMERS * SLICE_BYTES, empty = full + 8 * STAGES;
  const u32 row_scales = empty + 8 * STAGES;  // of the rows of w of each stage
  const u32 thread = threadIdx.x, group = uniform(thread / 128);
#endif  // SCALES_COPIED
  const int rank = CLUSTER > 1 ? (int)cluster_rank() : 0;

  if (thread == 0) {
    prefetch_map(x_map);
    prefetch_map(w_map);
    prefetch_map(y_map);
#ifdef SCALES_COPIED
    prefetch_map(scales_map);
#endif  // SCALES_COPIED
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
    if constexpr (CONSUMERS > 1) registers_down<W_BY_ROW ? 40 : 24>();
    if (thread == 128 * CONSUMERS) {
      for (TILES(walk)) {
        const Place place = place_of(walk.tile, walk.units, rank);
#ifdef LAST_TILE_MOVED
        const int x_row = moved(place.row, walk.rows), w_row = place.column;
        // Where x has fewer rows than a tile, a box is as high as x; what the stage holds below is not used.
        const u32 missing = !SHARE_X && walk.rows < BLOCK_M ? BLOCK_M - walk.rows : 0;
#else   // LAST_TILE_MOVED
        const int x_row = walk.start + place.row, w_row = walk.group * N + place.column;
#endif  // LAST_TILE_MOVED
#ifdef GROUPS_X_ACROSS
// The registers of the producer are few.
#pragma unroll 1
#endif  // GROUPS_X_ACROSS
#ifdef LAST_TILE_MOVED
#pragma unroll 1
#endif  // LAST_TILE_MOVED
#ifdef SCALES_COPIED
#pragma unroll 1
#endif  // SCALES_COPIED
        for (int block = 0; block < K_BLOCKS; ++block) {
          const u32 x_at = ring + stage * STAGE_BYTES, w_at = x_at + X_BYTES;
          barrier_wait(empty + 8 * stage, phase ^ 1);
#ifdef SCALES_COPIED
          const bool brings = block % QUAD == 0;
          barrier_expect(full + 8 * stage, STAGE_BYTES + (brings ? BOXES * BOX_BYTES : 0));
          if (brings)
            copy_scales(scales + stage * SCALES_BYTES, scales_map, full + 8 * stage, block,
                        MASKED_ROWS ? place.row : x_row, walk.group);
#else  // SCALES_COPIED
#ifdef LAST_TILE_MOVED
          barrier_expect(full + 8 * stage, STAGE_BYTES - missing * 128);
#else   // LAST_TILE_MOVED
          barrier_expect(full + 8 * stage, STAGE_BYTES);
#endif  // LAST_TILE_MOVED
#endif  // SCALES_COPIED
          if constexpr (X_ACROSS) {
#pragma unroll
            for (int i = 0; i < BLOCK_M / 64; ++i)
#ifdef GROUPS_X_ACROSS
              load_x(x_at + i * CHUNK_BYTES, x_map, full + 8 * stage, (MASKED_ROWS ? place.row : x_row) + 64 * i,
                     block * BLOCK_K, walk.group);
#else   // GROUPS_X_ACROSS
              tma_load(x_at + i * CHUNK_BYTES, x_map, full + 8 * stage, x_row + 64 * i, block * BLOCK_K);
#endif  // GROUPS_X_ACROSS
          } else if constexpr (SHARE_X) {
            const int share = rank * (BLOCK_M / CLUSTER);
            tma_load_multicast(x_at + share * 128, x_map, full + 8 * stage, block * BLOCK_K, x_row + share,
                               (1 << CLUSTER) - 1);
          } else {
            tma_load(x_at, x_map, full + 8 * stage, block * BLOCK_K, x_row);
          }
          if constexpr (CLUSTER > 1 && !SHARE_X) {
            const int share = rank * (BLOCK_N / CLUSTER);
            if constexpr (W_ACROSS) {
#pragma unroll
              for (int i = share; i < share + BLOCK_N / CLUSTER; i += 64)
#ifdef GROUPS_W_ACROSS
                tma_load_multicast_of(w_at + i * 128, w_map, full + 8 * stage, place.column + i, block * BLOCK_K,
                                      walk.group, (1 << CLUSTER) - 1);
#else   // GROUPS_W_ACROSS
                tma_load_multicast(w_at + i * 128, w_map, full + 8 * stage, w_row + i, block * BLOCK_K,
                                   (1 << CLUSTER) - 1);
#endif  // GROUPS_W_ACROSS
            } else {
              tma_load_multicast(w_at + share * 128, w_map, full + 8 * stage, block * BLOCK_K, w_row + share,
                                 (1 << CLUSTER) - 1);
            }
          } else if constexpr (W_ACROSS) {
#pragma unroll
            for (int i = 0; i < BLOCK_N; i += 64)
#ifdef GROUPS_W_ACROSS
              tma_load_of(w_at + i * 128, w_map, full + 8 * stage, place.column + i, block * BLOCK_K, walk.group);
#else   // GROUPS_W_ACROSS
              tma_load(w_at + i * 128, w_map, full + 8 * stage, w_row + i, block * BLOCK_K);
#endif  // GROUPS_W_ACROSS
          } else {
            tma_load(w_at, w_map, full + 8 * stage, block * BLOCK_K, w_row);
          }
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
    if constexpr (W_BY_ROW) {
      const u32 lane = thread % 32, turn = thread % 128 / 32;
      u32 count = 1;  // of the warps whose turn it is
      for (TILES(walk)) {
        const Place place = place_of(walk.tile, walk.units, rank);
        for (int block = 0; block < K_BLOCKS; ++block) {
          if (count == turn) {
            barrier_wait(empty + 8 * stage, phase ^ 1);
#pragma unroll
            for (int i = 0; i < BLOCK_N; i += 32) {
              if (BLOCK_N % 32 && i + lane >= BLOCK_N) break;
              const int at = place.column + i + (int)lane;
              const float* row = w_scale + walk.group * w_scale_group + (at < N ? at : N - 1) * w_scale_row;
              store_shared(row_scales + (stage * BLOCK_N + i + lane) * 4, load_constant(row + block * w_scale_block));
            }
            barrier_arrive(full + 8 * stage);
          }
          if (++count > LOADERS) count = 1;
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
  } else {
    if constexpr (CONSUMERS > 1) registers_up<W_BY_ROW ? 232 : 240>();
    const u32 lane = thread % 32;
    const bool leader = thread % 128 == 0;
    u32 slice = 0;
    float total[PARTS][VALUES] = {};
    float part[SETS][PIECE] = {};
    if (ALTERNATE > 0 && group == 1) arrive_threads(TURNS, 256);  // the first turn is the other one's
    for (TILES(walk)) {
      const Place place = place_of(walk.tile, walk.units, rank);
#ifdef LAST_TILE_MOVED
      const int row = moved(place.row, walk.rows) + group * GROUP_ROWS;
#else   // LAST_TILE_MOVED
      const int row = place.row + group * GROUP_ROWS;
#endif  // LAST_TILE_MOVED

      if constexpr (SCALED) {
#ifdef SCALES_LOADED
        const float* x_rows[2 * PARTS];
#endif  // SCALES_LOADED
        const float* w_rows[W_SCALES];
#ifdef SCALES_LOADED
#pragma unroll
        for (int i = 0; i < 2 * PARTS; ++i) {
          const int at = row + 64 * (i / 2) + (int)fragment_row(thread) + 8 * (i % 2);
          const int inside = at < walk.rows ? at : walk.rows - 1;  // rows beyond the last are not stored
          x_rows[i] = x_scale + (MASKED_ROWS ? walk.group * x_scale_group + inside * x_scale_row
                                             : (walk.start + inside) * x_scale_row);
        }
#endif  // SCALES_LOADED
#pragma unroll
        for (int i = 0; i < W_SCALES; ++i) {
          const int at = place.column / 128 + i;
          w_rows[i] = w_scale + walk.group * w_scale_group + (at < W_SCALE_ROWS ? at : W_SCALE_ROWS - 1) * w_scale_row;
        }
        const int border = 128 - place.column % 128;
#pragma unroll
        for (int p = 0; p < PARTS; ++p)
#pragma unroll
          for (int i = 0; i < VALUES; ++i) total[p][i] = 0.0f;
#ifdef SCALES_COPIED
        Four of_x[2 * PARTS], of_w[W_SCALES];  // of QUAD blocks of k
        Factors factors{};
        const u32 box = scales + (BOXES > 1 ? group * BOX_STEP : 0);  // of the ring's first stage
        const int first_row =
            (BOXES > 1 ? 0 : group * GROUP_ROWS) + (int)fragment_row(thread) + (SPARE ? walk.start % 4 : 0);
        const auto load_w = [&](int block) {
#pragma unroll
          for (int i = 0; i < W_SCALES; ++i) of_w[i] = load_w_scales(w_rows[i], w_scale_block, block);
        };
        load_w(0);
        // The factors of a block, which is one of QUAD in this place.
        const auto find_factors = [&](int block, int place) {
          if (place == 0) {
#pragma unroll
            for (int i = 0; i < 2 * PARTS; ++i)
              of_x[i] = copied_scales(box + stage * SCALES_BYTES, first_row + 64 * (i / 2) + 8 * (i % 2));
            sync_warp();  // one thread releases the stage for the others
          }
#pragma unroll
          for (int i = 0; i < 2 * PARTS; ++i)
#pragma unroll
            for (int j = 0; j < W_SCALES; ++j) factors.of[i / 2][i % 2][j] = of_x[i].of[place] * of_w[j].of[place];
          if (place == QUAD - 1) load_w(block + 1);
        };
#else   // SCALES_COPIED
        Scales next;
        Factors own, factors{};
        const auto load_next = [&](int block) {  // or the last one: no branch, for which products would be waited for
          load_scales(next, x_rows, w_rows, x_scale_block, w_scale_block, block < K_BLOCKS ? block : K_BLOCKS - 1);
        };
        const int own_block = OVERLAP ? 0 : (int)thread % QUAD;  // of each QUAD
        load_next(own_block);
        // The factors of a block, which is one of QUAD in this place.
        const auto find_factors = [&](int block, int place) {
          if (place == 0) {
            make_factors(own, next);
            load_next(block + QUAD + own_block);
          }
          take_factors(factors, own, place);
        };
#endif  // SCALES_COPIED
        if constexpr (PIECES > 0) {
          // Scales and adds what a run has computed.
          const auto finish = [&](int run, int set, u32 from) {
            const int p = run / CUTS, first = run % CUTS * (BLOCK_N / CUTS);
            settle(part[set]);
            if constexpr (W_BY_ROW)
              add_scaled_by_row(total[p], part[set], factors.of[p], row_scales + from * BLOCK_N * 4, first);
            else add_scaled(total[p], part[set], factors.of[p], first, border);
          };
          const auto start = [&](int run, int set, u32 from) {
            const u32 x_at = ring + from * STAGE_BYTES + group * GROUP_ROWS * 128 + run / CUTS * 8192;
            const u32 w_at = ring + from * STAGE_BYTES + X_BYTES + run % CUTS * (BLOCK_N / CUTS) * 128;
            const u64 x_from = descriptor(x_at), w_from = descriptor(w_at);
            settle(part[set]);
            products_begin();
#pragma unroll
            for (int i = 0; i < 4; ++i) multiply(part[set], advanced(x_from, 32 * i), advanced(w_from, 32 * i), i != 0);
            products_commit();
          };
          if constexpr (OVERLAP) {
            // The last run of a block of k is scaled while the first one of the next is made. It is waited for before:
            // the assembler makes products one by one where some are under way from one round of a loop to the next.
            // The two results take turns from run to run, so that the last run of each round has the second one.
            constexpr int REST = K_BLOCKS % UNROLLED, ODD = REST * RUNS % 2;
            u32 read = 0;
#pragma unroll
            for (int i = 0; i < PIECE; ++i) part[1 - ODD][i] = 0.0f;
            const auto multiply_block = [&](int block, int before, bool first,
                                            bool last) {  // `before`: runs of the round
              barrier_wait(full + 8 * stage, phase);
              start(0, before % 2, stage);
              products_wait<1>();
              if (!W_BY_ROW && !first) release(empty + 8 * read, lane);
              finish(RUNS - 1, (before + 1) % 2, read);
              if constexpr (W_BY_ROW) {
                sync_warp();
                if (block > 0) release(empty + 8 * read, lane);
              }
#ifdef SCALES_LOADED
              make_factors(factors, next);
              load_next(block + 1);
#endif  // SCALES_LOADED
#pragma unroll
              for (int run = 1; run < RUNS; ++run) {
                start(run, (before + run) % 2, stage);
                products_wait<1>();
                finish(run - 1, (before + run - 1) % 2, stage);
              }
              if (last) {
                products_wait<0>();
                if constexpr (!W_BY_ROW) release(empty + 8 * stage, lane);
              }
              read = stage;
              if (++stage == STAGES) stage = 0, phase ^= 1;
            };
#pragma unroll
            for (int i = 0; i < REST; ++i) multiply_block(i, ODD + i * RUNS, i == 0, i == REST - 1);
            for (int block = REST; block < K_BLOCKS; block += UNROLLED) {
#pragma unroll
              for (int i = 0; i < UNROLLED; ++i) multiply_block(block + i, i * RUNS, i == 0, i == UNROLLED - 1);
            }
            finish(RUNS - 1, 1, read);
            if constexpr (W_BY_ROW) {
              sync_warp();
              release(empty + 8 * read, lane);
            }
          } else {
            each_block(
                [&](int block, int place) {
                  barrier_wait(full + 8 * stage, phase);
#pragma unroll
                  for (int run = 0; run < RUNS; ++run) {
                    start(run, 0, stage);
                    if (run == 0) find_factors(block, place);
                    products_wait<0>();
                    if (!W_BY_ROW && run == RUNS - 1) release(empty + 8 * stage, lane);
                    finish(run, 0, stage);
                  }
                  if constexpr (W_BY_ROW) release(empty + 8 * stage, lane);
                  if (++stage == STAGES) stage = 0, phase ^= 1;
                },
                m < 0 ? 0 : K_BLOCKS);
          }
        } else {
          const auto multiply_block = [&](int block, int turn) {
            const u32 x_at = ring + stage * STAGE_BYTES + group * GROUP_ROWS * 128;
            const u64 x_from = descriptor(x_at), w_from = descriptor(ring + stage * STAGE_BYTES + X_BYTES);
            barrier_wait(full + 8 * stage, phase);
#pragma unroll
            for (int p = 0; p < PARTS; ++p) settle(part[p]);
            if constexpr (ALTERNATE > 0) sync_threads(TURNS + group, 256);
            products_begin();
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
              for (int p = 0; p < PARTS; ++p)
                multiply(part[p], advanced(x_from, p * 8192 + 32 * i), advanced(w_from, 32 * i), i != 0);
              if (i + 1 == ALTERNATE && i < 3) products_commit();
            }
            products_commit();
            find_factors(block, turn);
            if constexpr (ALTERNATE > 0) {
              products_wait<(ALTERNATE < 4)>();
              arrive_threads(TURNS + 1 - group, 256);
            }
            products_wait<0>();
#pragma unroll
            for (int p = 0; p < PARTS; ++p) settle(part[p]);
            if constexpr (W_BY_ROW) {
#pragma unroll
              for (int p = 0; p < PARTS; ++p)
                add_scaled_by_row(total[p], part[p], factors.of[p], row_scales + stage * BLOCK_N * 4, 0);
            }
            release(empty + 8 * stage, lane);
            if (++stage == STAGES) stage = 0, phase ^= 1;
            if constexpr (!W_BY_ROW) {
#pragma unroll
              for (int p = 0; p < PARTS; ++p) add_scaled(total[p], part[p], factors.of[p], 0, border);
            }
          };
          each_block(multiply_block, m < 0 ? 0 : K_BLOCKS);
        }
      } else {
        u32 read = 0;  // the stage of the products that may not be done yet
        for (int block = 0; block < K_BLOCKS; ++block) {
          const u32 x_at = ring + stage * STAGE_BYTES + group * GROUP_ROWS * 128;
          const u32 w_at = ring + stage * STAGE_BYTES + X_BYTES;
          const u64 x_from = X_ACROSS ? across_descriptor(x_at, CHUNK_BYTES) : descriptor(x_at);
          const u64 w_from = W_ACROSS ? across_descriptor(w_at, CHUNK_BYTES) : descriptor(w_at);
          barrier_wait(full + 8 * stage, phase);
          products_begin();
#pragma unroll
          for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int p = 0; p < PARTS; ++p)
              multiply(total[p], advanced(x_from, p * 8192 + X_STEP * i), advanced(w_from, W_STEP * i), block + i != 0);
          products_commit();
          products_wait<1>();
          if (block > 0) release(empty + 8 * read, lane);
          read = stage;
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        products_wait<0>();
#pragma unroll
        for (int p = 0; p < PARTS; ++p) settle(total[p]);
        release(empty + 8 * read, lane);
      }

      if constexpr (BIAS) add_bias(total, place.column, bias);
      if constexpr (STAGED) {
        const u32 results = slices + group * RESULT_SLICES * SLICE_BYTES;
        if (leader) store_wait_read<0>();
        sync_threads(1 + group, 128);
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
#ifdef GROUPS
          const int left = walk.rows - row - 64 * p;
          if (left < 64) {
            if (left > 0) store_rows(y, total[p], walk.start + row + 64 * p, left, place.column);
            continue;
          }
#endif
#pragma unroll
          for (int i = 0; i < SLICES; ++i)
            write_slice(results + (p * SLICES + i) * SLICE_BYTES, total[p], i * SLICE_COLUMNS / 8);
        }
        fence_async_shared();
        sync_threads(1 + group, 128);
        if (leader) {
#pragma unroll
          for (int p = 0; p < PARTS; ++p) {
            const int left = walk.rows - row - 64 * p;
#ifdef GROUPS
            if (left < 64) continue;
#endif
#pragma unroll
            for (int i = 0; i < SLICES; ++i) {
              const int column = place.column + i * SLICE_COLUMNS;
              const u32 at = results + (p * SLICES + i) * SLICE_BYTES;
              if (column < N && left > 0) tma_store(y_map, at, column, walk.start + row + 64 * p);
            }
          }
          store_commit();
        }
        continue;
      }
#pragma unroll
      for (int p = 0; p < PARTS; ++p) {
        const int y_row = walk.start + row + 64 * p, left = walk.rows - row - 64 * p;
#ifdef GROUPS_X_ACROSS
        const int before = walk.lead - row - 64 * p;  // rows of the part that are not its group's
        if (left < 64 || before > 0) {
          if (left > 0) store_rows(y, total[p], y_row, left, place.column, before);
          continue;
        }
#else  // GROUPS_X_ACROSS
#ifdef GROUPS
        if (left < 64) {
          if (left > 0) store_rows(y, total[p], y_row, left, place.column);
          continue;
        }
#endif
#endif  // GROUPS_X_ACROSS
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
            if (column < N && left > 0) {
              if constexpr (ACCUMULATE) tma_add(y_map, at, column, y_row);
              else tma_store(y_map, at, column, y_row);
            }
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
