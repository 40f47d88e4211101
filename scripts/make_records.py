"""Measures the rows that are shipped for a GPU: a grid of common shapes, and random points by a seed.

`python scripts/make_records.py --out h200.measured --limit 420` measures as many points as the time allows, of each op
in turn; the same command goes on where it stopped. Only the configs of heuristics are measured by
default: that is what a call runs whose shape no row describes, and whose time is predicted from the rows. With
`--quantised`, the ops are those on 8-bit codes, grouped products and losses. `--dry` lists the points and measures
nothing. With ``--dry --shapes FILE`` they are written for
``packages/plugins-triton/benchmarks/compile_ahead.py``, which compiles kernels beside a run with ``--jobs 0``.
"""

import argparse
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

import torch

import opmux
from opmux.shapes import Point, write_shapes
from opmux.tuner import Progress
from opmux.tuner.drawing import draw, point_of

DTYPE = torch.bfloat16

TURNS = (
    "linear", "attention", "attention_backward", "linear", "paged_attention", "rms_norm", "linear", "attention",
    "linear_backward", "attention_backward", "linear", "attention", "add_rms_norm_", "attention_varlen", "linear",
    "paged_attention", "layer_norm", "attention_backward", "attention", "linear_backward", "silu_mul", "linear",
    "apply_rope_", "silu_and_mul", "write_kv_cache",
)  # fmt: skip
"""The order in which ops have their turns, the more often the more there is to choose between."""

QUANTISED_TURNS = (
    "scaled_linear", "grouped_linear", "scaled_grouped_linear", "scaled_linear", "masked_grouped_linear", "quantize",
    "scaled_linear", "scaled_masked_grouped_linear", "grouped_linear", "scaled_grouped_linear", "rms_norm_quantize",
    "scaled_linear", "grouped_linear_backward", "grouped_weight_grad", "add_rms_norm_quantize",
    "scaled_linear_accumulate", "scaled_grouped_weight_grad", "silu_and_mul_quantize", "static_quantize",
    "dequantize", "convert_scale", "convert_fp8", "cross_entropy", "fused_linear_cross_entropy",
    "cross_entropy_backward", "fused_linear_cross_entropy_gradients", "cross_entropy_lse",
    "fused_linear_cross_entropy_backward",
)  # fmt: skip
"""The same for ops on 8-bit codes, for grouped products and for losses, which `--quantised` measures."""

PRODUCTS = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (8192, 8192), (2048, 2048), (1024, 7168))
"""(n, k) of linear layers."""

HEADS = ((32, 8, 128), (32, 32, 64), (16, 8, 256), (32, 32, 96), (16, 4, 192), (32, 32, 80))
"""(heads, kv_heads, head_dim)."""

DENSE = ((4, 2048), (1, 8192), (32, 256))
"""(batch, seq) of attention."""

CACHED = ((64, 1, 2048, 16), (1, 1, 65536, 64), (16, 1, 8192, 64), (1, 2048, 4096, 64), (4, 512, 4096, 16))
"""(batch, new tokens, context, page_size) of attention over a paged cache."""

EXPERTS = ((8, 4096, 7168), (128, 1536, 2048), (128, 2048, 768), (32, 5760, 2880), (64, 2816, 2048))
"""(groups, n, k) of mixtures."""
GROUP_ROWS = (4096, 20, 1, 256, 64)
"""Rows of a group."""

LOSS_TOKENS, VOCABULARIES = (8192, 2048, 512), (128256, 32000, 151936)

WIDTHS = (4096, 8192, 2048, 14336)
TOKENS = (16, 2048, 1, 16384, 256)


def point(op: str, **sizes: Any) -> Point:
    """A call of an op with these sizes and options."""
    made = point_of(op, sizes, DTYPE)
    made.check()
    return made


def heads_of(heads: int, kv_heads: int, head_dim: int) -> dict[str, int]:
    """The sizes of heads."""
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "value_dim": head_dim}


