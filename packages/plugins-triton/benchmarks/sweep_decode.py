"""Configs of a decode step on sm_90: each changes one product, or paged attention, in all layers of a small model.

``python benchmarks/sweep_decode.py --out FILE.json [--only REGEX] [--dry]``; ``--help`` lists the rest. The whole step
of ``model.py`` is timed: what counts is a kernel's cost among the others, with weights and cache read from memory.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import opmux
from opmux.bench.data import Arguments, Data
from opmux.bench.shapes import Shape
from opmux.bench.sweep import main
from opmux.bench.variants import Case
from opmux.plugin import parse_arch
from opmux_triton.gemm import hopper_heuristics
from opmux_triton.gemm.configs import LinearConfig
from opmux_triton.paged.configs import halves_config

SM_90 = parse_arch("sm_90")
LAYERS = 16
SHAPE = Shape("16 layers of hidden 2048, 8 sequences of 2104", 2048, 8192, 32, 8, 64, batch=8, new=1, context=2104)

WEIGHTS = {"qkv": (3072, 2048), "out": (2048, 2048), "gate_up": (16384, 2048), "down": (2048, 8192)}
"""n and k of each product."""
TILES = (
    (64, 256, 4, 5), (64, 128, 4, 8), (64, 128, 4, 10), (64, 512, 4, 3), (32, 256, 4, 5), (32, 512, 4, 4),
    (32, 256, 4, 8), (16, 512, 4, 4), (16, 256, 4, 8), (16, 1024, 4, 3), (16, 512, 2, 4), (16, 512, 8, 4),
)  # fmt: skip
"""For the transposed product: rows of the weight and columns at a time, warps, stages."""
SHARES = ((64, 256, 4, 5, 1), (32, 256, 4, 5, 1), (32, 256, 4, 5, 2), (64, 128, 4, 8, 1), (64, 128, 4, 8, 2))
"""The same in equal shares, with the programs on a multiprocessor."""
PATHS = (
    (64, 4, 3, 2), (64, 4, 3, 3), (64, 4, 3, 4), (64, 4, 3, 6), (64, 4, 3, 8), (64, 4, 2, 4), (64, 2, 3, 4),
    (64, 2, 3, 8), (32, 4, 3, 4), (32, 2, 4, 4), (32, 4, 6, 4), (128, 4, 2, 2), (128, 4, 3, 2), (128, 4, 2, 4),
    (128, 8, 2, 4), (64, 4, 4, 2), (64, 8, 3, 4), (64, 4, 4, 8),
)  # fmt: skip
"""For paged attention: keys of a block, warps, stages, programs for each unit."""

CHOSEN: dict[str, Any] = {
    part: LinearConfig(tiles=hopper_heuristics.portable(SHAPE.batch, n, k)) for part, (n, k) in WEIGHTS.items()
}
CHOSEN["attention"] = halves_config(
    SM_90, {"page_size": SHAPE.page_size, "head_dim": 64, "value_dim": 64, "bucket(batch)": 3}
)
"""What the heuristics give for each part."""


def make(data: Data, s: Shape) -> Arguments:
    """A row of each sequence, what all layers share, then the weights of each layer."""
    pages = -(-s.context // s.page_size) + 1
    cache = data.normal(s.batch * pages, LAYERS, 2, s.page_size, s.kv_heads, s.head_dim)
    order = torch.randperm(s.batch * pages, generator=data.generator, device=data.device).to(torch.int32)
    table = order.reshape(s.batch, pages)
    slots = table[:, -1].to(torch.int64) * s.page_size
    positions = data.ints([s.context - 1] * s.batch)
    shared = (*data.angles(s.context, s.head_dim), data.gain(s.hidden))
    rows = (data.offsets(s.batch, 1), data.ints([s.context] * s.batch), positions, slots)
    weights = [data.weight(*size) for _ in range(LAYERS) for size in WEIGHTS.values()]
    options = {"configs": CHOSEN, "max_seqlen_k": s.context}
    return Arguments((data.normal(s.batch, s.hidden), cache, table, *rows, *shared, *weights), options)


def step(
    x: Tensor, cache: Tensor, table: Tensor, offsets: Tensor, lengths: Tensor, positions: Tensor, slots: Tensor,
    cos: Tensor, sin: Tensor, norm: Tensor, *weights: Tensor, configs: dict[str, Any], max_seqlen_k: int,
) -> Tensor:  # fmt: skip
    """All layers with the configs of their parts."""
    from opmux_triton.gemm.targets import linear  # Triton is imported where a step runs: listing needs none
    from opmux_triton.paged.targets import paged_attention

    options = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0, "layout": "nhd"}
    heads, residual = (SHAPE.heads, SHAPE.kv_heads, SHAPE.kv_heads), x
    for layer in range(LAYERS):
        qkv, out_proj, gate_up, down = weights[layer * len(WEIGHTS) : (layer + 1) * len(WEIGHTS)]
        q, k, v = linear(x, qkv, None, config=configs["qkv"]).unflatten(-1, (-1, SHAPE.head_dim)).split(heads, dim=-2)
        q, k = opmux.apply_rope(q, k, cos, sin, positions)
        k_cache, v_cache = cache[:, layer, 0], cache[:, layer, 1]
        opmux.write_kv_cache(k, v, k_cache, v_cache, slots)
        out = paged_attention(
            q, k_cache, v_cache, offsets, lengths, table, None, max_seqlen_q=1, max_seqlen_k=max_seqlen_k,
            config=configs["attention"], **options,
        )  # fmt: skip
        out = linear(out.flatten(-2), out_proj, None, config=configs["out"])
        x, residual = opmux.add_rms_norm(out, residual, norm)
        gated = opmux.silu_and_mul(linear(x, gate_up, None, config=configs["gate_up"]))
        out = linear(gated, down, None, config=configs["down"])
        x, residual = opmux.add_rms_norm(out, residual, norm)
    return x


def variant(*tensors: Tensor, change: dict[str, Any], configs: dict[str, Any], **options: Any) -> Tensor:
    """A step in which some parts have other configs."""
    return step(*tensors, configs=configs | change, **options)


def parts() -> Iterator[tuple[str, str, Any]]:
    """Name of a variant, part, and its config there."""
    for part in WEIGHTS:
        base = CHOSEN[part].tiles
        for rows, block_k, warps, stages, units in (*((*sizes, 0) for sizes in TILES), *SHARES):
            if part == "gate_up" and (units or rows < 64):
                continue  # 256 tiles of 64 rows: there is no need to cut
            kind = {"kind": "shares" if units else "tiles", "per_unit": units or 1, "swap": True, "flatten": not units}
            blocks = {"block_m": rows, "block_n": 16, "block_k": block_k, "num_warps": warps, "num_stages": stages}
            name = f"{part} {rows} k{block_k} w{warps} s{stages}{f' shares u{units}' if units else ''}"
            yield name, part, LinearConfig(tiles=replace(base, **kind, **blocks))
    base = CHOSEN["attention"]
    for block, warps, stages, programs in PATHS:
        sizes = {"block_n": block, "num_warps": warps, "num_stages": stages, "programs": programs, "least": 128}
        path = replace(base.decode, **sizes)
        yield f"attention n{block} w{warps} s{stages} p{programs}", "attention", replace(base, decode=path)


VARIANTS = {name: partial(variant, change={part: config}) for name, part, config in parts()}
CASES = [Case(step, SHAPE, VARIANTS, make=make, peers={"chosen": step}, agrees=0.1)]
"""Sixteen layers add up differences of rounding, so a variant may be further off than a kernel."""

if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
