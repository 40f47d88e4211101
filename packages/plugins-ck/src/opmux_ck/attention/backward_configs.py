"""The instances of CK's gradients of attention: the tile of a workgroup, and the rules of what is legal."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from opmux_ck.attention.configs import MOST_REGISTERS
from opmux_ck.gemm.configs import LDS_BYTES, WAVE

HEADS = (32, 64, 128, 256)
"""Sizes of a head that there are instances for; values have the same size."""
WAVES = 4
"""Of a workgroup, which share its keys."""
ROWS = 16
"""Of a matrix instruction."""
SCORE_STEP = 32
"""Elements of a head that the products of scores multiply at a time."""


@dataclass(frozen=True)
class BackwardConfig:
    """The tile of a workgroup, which goes through the queries of its keys.

    Attributes:
        queries: of a step.
        keys: of the tile; waves share them.
        key_step: keys that the product of the gradients of scores with keys advances by.
        waves_m: waves that share the queries of a step there.
        waves_n: waves that share the elements of a head there.
    """

    queries: int
    keys: int
    key_step: int
    waves_m: int
    waves_n: int

    def __post_init__(self) -> None:
        for reason in broken_rules(self):
            raise ValueError(reason)

    @property
    def threads(self) -> int:
        """Of a workgroup."""
        return WAVES * WAVE


def broken_rules(config: BackwardConfig) -> Iterator[str]:
    """Why no instance can be made of a config, whatever the heads."""
    c = config
    sizes = (c.queries, c.keys, c.key_step, c.waves_m, c.waves_n)
    if min(sizes) < 1:
        yield f"queries, keys, key_step, waves_m and waves_n = {', '.join(map(str, sizes))}: one is less than 1"
        return
    if c.waves_m * c.waves_n != WAVES:
        yield f"waves_m * waves_n = {c.waves_m * c.waves_n} is not {WAVES}"
    if c.queries % (ROWS * c.waves_m):
        yield f"queries = {c.queries} is not a multiple of {ROWS} * waves_m = {ROWS * c.waves_m}"
    if c.keys % (ROWS * WAVES):
        yield f"keys = {c.keys} is not a multiple of {ROWS * WAVES}, {ROWS} of each wave"
    if c.key_step % ROWS:
        yield f"key_step = {c.key_step} is not a multiple of {ROWS}"
    if c.keys % c.key_step:
        yield f"keys = {c.keys} is not a multiple of key_step = {c.key_step}"


def misfit(config: BackwardConfig, head_dim: int) -> str | None:
    """Why an instance cannot compute heads of this size, or None."""
    c = config
    if head_dim % SCORE_STEP:
        return f"head_dim = {head_dim} is not a multiple of {SCORE_STEP}"
    if head_dim % (ROWS * c.waves_n):
        return f"head_dim = {head_dim} is not a multiple of {ROWS} * waves_n = {ROWS * c.waves_n}"
    if 4 * c.keys * head_dim > LDS_BYTES:
        return f"keys take {4 * c.keys * head_dim} bytes of LDS, in rows and in columns, more than {LDS_BYTES}"
    sums = 2 * c.keys * head_dim // c.threads
    if sums > MOST_REGISTERS:
        return f"a thread has {sums} sums of gradients of keys and values, more than {MOST_REGISTERS}"
    return None


def unsupported_backward_heads(features: Mapping[str, int]) -> str | None:
    """Why there is no instance for these sizes of heads, or None."""
    given = features["head_dim"], features["value_dim"]
    if given[0] == given[1] and given[0] in HEADS:
        return None
    known = ", ".join(map(str, HEADS))
    return f"head_dim = {given[0]} with value_dim = {given[1]} has no instance: takes the same of {known} for both"
