"""The instances of CK's attention: what a tile is, and the rules of what is legal."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from opmux_ck.gemm.configs import LDS_BYTES, WAVE

HEADS = ((32, 32), (64, 64), (128, 128), (192, 128), (256, 256))
"""Sizes of a head of q and k, with those of v, that there are instances for."""
MFMA = (16, 32)
MFMA_K = 16
"""Rows of a matrix instruction, and the elements that a wave multiplies at a time. The second product takes
probabilities from where the first left them in registers, which CK arranges for these sizes alone."""
LOAD = 4
"""The fewest elements of a load."""
SCHEDULED_HEAD, SCHEDULED = 256, 8
"""For heads of this size CK orders the instructions of a step itself, so many matrix instructions at a time."""
MOST_WAVES = 8
MOST_REGISTERS = 256
"""Of a thread for sums: the scores of its part of a tile, and its part of the output."""


@dataclass(frozen=True)
class AttentionConfig:
    """The tile of a workgroup.

    Attributes:
        queries: of the tile; waves share them.
        keys: that the tile reads at a time.
        dim_step: elements of a head that the product of queries and keys advances by.
        key_step: keys that the product of probabilities and values advances by.
        waves: of the workgroup.
        mfma: rows and columns of the matrix instruction.
    """

    queries: int
    keys: int
    dim_step: int
    key_step: int
    waves: int
    mfma: int

    def __post_init__(self) -> None:
        for reason in broken_rules(self):
            raise ValueError(reason)

    @property
    def threads(self) -> int:
        """Of a workgroup."""
        return self.waves * WAVE


def broken_rules(config: AttentionConfig) -> Iterator[str]:
    """Why no instance can be made of a config, whatever the heads."""
    c = config
    sizes = (c.queries, c.keys, c.dim_step, c.key_step, c.waves)
    if min(sizes) < 1:
        yield f"queries, keys, dim_step, key_step and waves = {', '.join(map(str, sizes))}: one is less than 1"
        return
    if c.mfma not in MFMA:
        yield f"mfma = {c.mfma} is not 16 or 32"
    if c.waves > MOST_WAVES:
        yield f"waves = {c.waves} is more than {MOST_WAVES}"
    if c.queries != c.waves * c.mfma:
        yield f"queries = {c.queries} is not waves * mfma = {c.waves * c.mfma}"
    if c.keys % c.mfma:
        yield f"keys = {c.keys} is not a multiple of mfma = {c.mfma}"
    if c.keys % c.key_step:
        yield f"keys = {c.keys} is not a multiple of key_step = {c.key_step}"
    for name, step in (("dim_step", c.dim_step), ("key_step", c.key_step)):
        if step % MFMA_K:
            yield f"{name} = {step} is not a multiple of {MFMA_K}, which a wave multiplies at a time"
    if c.keys * c.dim_step % (c.threads * LOAD):
        elements = c.keys * c.dim_step
        yield f"keys * dim_step = {elements} is not a multiple of {LOAD} elements for each of {c.threads} threads"


def misfit(config: AttentionConfig, head_dim: int, value_dim: int) -> str | None:
    """Why an instance over tokens in a row cannot compute heads of these sizes, or None."""
    instructions = config.keys // config.mfma * (config.dim_step // MFMA_K)
    if head_dim == SCHEDULED_HEAD and instructions % SCHEDULED:
        return (
            f"a step of keys * dim_step takes a wave {instructions} matrix instructions: for heads of {SCHEDULED_HEAD} "
            f"CK orders {SCHEDULED} at a time"
        )
    return misfit_of_heads(config, head_dim, value_dim)


def misfit_of_heads(config: AttentionConfig, head_dim: int, value_dim: int) -> str | None:
    """Why no instance of attention, over tokens in a row or pages, can compute heads of these sizes, or None."""
    c = config
    if head_dim % c.dim_step or head_dim < 2 * c.dim_step:
        return f"head_dim = {head_dim} is not at least two steps of {c.dim_step}"
    if value_dim % c.mfma:
        return f"value_dim = {value_dim} is not a multiple of mfma = {c.mfma}"
    if value_dim * c.key_step % (c.threads * LOAD):
        elements = value_dim * c.key_step
        return f"value_dim * key_step = {elements} is not a multiple of {LOAD} elements for each of {c.threads} threads"
    if 2 * max(c.keys * c.dim_step, value_dim * c.key_step) > LDS_BYTES:
        return f"a step takes more than {LDS_BYTES} bytes of LDS"
    sums = c.queries * (c.keys + value_dim) // c.threads
    if sums > MOST_REGISTERS:
        return f"a thread has {sums} sums, more than {MOST_REGISTERS}"
    return None


def unsupported_scale(features: Mapping[str, float | None]) -> str | None:
    """Why the scores cannot be scaled so, or None: CK takes the largest score before it multiplies."""
    scale = features["scale"]
    return None if scale is None or scale > 0 else f"scale = {scale} is not positive"


def unsupported_heads(features: Mapping[str, int]) -> str | None:
    """Why there is no instance for these sizes of heads, or None."""
    given = features["head_dim"], features["value_dim"]
    if given in HEADS:
        return None
    known = ", ".join(f"{of_keys} with {of_values}" for of_keys, of_values in HEADS)
    return f"head_dim = {given[0]} with value_dim = {given[1]} has no instance: takes {known}"
