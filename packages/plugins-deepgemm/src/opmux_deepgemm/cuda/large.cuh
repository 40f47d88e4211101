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
  const u32 row_scales = empty + 8 * STAGES;  // of the rows of w of each stage
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
    if constexpr (CONSUMERS > 1) registers_down<W_BY_ROW ? 40 : 24>();
    if (thread == 128 * CONSUMERS) {
      for (TILES(walk)) {
        const Place place = place_of(walk.tile, walk.units, rank);
        const int x_row = walk.start + place.row, w_row = walk.group * N + place.column;
        for (int block = 0; block < K_BLOCKS; ++block) {
          const u32 x_at = ring + stage * STAGE_BYTES, w_at = x_at + X_BYTES;
          barrier_wait(empty + 8 * stage, phase ^ 1);
          barrier_expect(full + 8 * stage, STAGE_BYTES);
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
      const int row = place.row + group * GROUP_ROWS;

      if constexpr (SCALED) {
        const float* x_rows[2 * PARTS];
        const float* w_rows[W_SCALES];
#pragma unroll
        for (int i = 0; i < 2 * PARTS; ++i) {
          const int at = row + 64 * (i / 2) + (int)fragment_row(thread) + 8 * (i % 2);
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
#pragma unroll
        for (int p = 0; p < PARTS; ++p)
#pragma unroll
          for (int i = 0; i < VALUES; ++i) total[p][i] = 0.0f;
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
              make_factors(factors, next);
              load_next(block + 1);
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
            for (int block = 0; block < K_BLOCKS; block += AT_ONCE) {
#pragma unroll
              for (int i = 0; i < AT_ONCE; ++i) {
                if (K_BLOCKS % AT_ONCE && block + i >= K_BLOCKS) break;
                barrier_wait(full + 8 * stage, phase);
#pragma unroll
                for (int run = 0; run < RUNS; ++run) {
                  start(run, 0, stage);
                  if (run == 0) find_factors(block + i, AT_ONCE == QUAD ? i : block % QUAD);
                  products_wait<0>();
                  if (!W_BY_ROW && run == RUNS - 1) release(empty + 8 * stage, lane);
                  finish(run, 0, stage);
                }
                if constexpr (W_BY_ROW) release(empty + 8 * stage, lane);
                if (++stage == STAGES) stage = 0, phase ^= 1;
              }
            }
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
          for (int block = 0; block < K_BLOCKS; block += AT_ONCE) {
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
              if (K_BLOCKS % AT_ONCE && block + i >= K_BLOCKS) break;
              multiply_block(block + i, AT_ONCE == QUAD ? i : block % QUAD);
            }
          }
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
