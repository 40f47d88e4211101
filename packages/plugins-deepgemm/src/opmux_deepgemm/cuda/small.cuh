// y^T = w x^T for few rows of x: rows of w take the matrix unit's 64 rows, rows of x its columns, so that BLOCK_M may
// be 8.
//
// Each cluster of SPLIT blocks computes a tile of BLOCK_N columns of y for BLOCK_M rows; each of its blocks multiplies
// a share of k. Every byte of w is read once for each tile of rows, of which there are few, so what counts is how many
// copies are under way: the ring has many stages. The blocks' sums meet in shared memory, and are added in the order of
// the blocks: equal inputs give equal bits.
//
// SCALED: the eight threads of a warp whose columns are the same rows of x need the same scales. Each loads those of
// one of eight blocks of k, while those of the eight blocks before are used, and gives them to the others.

constexpr int BLOCK_K = 128 / OPERAND_BYTES;
constexpr int K_BLOCKS = (K + BLOCK_K - 1) / BLOCK_K;
constexpr int VALUES = BLOCK_M / 2;          // of a result of the matrix unit, in a thread
constexpr int ALIKE = 8;                     // threads of a warp that need the same scales
constexpr int AT_ONCE = SCALED ? ALIKE : 1;  // blocks of k in a round of the loop

constexpr u32 W_BYTES = BLOCK_N * 128, X_BYTES = BLOCK_M * 128, STAGE_BYTES = W_BYTES + X_BYTES;
constexpr u32 THREADS = 128 * (CONSUMERS + 1);
constexpr u32 SUM_BYTES = BLOCK_N * BLOCK_M * 4;

