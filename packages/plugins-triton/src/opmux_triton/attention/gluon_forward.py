"""What the core calls for attention forward on sm_90: descriptors and the launch of the Gluon kernel."""

from typing import Any

from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from opmux_triton.attention import forward
from opmux_triton.attention import gluon_forward_kernels as kernels
from opmux_triton.devices import units
from opmux_triton.launch import launch
from opmux_triton.repeats import kept, repeated

Config = dict[str, Any]
_LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
_REGISTERS = {2: (240, 168), 3: (160, 128)}
"""Of a thread that computes, and of one on average, by the number of computing warpgroups: 64 Ki for all threads."""


def attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *,
    scale: float | None, causal: bool, window: tuple[int, int], softcap: float, config: Config,
) -> Tensor:  # fmt: skip
    """The op `attention`."""
    return _dense(q, k, v, sinks, forward.Scoring(scale, causal, window, softcap), config, wants_lse=False)[0]


def attention_lse(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *,
    scale: float | None, causal: bool, window: tuple[int, int], softcap: float, config: Config,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `attention_lse`."""
    out, lse = _dense(q, k, v, sinks, forward.Scoring(scale, causal, window, softcap), config, wants_lse=True)
    assert lse is not None
    return out, lse


def _dense(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, scoring: forward.Scoring, config: Config, *, wants_lse: bool
) -> tuple[Tensor, Tensor | None]:
    batch, queries, heads, _ = q.shape
    out, lse = forward.results(q, v, (batch, heads, queries) if wants_lse else None)
    given, made = (q, k, v) if sinks is None else (q, k, v, sinks), (out,) if lse is None else (out, lse)
    key = ("attention on sm_90", id(config), q.shape, k.shape, scoring, sinks is None, wants_lse)
    if batch and queries and not repeated(key, given, made):
        with kept(key, given, made, config):
            _run(out, lse, q, k, v, sinks, scoring, config)
    return out, lse


def _run(
    out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, scoring: forward.Scoring,
    config: Config,
) -> None:  # fmt: skip
    batch, queries, heads, head_dim = q.shape
    keys = k.shape[1]
    fold, scale, _ = scoring.factors(head_dim)
    if not (fold and all(forward.has_descriptor(x) for x in (q, k, v, out))):
        sizes = (queries, keys)
        forward.run(out, lse, q, k, v, sinks, None, sizes, sizes, scoring, config["otherwise"])
        return
    bounded_left, bounded_right, left, right = scoring.band(queries, keys)
    block = config["block"]
    # Masks take registers: with a third warpgroup there are enough for whole blocks and for one diagonal.
    narrow = bounded_left or not (bounded_right or keys % block == 0)
    warpgroups = config["narrow" if narrow else "warpgroups"]
    tiles = -(-queries // (64 * warpgroups))
    pairs = batch * heads
    groups = heads // k.shape[2]
    section = forward.pairs_at_a_time(pairs, groups, keys, k, v, config["cache"])
    computing, average = _REGISTERS[warpgroups]
    arguments = (
        out, lse, q, k, v, sinks, _descriptor(out, 64), _descriptor(q, 64), _descriptor(k, block),
        _descriptor(v, block), *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        pairs, heads, groups, queries, keys, tiles, section, scale, left, right,
    )  # fmt: skip
    meta = {
        "HEAD_DIM": head_dim,
        "LEFT": bounded_left,
        "RIGHT": bounded_right,
        "MASKED": bounded_left or bounded_right or keys % block != 0,
        "BLOCK": block,
        "STAGES": config["stages"],
        "GROUPS": warpgroups,
        "TURNS": config["turns"],
        "REGISTERS": computing,
        "num_warps": 4,
        "maxnreg": average,
    }
    programs = tiles * pairs
    if config["persistent"]:
        programs = min(programs, units(q))
    launch(kernels.attention_forward, (programs,), arguments, meta)


def _descriptor(x: Tensor, rows: int) -> TensorDescriptor:
    """A descriptor of ``rows`` rows of one head of a tensor ``(batch, seq, heads, dim)``."""
    return TensorDescriptor(x, list(x.shape), forward.descriptor_strides(x), [1, rows, 1, x.shape[3]], _LAYOUT)
