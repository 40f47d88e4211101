"""What can be chosen about a kernel: its tile, and how the tile is fed and shared. Imports no toolchain."""

from dataclasses import dataclass
from typing import Literal

SHARED_BYTES = 232_448
"""Of a block, at most: 227 KB (CUDA programming guide, compute capability 9.0)."""
ROW_BYTES = 128
"""Bytes of k in the rows of a stage."""
BARRIER_BYTES = 16
"""Of a stage: the barrier of its bytes and that of its readers."""
ALIGNMENT_BYTES = 1024
"""Left free so that the ring can begin at a multiple of it, as the 128-byte swizzle asks."""
COPIED_BLOCKS = 4
"""Blocks of k whose scales of x come in one copy."""
MOST_VALUES = 192
"""Values of sums that a thread of a consumer holds at most. It has 232 registers."""


@dataclass(frozen=True)
class Config:
    """A config of a kernel.

    Attributes:
        kernel: ``large``, which is persistent: its blocks compute tile after tile. ``small``, for few rows, which swaps
            the operands, computes a tile for each cluster of blocks, and cuts k between the blocks of a cluster.
        block_m: rows of x in a tile: of ``large`` 64, 128 or 256, of ``small`` a multiple of 8 up to 128.
        block_n: rows of w in a tile: of ``large`` a multiple of 16 up to 256, of ``small`` 64 or 128.
        stages: blocks of 128 bytes of k that the ring in shared memory holds.
        consumers: warp groups that multiply. Of ``large`` each takes ``block_m / consumers`` rows of x, 64 or 128; of
            ``small`` each takes 64 rows of w.
        cluster: blocks of a cluster. Of ``large`` 1, 2 or 4: their tiles lie below each other, and each copies its
            share of their rows of w for all. Of ``small`` 1, 2, 4 or 8, the parts of k.
        group: rows of tiles that ``large`` walks together, down first, so that what they read stays in the cache; 1 for
            ``small``.
        alternate: 0, or where two consumers of ``large`` scale, they multiply by turns, so that one scales while the
            other's products are made: after so many of the four steps of a block of k the other one begins, 2 to 4.
            Products without scales have no turns.
        pieces: 0, or where a consumer of ``large`` scales, in how many pieces of its columns it multiplies a block of
            k, 1 to 4, one after the other, 64 rows at a time. Where it holds two pieces beside the sums, one is scaled
            while the next is made. Products without scales have no pieces.
        share_x: whether the tiles of a cluster of ``large`` lie next to each other, and share rows of x instead.
        staged: whether shared memory has room for the whole results of a tile of ``large``, of 2 bytes each, instead of
            two slices for each consumer. Results of 4 bytes are not staged.
        copied_scales: whether shared memory has room for the scales of x of each stage of ``large``, of four blocks of
            k, so that the copy engine brings them, for products of codes whose pieces do not overlap; where the product
            is added, for those of w too, in any pieces. Scales that it cannot copy as they lie are loaded by the
            threads as without.

    Raises:
        ValueError: where there is no such kernel.
    """

    kernel: Literal["large", "small"]
    block_m: int
    block_n: int
    stages: int
    consumers: int
    cluster: int = 1
    group: int = 1
    alternate: int = 0
    pieces: int = 0
    share_x: bool = False
    staged: bool = False
    copied_scales: bool = False

    def __post_init__(self) -> None:
        if self.stages < 2:
            raise ValueError(f"stages expected 2 or more, got {self.stages}")
        if self.group < 1:
            raise ValueError(f"group expected 1 or more, got {self.group}")
        if self.kernel == "large":
            _one_of("block_m", self.block_m, (64, 128, 256))
            _multiple_of("block_n", self.block_n, 16, 256)
            _one_of("consumers", self.consumers, (1, 2))
            _one_of("cluster", self.cluster, (1, 2, 4))
            _one_of("block_m / consumers", self.block_m // self.consumers, (64, 128))
        elif self.kernel == "small":
            _multiple_of("block_m", self.block_m, 8, 128)
            _one_of("block_n", self.block_n, (64, 128))
            _one_of("consumers", self.consumers, (self.block_n // 64,))
            _one_of("cluster", self.cluster, (1, 2, 4, 8))
            _one_of("group", self.group, (1,))
        else:
            raise ValueError(f"kernel expected 'large' or 'small', got {self.kernel!r}")
        _one_of("alternate", self.alternate, (0, 2, 3, 4))
        if self.alternate and (self.kernel, self.consumers) != ("large", 2):
            raise ValueError("alternate expected two consumers of the kernel 'large'")
        _one_of("pieces", self.pieces, (0, 1, 2, 3, 4))
        if self.pieces and (self.kernel == "small" or self.alternate or self.block_n % (8 * self.pieces)):
            raise ValueError(
                "pieces expected the kernel 'large' without turns, and block_n a multiple of 8 in each piece"
            )
        if self.share_x and (self.kernel == "small" or self.cluster == 1):
            raise ValueError("share_x expected the kernel 'large' in clusters")
        if self.staged and self.kernel == "small":
            raise ValueError("staged expected the kernel 'large'")
        if self.copied_scales and (self.kernel == "small" or self.alternate):
            raise ValueError(
                "copied_scales expected the kernel 'large' without turns, got "
                f"{self.kernel!r}, {self.block_m}x{self.block_n}, alternate = {self.alternate}"
            )
        if self.values > MOST_VALUES:
            raise ValueError(f"a thread would hold {self.values} values of the tile, more than {MOST_VALUES}")
        most = max(self.shared_bytes(2), self.shared_bytes(4))
        if most > SHARED_BYTES:
            raise ValueError(f"it takes {most} bytes of shared memory, a block has {SHARED_BYTES}")

    @property
    def values(self) -> int:
        """Values of the result that a consumer's thread holds."""
        return self.block_m * self.block_n // self.consumers // 128

    @property
    def x_share(self) -> int:
        """Blocks that share the rows of x of a tile."""
        return self.cluster if self.share_x else 1

    @property
    def w_share(self) -> int:
        """Blocks that share the rows of w of a tile."""
        return 1 if self.share_x or self.kernel == "small" else self.cluster

    @property
    def overlaps(self) -> bool:
        """Whether a consumer scales one piece while the next is made."""
        even = self.runs == 1 or self.runs % 2 == 0
        return self.pieces > 0 and even and self.values + 2 * self.piece_values <= MOST_VALUES

    @property
    def takes_copied_scales(self) -> bool:
        """Whether the copy engine can bring the scales of x where a product is not added: pieces do not overlap."""
        return self.kernel == "large" and not self.alternate and not self.overlaps

    @property
    def runs(self) -> int:
        """Pieces of a block of k that a consumer multiplies one after the other."""
        return self.block_m // self.consumers // 64 * max(self.pieces, 1)

    @property
    def piece_values(self) -> int:
        """Values of a piece that a consumer's thread holds; without pieces those of a block of k."""
        return self.block_n // 2 // self.pieces if self.pieces else self.values

    @property
    def threads(self) -> int:
        """Threads of a block: the consumers' and the producer's warp groups."""
        return 128 * (self.consumers + 1)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage."""
        return (self.block_m + self.block_n) * ROW_BYTES

    def slice_width(self, out_bytes: int) -> int:
        """Bytes of a row of the slices by which ``large`` stores results: as wide a swizzle as divides the tile."""
        return next(width for width in (128, 64, 32) if self.block_n * out_bytes % width == 0)

    def shared_bytes(self, out_bytes: int, row_scales: bool = False) -> int:
        """Dynamic shared memory; a result of 4 bytes takes the most, but where results of 2 bytes are staged.

        Args:
            out_bytes: of an element of the result.
            row_scales: whether a stage has scales of each row of w.
        """
        stage = self.stage_bytes + BARRIER_BYTES
        if row_scales and self.copied_scales:
            slots = added_scales_bytes(self.block_m, self.block_n, self.stages)
            return ALIGNMENT_BYTES + self.stages * stage + slots + self._result_bytes(out_bytes)
        stage += 4 * self.block_n * row_scales + scales_bytes(self.block_m) * self.copied_scales
        return ALIGNMENT_BYTES + self.stages * stage + self._result_bytes(out_bytes)

    def _result_bytes(self, out_bytes: int) -> int:
        if self.staged and out_bytes == 2:
            return self.block_m * self.block_n * out_bytes
        if self.kernel == "large":
            return 2 * self.consumers * 64 * self.slice_width(out_bytes)
        return 4 * self.block_m * self.block_n


def scales_bytes(block_m: int) -> int:
    """Shared memory of a stage for the scales of x that the copy engine brings, and of the rows beside a group's."""
    return 4 * COPIED_BLOCKS * (block_m + 16)


def added_scales_bytes(block_m: int, block_n: int, stages: int) -> int:
    """Shared memory for the scales of both operands that the copy engine brings: slots of four blocks of k each."""
    return (2 + (stages + 2) // COPIED_BLOCKS) * 4 * COPIED_BLOCKS * (block_m + block_n)


def most_stages(
    kernel: str, block_m: int, block_n: int, consumers: int, row_scales: bool = False, staged: bool = False,
    copied_scales: bool = False,
) -> int:  # fmt: skip
    """The stages that shared memory has room for; it may be fewer than a config must have."""
    result = 2 * consumers * 64 * 128 if kernel == "large" else 4 * block_m * block_n
    result = max(result, 2 * block_m * block_n * staged)
    if row_scales and copied_scales:
        stage, room = (block_m + block_n) * ROW_BYTES + BARRIER_BYTES, SHARED_BYTES - ALIGNMENT_BYTES - result
        return max(n for n in range(17) if n * stage + added_scales_bytes(block_m, block_n, n) <= room or not n)
    return (SHARED_BYTES - ALIGNMENT_BYTES - result) // (
        (block_m + block_n) * ROW_BYTES
        + BARRIER_BYTES
        + 4 * block_n * row_scales
        + scales_bytes(block_m) * copied_scales
    )


def _one_of(name: str, value: int, values: tuple[int, ...]) -> None:
    if value not in values:
        raise ValueError(f"{name} expected {' or '.join(map(str, values))}, got {value}")


def _multiple_of(name: str, value: int, step: int, most: int) -> None:
    if value < step or value > most or value % step:
        raise ValueError(f"{name} expected a multiple of {step} up to {most}, got {value}")
