"""The instances of CK's universal GEMM: what a tile is, and the rules of what is legal."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

WAVE = 64
"""Threads of a wave."""
MOST_THREADS = 512
MFMA = {16: (16, 32), 32: (8, 16)}
"""Rows (and columns) of a matrix instruction on 16-bit elements, with the lengths of k that CK has for them."""
MFMA_OF_CODES = {16: (32,), 32: (16,)}
"""The same on 8-bit elements, fp8 and int8 alike."""
PIPELINES = ("v3", "v4", "mem")
"""CK's loops over k: compute-optimised with one buffer in LDS and with two, and one that keeps more loads in flight."""
LDS_BYTES = 64 * 1024
LOAD_BYTES = 16
"""Of a load of x or w."""
STORES = (1, 2, 4, 8)
MOST_SIDE = 256
"""Rows of a tile, of x and of w: a launch addresses them in 32 bits, however long the rows are."""
SCALE_BLOCK = 128
"""Elements of k, and rows of w, that share a scale."""
MOST_SUMS = 128
"""Accumulators of a thread. With 256, half of its registers, clang 22 spills 55 of the others (256x256x32, ``v4``)."""


@dataclass(frozen=True)
class GemmConfig:
    """The tile of a workgroup, and how it runs over k.

    Attributes:
        m: rows of the result.
        n: columns of the result.
        k: elements of k in a step of the loop.
        waves_m: waves side by side in m.
        waves_n: waves side by side in n.
        mfma: rows and columns of the matrix instruction.
        mfma_k: elements of k that a wave multiplies at a time: one instruction's, or two's.
        pipeline: CK's loop over k, one of `PIPELINES`.
        store: elements of a store; they divide the columns of the result.
        pads_n: whether the columns of the result may end within a tile.
        pads_k: whether k may end within a step.
        split_k: parts that k is cut into. Workgroups of their own compute them in float32, and they are summed up.
    """

    kernel: ClassVar[str] = "linear"
    element_bytes: ClassVar[int] = 2
    instructions: ClassVar[Mapping[int, tuple[int, ...]]] = MFMA
    pipelines: ClassVar[tuple[str, ...]] = PIPELINES
    most_splits: ClassVar[int] = 64

    m: int
    n: int
    k: int
    waves_m: int
    waves_n: int
    mfma: int
    mfma_k: int
    pipeline: str = "v3"
    store: int = 8
    pads_n: bool = True
    pads_k: bool = True
    split_k: int = 1

    def __post_init__(self) -> None:
        for reason in broken_rules(self):
            raise ValueError(reason)

    @property
    def threads(self) -> int:
        """Of a workgroup."""
        return self.waves_m * self.waves_n * WAVE

    @property
    def load(self) -> int:
        """Elements of a load."""
        return LOAD_BYTES // self.element_bytes

    @property
    def lds_bytes(self) -> int:
        """What the tiles of x and w take of LDS."""
        return (self.m + self.n) * self.k * self.element_bytes * (2 if self.pipeline == "v4" else 1)

    @property
    def stages(self) -> int:
        """Steps that are loaded ahead of the one that is multiplied, as CK counts them."""
        if self.pipeline != "mem":
            return 2
        in_flight = 32768 // max(4 * WAVE // self.threads, 1)
        return min(max(-(-in_flight // ((self.m + self.n) * self.k * self.element_bytes)), 2), 8)


@dataclass(frozen=True)
class GroupedConfig(GemmConfig):
    """The same for groups of rows: without the loop of two buffers, and k is not cut."""

    kernel: ClassVar[str] = "grouped_linear"
    pipelines: ClassVar[tuple[str, ...]] = ("v3", "mem")
    most_splits: ClassVar[int] = 1


@dataclass(frozen=True)
class CodesConfig(GemmConfig):
    """The same for 8-bit codes with scales: CK has one loop over k for them, and does not cut k."""

    kernel: ClassVar[str] = "scaled_linear"
    element_bytes: ClassVar[int] = 1
    instructions: ClassVar[Mapping[int, tuple[int, ...]]] = MFMA_OF_CODES
    pipelines: ClassVar[tuple[str, ...]] = ("v3",)
    most_splits: ClassVar[int] = 1


@dataclass(frozen=True)
class BlockCodesConfig(CodesConfig):
    """The same for codes with scales of blocks, 1x128 of x and 128x128 of w: a step of k is a block."""

    kernel: ClassVar[str] = "block_scaled_linear"


@dataclass(frozen=True)
class GroupedCodesConfig(CodesConfig):
    """The same for groups of rows of codes with scales of tokens and channels."""

    kernel: ClassVar[str] = "scaled_grouped_linear"


@dataclass(frozen=True)
class GroupedBlockCodesConfig(BlockCodesConfig):
    """The same for groups of rows of codes with scales of blocks."""

    kernel: ClassVar[str] = "block_scaled_grouped_linear"


def broken_rules(config: GemmConfig) -> Iterator[str]:
    """Why no instance can be made of a config, whatever the call."""
    c = config
    sizes = (c.m, c.n, c.k, c.waves_m, c.waves_n, c.split_k)
    if min(sizes) < 1:
        yield f"m, n, k, waves_m, waves_n and split_k = {', '.join(map(str, sizes))}: one is less than 1"
        return
    if c.mfma not in c.instructions or c.mfma_k not in c.instructions[c.mfma]:
        known = ", ".join(f"{size}x{size}x{k}" for size, ks in c.instructions.items() for k in ks)
        yield f"mfma = {c.mfma}x{c.mfma}x{c.mfma_k} is not one of {known}"
        return
    if c.pipeline not in c.pipelines:
        yield f"pipeline = {c.pipeline!r} is not one of {', '.join(c.pipelines)}"
    if c.store not in STORES:
        yield f"store = {c.store} is not {', '.join(map(str, STORES[:-1]))} or {STORES[-1]}"
    if c.threads > MOST_THREADS:
        yield f"waves_m * waves_n = {c.waves_m * c.waves_n} is more than {MOST_THREADS // WAVE} waves"
    for side, size, waves in (("m", c.m, c.waves_m), ("n", c.n, c.waves_n)):
        if size % (waves * c.mfma):
            yield f"{side} = {size} is not a multiple of waves_{side} * mfma = {waves * c.mfma}"
        if size * c.k % (c.threads * c.load):
            yield f"{side} * k = {size * c.k} is not a multiple of {c.load} elements for each of {c.threads} threads"
        if size > MOST_SIDE:
            yield f"{side} = {size} is more than {MOST_SIDE}"
    if isinstance(c, BlockCodesConfig) and (c.k != SCALE_BLOCK or SCALE_BLOCK % c.n):
        yield f"k = {c.k} and n = {c.n}: blocks of scales take k = {SCALE_BLOCK} and an n that divides it"
    if c.k % c.mfma_k:
        yield f"k = {c.k} is not a multiple of mfma_k = {c.mfma_k}"
    if WAVE * c.load % c.k:
        yield f"k = {c.k} does not divide the {WAVE * c.load} elements that a wave loads at a time"
    if c.lds_bytes > LDS_BYTES:
        yield f"the tiles take {c.lds_bytes} bytes of LDS, more than {LDS_BYTES}"
    if c.m * c.n > MOST_SUMS * c.threads:
        yield f"m * n = {c.m * c.n} is more than {MOST_SUMS} accumulators for each of {c.threads} threads"
    if c.split_k > c.most_splits:
        yield f"split_k = {c.split_k} is more than {c.most_splits}"


def misfit(config: GemmConfig, n: int, k: int) -> str | None:
    """Why an instance cannot compute ``n`` columns over ``k`` elements, or None."""
    if k % config.load:
        return f"k = {k} is not a multiple of {config.load}"
    if n % config.store:
        return f"n = {n} is not a multiple of the elements of a store, {config.store}"
    if not config.pads_n and n % config.n:
        return f"n = {n} does not fill the tile of {config.n}, and it does not pad"
    if config.split_k > 1 and k % (config.k * config.split_k):  # CK's last part would take another loop than the others
        return f"k = {k} is not {config.split_k} equal parts of steps of {config.k}"
    if not config.pads_k and k % config.k:
        return f"k = {k} does not fill the steps of {config.k}, and it does not pad"
    return None


def loops(config: GemmConfig, k: int) -> int:
    """The smallest number of steps for which CK compiles the same loop as for ``k`` elements.

    CK's loops differ in how they end: in what is left over when the stages that are loaded ahead repeat.
    """
    steps = -(-k // (config.k * config.split_k))
    stages = config.stages
    if config.pipeline == "v3":
        return min(steps, stages + 1)
    return steps if steps <= stages else stages + (steps - 1) % stages + 1
