
// Copies a box of one of several matrices to shared memory; what lies outside of the matrix is filled with zeros, and
// counts as bytes.
DEVICE void tma_load_of(u32 to, const TensorMap& map, u32 barrier, int column, int row, int matrix) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(matrix)
      : "memory");
}

// The same to these blocks of the cluster, at the same address, each with its own barrier.
DEVICE void tma_load_multicast_of(u32 to, const TensorMap& map, u32 barrier, int column, int row, int matrix,
                                  u16 blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(matrix), "h"(blocks)
      : "memory");
}