def grid(op: str) -> Iterator[Point]:
    """The points of an op's grid, those that say most first."""
    if op in ("linear", "linear_backward"):
        tokens = (1, 64, 4096, 16, 512, 256, 1024, 128) if op == "linear" else (4096, 1024)
        yield from (point(op, tokens=m, n=n, k=k) for m in tokens for n, k in PRODUCTS)
    elif op in ("attention", "attention_backward"):
        for batch, seq in DENSE:
            for sizes in HEADS:
                yield point(op, batch=batch, seq_q=seq, seq_k=seq, causal=True, **heads_of(*sizes))
        yield from (point(op, batch=2, seq_q=2048, seq_k=2048, **heads_of(*sizes)) for sizes in HEADS)
    elif op == "attention_varlen":
        for batch, seq in DENSE:
            tokens = {"tokens_q": batch * seq, "tokens_k": batch * seq, "max_seqlen_q": seq, "max_seqlen_k": seq}
            yield point(op, batch=batch, causal=True, **tokens, **heads_of(*HEADS[0]))
    elif op == "paged_attention":
        for batch, new, context, page_size in CACHED:
            for sizes in ((32, 8, 128), (8, 1, 128), (32, 8, 64), (16, 2, 256)):
                pages = -(-context // page_size)
                cache = {"page_size": page_size, "pages": batch * pages, "max_pages": pages}
                lengths = {"max_seqlen_q": new, "max_seqlen_k": context, "tokens": batch * new}
                yield point(op, batch=batch, **cache, **lengths, **heads_of(*sizes))
    elif op.startswith("scaled_linear"):
        for m in (1, 64, 4096, 16, 512, 256, 1024, 128):
            for n, k in PRODUCTS:
                yield from (
                    point(op, **_scaled(op, {"batch": 1, "m": m, "n": n, "k": k}, rows)) for rows in ROWS_OF[op]
                )
    elif "grouped" in op:
        for rows in GROUP_ROWS:
            for groups, n, k in EXPERTS:
                counts = {"max_m": 2 * rows, "expected_m": rows} if "masked" in op else {"m": groups * rows}
                sizes = {"groups": groups, "n": n, "k": k, **counts}
                if op in ROWS_OF:
                    yield from (point(op, **_scaled(op, sizes, whole)) for whole in ROWS_OF[op])
                else:
                    yield point(op, **sizes)
    elif op.endswith("quantize") or op in ("convert_scale", "convert_fp8"):
        yield from (_of_codes(op, tokens, size) for tokens in TOKENS for size in WIDTHS)
    elif "cross_entropy" in op:
        for tokens, vocab in product(LOSS_TOKENS, VOCABULARIES):
            yield point(op, tokens=tokens, vocab=vocab, **({"hidden": 2048} if "linear" in op else {}))
    elif op == "write_kv_cache":
        for tokens in TOKENS:
            yield point(op, tokens=tokens, page_size=16, pages=2 * -(-tokens // 16), **heads_of(*HEADS[0]))
    elif op.startswith("apply_rope"):
        for tokens in TOKENS:
            sizes = {"batch": tokens, "seq": 1} if tokens <= 256 else {"batch": 1, "seq": tokens}
            yield point(op, half=64, max_positions=32768, **sizes, **heads_of(*HEADS[0]))
    else:
        width = "hidden" if "norm" in op else "n"
        yield from (point(op, tokens=tokens, **{width: size}) for tokens in TOKENS for size in WIDTHS)


ROWS_OF = {
    "scaled_linear": (False, True), "scaled_linear_accumulate": (False,), "scaled_grouped_linear": (False, True),
    "scaled_masked_grouped_linear": (False,),
}  # fmt: skip
"""Whether scales are of tokens and channels; else they are of blocks of 1x128 and 128x128."""


def _scaled(op: str, sizes: dict[str, Any], whole_rows: bool) -> dict[str, Any]:
    """Sizes of a product with those of its scales."""
    m, n, columns = sizes.get("m", sizes.get("max_m")), sizes["n"], 1 if whole_rows else -(-sizes["k"] // 128)
    scales = {"m_blocks": m, "k_blocks": columns, "w_rows": n if whole_rows else -(-n // 128), "w_blocks": columns}
    return {**sizes, **scales, **({} if op.endswith("accumulate") else {"out_dtype": DTYPE})}


def _of_codes(op: str, tokens: int, width: int) -> Point:
    """A call that makes 8-bit codes, reads them, or converts them or their scales, in blocks of 1x128."""
    sizes = {"batch": 1, "tokens": tokens, "m": tokens, "k": width, "hidden": width, "n": width}
    scales = {"m_blocks": tokens, "k_blocks": -(-width // 128)}
    made = {"convert_scale": torch.float8_e8m0fnu, "convert_fp8": torch.float8_e4m3fnuz}
    dtype = made.get(op, torch.float8_e4m3fn)
    return point(op, **sizes, **scales, dtype=dtype, out_dtype=DTYPE)


def points(ops: Sequence[str], random: int, seed: int) -> list[Point]:
    """The points of ops by turns: of each op a point of its grid, then a random one, and so on."""
    waiting = {op: deque(_mixed([*grid(op)], draw([op], random, seed, dtype=DTYPE))) for op in dict.fromkeys(ops)}
    found = []
    while any(waiting.values()):
        found += [waiting[op].popleft() for op in ops if waiting[op]]
    return found


def _mixed(one: Sequence[Point], other: Sequence[Point]) -> Iterator[Point]:
    """Both in turn; each once."""
    both = (p for pair in zip_longest(one, other) for p in pair if p is not None)
    yield from {p.key: p for p in both}.values()


def main() -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("records.measured"))
    parser.add_argument("--limit", type=float, help="seconds after which no further point is begun")
    parser.add_argument("--random", type=int, default=24, help="random points for each op")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--op", action="append", choices=sorted({*TURNS, *QUANTISED_TURNS}), help="only this op; several times"
    )
    parser.add_argument("--quantised", action="store_true", help="ops on 8-bit codes, grouped products and losses")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--most-configs", type=int, default=1, help="configs of each implementation to try")
    parser.add_argument("--device", help="cpu or cuda; by default GPUs if there are some")
    parser.add_argument(
        "--jobs", type=int, help="processes that compile, as `opmux tune` has them; 0 where kernels are there"
    )
    parser.add_argument("--dry", action="store_true", help="list the points and measure nothing")
    parser.add_argument("--shapes", type=Path, help="with --dry: write the points to this file of shapes instead")
    given = parser.parse_args()
    turns = QUANTISED_TURNS if given.quantised else TURNS
    found = points([op for op in turns if not given.op or op in given.op], given.random, given.seed)
    if given.dry and given.shapes:
        write_shapes(given.shapes, found)
        return 0
    if given.dry:
        sys.stdout.write("".join(f"{p.key}\n" for p in found) + f"{len(found)} points\n")
        return 0

    def told(progress: Progress) -> None:
        sys.stdout.write(f"{progress}\n")
        sys.stdout.flush()

    tuned = opmux.tune(
        shapes=found,
        out=given.out,
        limit_s=given.limit,
        rounds=given.rounds,
        most_configs=given.most_configs,
        jobs=given.jobs,
        device=given.device,
        progress=told,
    )
    sys.stdout.write(f"{tuned}\n")
    return int(tuned.rows == 0)


if __name__ == "__main__":
    sys.exit(main())
