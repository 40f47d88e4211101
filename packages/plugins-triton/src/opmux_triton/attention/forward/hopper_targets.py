"""What the core calls for attention forward on sm_90: descriptors and the launch of the Gluon kernel."""

from torch import Tensor

from opmux_triton.attention.forward import hopper_kernels as kernels
from opmux_triton.attention.forward import targets
from opmux_triton.attention.forward.configs import HopperConfig, column_parts
from opmux_triton.attention.forward.hopper_schedule import Work, schedule
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
    short = bounded_right and not bounded_left and 128 < keys <= 256
    block = config.short_block or config.block if short else config.block
    # Masks take registers: three warpgroups have enough for whole blocks and for one diagonal.
    narrow = bounded_left or not (bounded_right or keys % block == 0)
    choices = (config.narrow,) if narrow else tuple(dict.fromkeys((config.warpgroups, config.narrow)))
    pairs = batch * heads
    groups = heads // k.shape[2]
    key_bytes = (head_dim + v.shape[3]) * k.element_size()
    work = Work(queries, keys, pairs, groups, (bounded_left, bounded_right, left, right), block, key_bytes)
    units_of = units(q)
    warpgroups, section = schedule(work, choices, units_of, config.cache)
    tiles = -(-queries // (64 * warpgroups))
    computing, average = _REGISTERS[warpgroups]
    head, head_rest = column_parts(head_dim)
    value, value_rest = column_parts(v.shape[3])
    rests = (
        head_descriptor(out, 64, value_rest) if value_rest else None,
        *((head_descriptor(q, 64, head_rest), head_descriptor(k, block, head_rest)) if head_rest else (None, None)),
        head_descriptor(v, block, value_rest) if value_rest else None,
    )
    arguments = (
        out, lse, q, k, v, sinks, head_descriptor(out, 64, value), head_descriptor(q, 64, head),
        head_descriptor(k, block, head), head_descriptor(v, block, value), *rests,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        pairs, heads, groups, queries, keys, tiles, section, scale, left, right,
    )  # fmt: skip
    meta = {
        "HEAD_DIM": head_dim,
        "VALUE_DIM": v.shape[3],
        "HEAD": head,
        "HEAD_REST": head_rest,
        "VALUE": value,
        "VALUE_REST": value_rest,
        "LEFT": bounded_left,
        "RIGHT": bounded_right,
        "MASKED": bounded_left or bounded_right or keys % block != 0,
        "BLOCK": block,
        "SLOTS": config.slots,
        "STAGES": config.stages,
        "GROUPS": warpgroups,
        "TURNS": config.turns,
        "REGISTERS": computing,
        "num_warps": 4,
        "maxnreg": average,
    }
    programs = tiles * pairs
    if config.persistent:
        programs = min(programs, units_of)
    launch(kernels.attention_forward, (programs,), arguments, meta)
