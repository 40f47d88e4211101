"""The tiles of the Gluon kernel for sm_90, and what each costs.

The constants were fitted by ``benchmarks/fit_products.py`` to kernel times of ``benchmarks/measure_products.py`` on an
H200. To fit them again, run the two and replace the table below by what the second prints. Loads no Triton.
"""

from typing import NamedTuple


class Cost(NamedTuple):
    """The constants of a tile, in microseconds; `opmux_triton.gemm.hopper_model` says how they add up.

    Attributes:
        start: launching, filling the ring, and storing the last tile.
        block: a block of 64 of k, alone on the device.
        load: what a block takes longer where all multiprocessors load.
        round: storing a tile, where another one follows.
        cut: storing partial sums, where tiles are cut along k.
        sum: reading the partial sums of one share.
        memory: the bytes of the operands and the result, over their time at full bandwidth.
    """

    start: float
    block: float
    load: float
    round: float
    cut: float
    sum: float
    memory: float


class Tile(NamedTuple):
    """A tile of the kernel: the fields of `opmux_triton.gemm.configs.HopperConfig` of the same names, and its cost."""

    block_m: int
    block_n: int
    block_k: int
    warpgroups: int
    alternate: bool
    cost: Cost


TILES = (
    Tile(64, 16, 128, 1, False, Cost(7.542, 0.094, 0.012, 0.138, 1.941, 0.0, 1.402)),
    Tile(64, 32, 128, 1, False, Cost(7.686, 0.065, 0.077, 0.021, 3.113, 0.036, 1.39)),
    Tile(64, 64, 64, 1, False, Cost(8.135, 0.119, 0.073, 0.014, 1.837, 0.232, 1.521)),
    Tile(64, 96, 64, 1, False, Cost(8.021, 0.147, 0.079, 0.005, 3.114, 0.202, 1.526)),
    Tile(64, 128, 64, 1, False, Cost(7.8, 0.158, 0.116, 0.113, 3.266, 0.346, 1.619)),
    Tile(64, 128, 128, 1, False, Cost(7.583, 0.192, 0.057, 0.337, 2.785, 0.451, 1.614)),
    Tile(64, 144, 64, 1, False, Cost(7.864, 0.208, 0.071, 0.437, 1.809, 0.585, 1.536)),
    Tile(64, 192, 64, 1, False, Cost(8.232, 0.243, 0.088, 0.403, 3.071, 0.533, 1.484)),
    Tile(64, 256, 64, 1, False, Cost(8.427, 0.299, 0.116, 0.373, 4.895, 0.346, 1.32)),
    Tile(128, 16, 128, 2, False, Cost(7.197, 0.099, 0.099, 0.287, 2.985, 0.0, 1.439)),
    Tile(128, 32, 128, 2, False, Cost(7.938, 0.15, 0.08, 0.046, 1.162, 0.829, 1.332)),
    Tile(128, 96, 64, 2, False, Cost(8.202, 0.241, 0.105, 0.543, 3.384, 0.42, 1.361)),
    Tile(128, 128, 64, 2, False, Cost(7.834, 0.274, 0.127, 0.342, 3.71, 0.517, 1.375)),
    Tile(128, 128, 64, 2, True, Cost(8.226, 0.284, 0.114, 0.0, 3.677, 0.572, 1.349)),
    Tile(128, 144, 64, 2, False, Cost(8.424, 0.346, 0.153, 0.415, 2.305, 0.803, 1.344)),
    Tile(128, 160, 64, 2, False, Cost(7.674, 0.382, 0.143, 0.939, 4.908, 0.473, 1.351)),
    Tile(128, 192, 64, 2, False, Cost(7.549, 0.437, 0.149, 0.799, 6.773, 0.319, 1.419)),
    Tile(128, 256, 64, 2, False, Cost(7.598, 0.559, 0.219, 0.835, 5.005, 1.796, 1.211)),
    Tile(192, 80, 64, 3, False, Cost(10.106, 0.317, 0.15, 0.372, 4.452, 0.156, 1.245)),
    Tile(192, 96, 64, 3, False, Cost(9.188, 0.374, 0.148, 0.262, 5.567, 0.216, 1.221)),
    Tile(192, 128, 64, 3, False, Cost(8.005, 0.399, 0.194, 0.47, 6.916, 0.56, 1.275)),
    Tile(256, 96, 64, 2, False, Cost(7.84, 0.521, 0.154, 0.965, 6.136, 0.211, 1.237)),
    Tile(256, 128, 64, 2, False, Cost(7.867, 0.526, 0.249, 0.703, 2.825, 1.377, 1.269)),
    Tile(256, 144, 64, 2, False, Cost(9.931, 0.736, 0.309, 0.265, 6.138, 0.614, 1.327)),
    Tile(256, 160, 64, 2, False, Cost(8.862, 0.737, 0.356, 1.135, 6.248, 0.698, 1.334)),
    Tile(256, 192, 64, 2, False, Cost(8.723, 1.772, 0.253, 0.0, 7.21, 0.758, 1.694)),
)
