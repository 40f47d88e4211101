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

// Says to every block that filled it that a warp has read a stage.
DEVICE void release(u32 empty, u32 lane) {
  if constexpr (W_BY_ROW) barrier_arrive(empty);
  if constexpr (CLUSTER > 1) {
    if (lane < CLUSTER && !(W_BY_ROW && lane == cluster_rank())) barrier_arrive_at(empty, lane);
  } else {
    if (!W_BY_ROW && lane == 0) barrier_arrive(empty);
  }
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
