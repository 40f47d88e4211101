"""The instances of CK's universal GEMM: what a tile is, and the rules of what is legal."""

from collections.abc import Iterator
from dataclasses import dataclass

WAVE = 64
"""Threads of a wave."""
MOST_THREADS = 512
MFMA = {16: (16, 32), 32: (8, 16)}
"""Rows (and columns) of a matrix instruction on 16-bit elements, with the lengths of k that CK has for them."""
PIPELINES = ("v3", "v4", "mem")
"""CK's loops over k: compute-optimised with one buffer in LDS and with two, and one that keeps more loads in flight."""
LDS_BYTES = 64 * 1024
ELEMENT_BYTES = 2
LOAD = 8
"""Elements of a load of x or w: 16 bytes."""
STORES = (1, 2, 4, 8)
MOST_SUMS = 128
"""Accumulators of a thread. With 256, half of its registers, clang 22 spills 55 of the others (256x256x32, ``v4``)."""
MOST_SPLITS = 64


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
    def lds_bytes(self) -> int:
        """What the tiles of x and w take of LDS."""
        return (self.m + self.n) * self.k * ELEMENT_BYTES * (2 if self.pipeline == "v4" else 1)

    @property
    def stages(self) -> int:
        """Steps that are loaded ahead of the one that is multiplied, as CK counts them."""
        if self.pipeline != "mem":
            return 2
        in_flight = 32768 // max(4 * WAVE // self.threads, 1)
        return min(max(-(-in_flight // ((self.m + self.n) * self.k * ELEMENT_BYTES)), 2), 8)


def broken_rules(config: GemmConfig) -> Iterator[str]:
    """Why no instance can be made of a config, whatever the call."""
    c = config
    sizes = (c.m, c.n, c.k, c.waves_m, c.waves_n, c.split_k)
    if min(sizes) < 1:
        yield f"m, n, k, waves_m, waves_n and split_k = {', '.join(map(str, sizes))}: one is less than 1"
        return
    if c.mfma not in MFMA or c.mfma_k not in MFMA[c.mfma]:
        known = ", ".join(f"{size}x{size}x{k}" for size, ks in MFMA.items() for k in ks)
        yield f"mfma = {c.mfma}x{c.mfma}x{c.mfma_k} is not one of {known}"
        return
    if c.pipeline not in PIPELINES:
        yield f"pipeline = {c.pipeline!r} is not {', '.join(PIPELINES[:-1])} or {PIPELINES[-1]}"
    if c.store not in STORES:
        yield f"store = {c.store} is not {', '.join(map(str, STORES[:-1]))} or {STORES[-1]}"
    if c.threads > MOST_THREADS:
        yield f"waves_m * waves_n = {c.waves_m * c.waves_n} is more than {MOST_THREADS // WAVE} waves"
    for side, size, waves in (("m", c.m, c.waves_m), ("n", c.n, c.waves_n)):
        if size % (waves * c.mfma):
            yield f"{side} = {size} is not a multiple of waves_{side} * mfma = {waves * c.mfma}"
        if size * c.k % (c.threads * LOAD):
            yield f"{side} * k = {size * c.k} is not a multiple of {LOAD} elements for each of {c.threads} threads"
    if c.k % c.mfma_k:
        yield f"k = {c.k} is not a multiple of mfma_k = {c.mfma_k}"
    if WAVE * LOAD % c.k:
        yield f"k = {c.k} does not divide the {WAVE * LOAD} elements that a wave loads at a time"
    if c.lds_bytes > LDS_BYTES:
        yield f"the tiles take {c.lds_bytes} bytes of LDS, more than {LDS_BYTES}"
    if c.m * c.n > MOST_SUMS * c.threads:
        yield f"m * n = {c.m * c.n} is more than {MOST_SUMS} accumulators for each of {c.threads} threads"
    if c.split_k > MOST_SPLITS:
        yield f"split_k = {c.split_k} is more than {MOST_SPLITS}"


def misfit(config: GemmConfig, n: int, k: int) -> str | None:
    """Why an instance cannot compute ``n`` columns over ``k`` elements, or None."""
    if k % LOAD:
        return f"k = {k} is not a multiple of {LOAD}"
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
