"""What the core calls for attention forward on sm_90: descriptors and the launch of the Gluon kernel."""

from torch import Tensor

from opmux_triton.attention.forward import hopper_kernels as kernels
from opmux_triton.attention.forward import targets
from opmux_triton.attention.forward.configs import HopperConfig
from opmux_triton.descriptors import has_descriptor
from opmux_triton.devices import units
from opmux_triton.hopper.descriptors import head_descriptor
from opmux_triton.launch import launch
from opmux_triton.scoring.options import Scoring

_NAME = "attention on sm_90"
_REGISTERS = {2: (240, 168), 3: (160, 128)}
"""Registers of a computing thread, and of a thread on average, by the number of computing warpgroups; 64 Ki in all."""


def attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *,
    scale: float | None, causal: bool, window: tuple[int, int], softcap: float, config: HopperConfig,
) -> Tensor:  # fmt: skip
    """The op `attention`."""
    scoring = Scoring(scale, causal, window, softcap)
    return targets.dense(_NAME, _run, q, k, v, sinks, scoring, config, wants_lse=False)[0]


def attention_lse(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *,
    scale: float | None, causal: bool, window: tuple[int, int], softcap: float, config: HopperConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `attention_lse`."""
    scoring = Scoring(scale, causal, window, softcap)
    out, lse = targets.dense(_NAME, _run, q, k, v, sinks, scoring, config, wants_lse=True)
    assert lse is not None
    return out, lse


def _run(
    out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, scoring: Scoring,
    config: HopperConfig,
) -> None:  # fmt: skip
    batch, queries, heads, head_dim = q.shape
    keys = k.shape[1]
    fold, scale, _ = scoring.factors(head_dim)
    if not (fold and all(has_descriptor(x) for x in (q, k, v, out))):
        targets.run_dense(out, lse, q, k, v, sinks, scoring, config.otherwise)
        return
    bounded_left, bounded_right, left, right = scoring.band(queries, keys)
    block = config.block
    # Masks take registers: three warpgroups have enough for whole blocks and for one diagonal.
    narrow = bounded_left or not (bounded_right or keys % block == 0)
    warpgroups = config.narrow if narrow else config.warpgroups
    tiles = -(-queries // (64 * warpgroups))
    pairs = batch * heads
    groups = heads // k.shape[2]
    section = targets.pairs_at_a_time(pairs, groups, keys, k, v, config.cache)
    computing, average = _REGISTERS[warpgroups]
    arguments = (
        out, lse, q, k, v, sinks, head_descriptor(out, 64), head_descriptor(q, 64), head_descriptor(k, block),
        head_descriptor(v, block), *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        pairs, heads, groups, queries, keys, tiles, section, scale, left, right,
    )  # fmt: skip
    meta = {
        "HEAD_DIM": head_dim,
        "LEFT": bounded_left,
        "RIGHT": bounded_right,
        "MASKED": bounded_left or bounded_right or keys % block != 0,
        "BLOCK": block,
        "STAGES": config.stages,
        "GROUPS": warpgroups,
        "TURNS": config.turns,
        "REGISTERS": computing,
        "num_warps": 4,
        "maxnreg": average,
    }
    programs = tiles * pairs
    if config.persistent:
        programs = min(programs, units(q))
    launch(kernels.attention_forward, (programs,), arguments, meta)
