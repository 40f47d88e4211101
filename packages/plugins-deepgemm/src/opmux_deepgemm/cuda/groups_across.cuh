// In front of large.cuh where the w of each group lies across k: its rows are next to each other, and each group is a
// matrix of its own, with k rows.
//
// large.cuh counts the rows of w of all groups, as they follow each other where they lie along k. Here such a row is
// that of a group's matrix: the map has three dims, so that the last block of k has zeros instead of the next group's
// values, which may be NaN. What a tile has beyond the last row of its group's w may come from the next group: those
// columns of the result are not stored.

DEVICE void load_of_x_map(u32 to, const TensorMap& map, u32 barrier, int column, int row) {
  tma_load(to, map, barrier, column, row);
}

DEVICE void load_of_w_map(u32 to, const TensorMap& map, u32 barrier, int column, int row) {
  tma_load_of(to, map, barrier, column % N, row, column / N);
}

DEVICE void load_multicast_of_x_map(u32 to, const TensorMap& map, u32 barrier, int column, int row, u16 blocks) {
  tma_load_multicast(to, map, barrier, column, row, blocks);
}

DEVICE void load_multicast_of_w_map(u32 to, const TensorMap& map, u32 barrier, int column, int row, u16 blocks) {
  tma_load_multicast_of(to, map, barrier, column % N, row, column / N, blocks);
}

#define tma_load(to, map, ...) load_of_##map(to, map, __VA_ARGS__)
#define tma_load_multicast(to, map, ...) load_multicast_of_##map(to, map, __VA_ARGS__)