KERNEL(THREADS)
product(MAP x_map, MAP w_map, u8* y, const float* x_scale, const float* w_scale, const u16* bias, long long x_scale_row,
        long long x_scale_block, long long w_scale_row, long long w_scale_block, int m) {
  DYNAMIC_SHARED_MEMORY(memory);
  const u32 ring = (shared_address(memory) + 1023) & ~1023u;
  const u32 sums = ring + STAGES * STAGE_BYTES;
  const u32 full = sums + SUM_BYTES, empty = full + 8 * STAGES;
  const u32 thread = threadIdx.x, group = uniform(thread / 128);
  const int rank = SPLIT > 1 ? (int)cluster_rank() : 0;
  const int column = (int)blockIdx.x / SPLIT * BLOCK_N, row = (int)blockIdx.y * BLOCK_M;
  const int begin = rank * K_BLOCKS / SPLIT, end = (rank + 1) * K_BLOCKS / SPLIT;

  if (thread == 0) {
    prefetch_map(x_map);
    prefetch_map(w_map);
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
  if (group == CONSUMERS) {
    if (thread == 128 * CONSUMERS) {
      for (int block = begin; block < end; ++block) {
        const u32 w_at = ring + stage * STAGE_BYTES, x_at = w_at + W_BYTES;
        barrier_wait(empty + 8 * stage, phase ^ 1);
        barrier_expect(full + 8 * stage, STAGE_BYTES);
        tma_load(w_at, w_map, full + 8 * stage, block * BLOCK_K, column);
        tma_load(x_at, x_map, full + 8 * stage, block * BLOCK_K, row);
        if (++stage == STAGES) stage = 0, phase ^= 1;
      }
    }
  } else {
    const u32 lane = thread % 32;
    float total[VALUES] = {}, part[VALUES] = {};
    // The rows of x whose scales a thread needs are its columns of the result.
    const float* x_columns[VALUES / 2];
    const float* w_row = nullptr;
    float x_next[VALUES / 2], w_next, own[VALUES / 2];
    const int w_block = (column + (int)group * 64) / 128;
    if constexpr (SCALED) {
#pragma unroll
      for (int i = 0; i < VALUES / 2; ++i) {
        const int at = row + 8 * (i / 2) + (int)fragment_column(thread) + i % 2;
        x_columns[i] = x_scale + (at < m ? at : m - 1) * x_scale_row;
      }
      w_row = w_scale + (w_block < W_SCALE_ROWS ? w_block : W_SCALE_ROWS - 1) * w_scale_row;
    }
    const int own_block = (int)lane / 4;     // of each ALIKE
    const auto load_next = [&](int block) {  // or the last one: no branch, for which products would be waited for
      block = block < end ? block : end - 1;
#pragma unroll
      for (int i = 0; i < VALUES / 2; ++i) x_next[i] = load_constant(x_columns[i] + block * x_scale_block);
      w_next = load_constant(w_row + block * w_scale_block);
    };
    if constexpr (SCALED) {
      if (begin < end) load_next(begin + own_block);
    }
    u32 read = 0;
    const auto multiply_block = [&](int block, int place) {  // `block` is one of ALIKE in this place
      const u64 w_from = descriptor(ring + stage * STAGE_BYTES + group * 8192);
      const u64 x_from = descriptor(ring + stage * STAGE_BYTES + W_BYTES);
      barrier_wait(full + 8 * stage, phase);
      if constexpr (SCALED) {
        float factors[VALUES / 2];
        settle(part);
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; ++i) multiply(part, advanced(w_from, 32 * i), advanced(x_from, 32 * i), i != 0);
        products_commit();
        if (place == 0) {
#pragma unroll
          for (int i = 0; i < VALUES / 2; ++i) own[i] = x_next[i] * w_next;
          load_next(block + ALIKE + own_block);
        }
#pragma unroll
        for (int i = 0; i < VALUES / 2; ++i) factors[i] = of_lane(own[i], 4 * place + (int)lane % 4);
        products_wait<0>();
        settle(part);
        if (lane == 0) barrier_arrive(empty + 8 * stage);
#pragma unroll
        for (int i = 0; i < VALUES; ++i) total[i] += part[i] * factors[i / 4 * 2 + i % 2];
      } else {
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; ++i)
          multiply(total, advanced(w_from, 32 * i), advanced(x_from, 32 * i), block - begin + i != 0);
        products_commit();
        products_wait<1>();
        if (block > begin && lane == 0) barrier_arrive(empty + 8 * read);
        read = stage;
      }
      if (++stage == STAGES) stage = 0, phase ^= 1;
    };
    for (int block = begin; block < end; block += AT_ONCE) {
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        if (block + i >= end) break;
        multiply_block(block + i, i);
      }
    }
    if constexpr (!SCALED) {
      products_wait<0>();
      settle(total);
    }
    // Sums lie as y does: columns of y side by side.
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      const u32 y_column = group * 64 + fragment_row(thread) + i / 2 % 2 * 8;
      const u32 y_row = i / 4 * 8 + fragment_column(thread) + i % 2;
      store_shared(sums + (y_row * BLOCK_N + y_column) * 4, total[i]);
    }
  }
  if constexpr (SPLIT > 1) sync_cluster();
  else __syncthreads();

  const int rows = m - row < BLOCK_M ? m - row : BLOCK_M;
  for (int i = rank * THREADS + thread; i < rows * (BLOCK_N / 2); i += SPLIT * THREADS) {
    const int y_row = i / (BLOCK_N / 2), y_column = i % (BLOCK_N / 2) * 2, at = column + y_column;
    if (at >= N) continue;
    float pair[2] = {};
#pragma unroll
    for (int block = 0; block < SPLIT; ++block)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const u32 address = sums + (y_row * BLOCK_N + y_column + j) * 4;
        pair[j] += SPLIT > 1 ? load_of_block(address, block) : load_shared(address);
      }
    if constexpr (BIAS) {
      pair[0] += bfloat16_value(load_constant(bias + at));
      pair[1] += bfloat16_value(load_constant(bias + at + 1));
    }
    u8* to = y + ((long long)(row + y_row) * N + at) * OUT_BYTES;
    if constexpr (OUT_BYTES == 2) {
      *(u32*)to = bfloat16_pair(pair[0], pair[1]);
    } else {
      ((float*)to)[0] = pair[0];
      ((float*)to)[1] = pair[1];
    }
  }
  // The other blocks of the cluster may still read this one's sums.
  if constexpr (SPLIT > 1) meet_cluster();
}
