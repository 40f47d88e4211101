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
    Tile(64, 16, 128, 1, False, Cost(7.537, 0.094, 0.013, 0.259, 1.968, 0.0, 1.395)),
    Tile(64, 32, 128, 1, False, Cost(7.351, 0.073, 0.064, 0.156, 3.741, 0.042, 1.423)),
    Tile(64, 64, 64, 1, False, Cost(7.475, 0.126, 0.059, 0.149, 2.469, 0.296, 1.513)),
    Tile(64, 96, 64, 1, False, Cost(7.569, 0.151, 0.072, 0.114, 3.784, 0.25, 1.542)),
    Tile(64, 128, 64, 1, False, Cost(7.531, 0.162, 0.113, 0.131, 3.32, 0.498, 1.653)),
    Tile(64, 144, 64, 1, False, Cost(7.764, 0.214, 0.066, 0.468, 2.652, 0.556, 1.536)),
    Tile(64, 192, 64, 1, False, Cost(8.35, 0.25, 0.088, 0.433, 3.63, 0.48, 1.498)),
    Tile(64, 256, 64, 1, False, Cost(8.632, 0.307, 0.115, 0.423, 5.556, 0.344, 1.294)),
    Tile(128, 32, 128, 2, False, Cost(7.988, 0.158, 0.073, 0.0, 1.326, 0.886, 1.291)),
    Tile(128, 96, 64, 2, False, Cost(8.256, 0.24, 0.105, 0.549, 4.031, 0.395, 1.365)),
    Tile(128, 128, 64, 2, True, Cost(7.964, 0.297, 0.1, 0.0, 4.164, 0.524, 1.367)),
    Tile(128, 144, 64, 2, False, Cost(8.271, 0.351, 0.146, 0.467, 1.347, 0.915, 1.354)),
    Tile(128, 160, 64, 2, False, Cost(7.634, 0.388, 0.134, 0.994, 5.409, 0.447, 1.331)),
    Tile(192, 96, 64, 3, False, Cost(9.519, 0.372, 0.148, 0.28, 6.025, 0.328, 1.2)),
    Tile(192, 128, 64, 3, False, Cost(8.083, 0.396, 0.193, 0.475, 6.938, 0.489, 1.278)),
    Tile(256, 128, 64, 2, False, Cost(7.533, 0.557, 0.2, 0.859, 2.998, 1.359, 1.272)),
)
