"""Calls on which the choice is measured: drawn by a seed for each group, from sizes that tuning does not draw.

Groups are those of the table on ``docs/benchmarks/choice.md``. ``measure_choice.py`` measures them.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import measure_attention
import measure_products
import torch

from opmux.shapes import Point
from opmux.tuner.drawing import point_of
from opmux.tuning.work import Work

Sizes = dict[str, Any]
Draw = Callable[[random.Random], tuple[str, Sizes]]
HEAD_DIMS = (64, 80, 96, 128, 192, 256)
ROWS = (1, 65536)
KV_BYTES = (50e6, 1.3e9)
"""Keys and values that a decoding step reads."""
PAGES = (16, 32, 64)
EXPERTS = (512, 768, 1024, 1408, 1536, 2048, 2816, 2880, 4096, 6144, 7168)
"""Widths of experts, and of what they are fed, in published mixtures."""
MOST_BYTES = 2**31
"""Of one tensor."""
MOST_FLOPS = 8e12
"""Of one call: about ten milliseconds."""

SMALL_WIDTHS, SMALL_ROWS = (32, 64, 96), 16
"""For a run on a CPU: it shows that everything works, not how fast anything is."""


class Group(NamedTuple):
    """Calls of one kind.

    Attributes:
        key: its name in files and on the command line.
        draw: draws one call: its op and its sizes.
        named_only: whether it is drawn only where it is asked for by its name.
    """

    key: str
    draw: Draw
    named_only: bool = False


def groups(small: bool) -> tuple[Group, ...]:
    """Every group.

    Args:
        small: sizes for a CPU.
    """
    bands = (("decode", (1, 16)), ("batch", (17, 512)), ("prefill", (513, 16384)))
    made = [Group(f"linear-{name}", _product("linear", band, small)) for name, band in bands]
    made += [Group(f"attention-{head_dim}", _attention(head_dim, "attention", small)) for head_dim in HEAD_DIMS]
    made.append(Group("norms", _norm(small)))
    made += [
        Group(f"attention_backward-{head_dim}", _attention(head_dim, "attention_backward", small))
        for head_dim in HEAD_DIMS
    ]
    made.append(Group("linear_backward", _product("linear_backward", (65, 16384), small)))
    made += [Group(f"decode-{name}", _decode(kv_heads, small)) for name, kv_heads in (("few", (1, 2)), ("8", (8,)))]
    for blocks in ("token", "square"):
        made.append(Group(f"scaled_linear-{blocks}", _scaled("scaled_linear", blocks, small), named_only=True))
        made.append(Group(f"scaled_grouped-{blocks}", _grouped("scaled_grouped_linear", blocks, small), True))
    for blocks in ("tensor", "row"):
        made.append(Group(f"scaled_linear-{blocks}", _scaled("scaled_linear", blocks, small), named_only=True))
    made.append(Group("scaled_linear_accumulate", _scaled("scaled_linear_accumulate", "row", small), named_only=True))
    for op in ("grouped_linear", "grouped_weight_grad", "masked_grouped_linear", "grouped_linear_backward"):
        made.append(Group(op, _grouped(op, "", small), named_only=True))
    made.append(Group("scaled_grouped_weight_grad", _grouped("scaled_grouped_weight_grad", "", small), True))
    for op, blocks in (("grouped_linear", ""), ("scaled_grouped_linear", "square")):
        made.append(Group(f"{op}-sparse", _grouped(op, blocks, small, sparse=True), named_only=True))
    masked = _grouped("scaled_masked_grouped_linear", "square", small)
    made.append(Group("scaled_masked", masked, named_only=True))
    for blocks in ("token", "tensor"):
        int8 = _scaled("scaled_linear", blocks, small, torch.int8)
        made.append(Group(f"scaled_int8-{blocks}", int8, named_only=True))
    coded = _decode((1, 2, 8), small, torch.float8_e4m3fn)
    others = (("quantize", _quantize(small)), ("gates", _gate(small)), ("rope", _rope(small)), ("decode-fp8", coded))
    for name, draw in others:
        made.append(Group(name, draw, named_only=True))
    return tuple(made)


def drawn(seed: int, per_group: int, small: bool, only: Sequence[str] = ()) -> Iterator[tuple[str, Point]]:
    """Groups and calls, a call of each group in turn; each group has its own stream of numbers.

    Args:
        seed: of the drawing.
        per_group: calls of each group.
        small: sizes for a CPU, in float32.
        only: these groups; if empty, all that are not drawn by name only.
    """
    dtype = torch.float32 if small else torch.bfloat16
    found = [
        (g, random.Random(f"{seed} {g.key}")) for g in groups(small) if g.key in only or not (only or g.named_only)
    ]
    seen: set[str] = set()
    for _ in range(per_group):
        for group, source in found:
            while True:
                op, sizes = group.draw(source)
                point = _of_codes(point_of(op, sizes, dtype), sizes.get("codes"))
                if point.key not in seen and _fits(point):
                    break
            seen.add(point.key)
            yield group.key, point


def _of_codes(point: Point, codes: torch.dtype | None) -> Point:
    """The same call with codes of this dtype; None for the usual one."""
    return point if codes is None else replace(point, dtypes={**point.dtypes, "x": codes, "w": codes})


def _fits(point: Point) -> bool:
    work = Work(point.definition, point.dtypes, point.options)
    if work.flops({**point.dims, **point.options}) > MOST_FLOPS:
        return False
    return all(t is None or t.numel() * t.itemsize <= MOST_BYTES for t in point.tensors().values())


def _between(source: random.Random, bounds: tuple[float, float]) -> int:
    return round(math.exp(source.uniform(math.log(bounds[0]), math.log(bounds[1]))))


def _product(op: str, band: tuple[int, int], small: bool) -> Draw:
    def draw(source: random.Random) -> tuple[str, Sizes]:
        widths = SMALL_WIDTHS if small else measure_products.WIDTHS
        m = _between(source, (1, SMALL_ROWS) if small else band)
        n, k = source.choice(widths), source.choice(widths)
        return op, {"tokens": m, "n": n, "k": k}

    return draw


def _scales(blocks: str, m: int, n: int, k: int) -> Sizes:
    """The sizes of scales: of tokens and channels, whole tensors, 1x128 with 128x128, or (``row``) 1x128 with 1x128."""
    if blocks == "tensor":
        return {"m_blocks": 1, "k_blocks": 1, "w_rows": 1, "w_blocks": 1}
    if blocks == "token":
        return {"m_blocks": m, "k_blocks": 1, "w_rows": n, "w_blocks": 1}
    columns = -(-k // 128)
    rows = n if blocks == "row" else -(-n // 128)
    return {"m_blocks": m, "k_blocks": columns, "w_rows": rows, "w_blocks": columns}


def _scaled(op: str, blocks: str, small: bool, codes: torch.dtype | None = None) -> Draw:
    def draw(source: random.Random) -> tuple[str, Sizes]:
        _, sizes = _product(op, (1, 16384), small)(source)
        m, n, k = sizes["tokens"], sizes["n"], sizes["k"]
        scales = {**_scales(blocks, m, n, k), "codes": codes}
        out = {} if op == "scaled_linear_accumulate" else {"batch": 1, "out_dtype": torch.bfloat16}
        return op, {"m": m, "n": n, "k": k, **scales, **out}

    return draw


def _grouped(op: str, blocks: str, small: bool, sparse: bool = False) -> Draw:
    """Grouped products; ``sparse`` ones have no more rows than groups, as decoding a few sequences has."""

    def draw(source: random.Random) -> tuple[str, Sizes]:
        count = source.choice((2, 4) if small else (4, 8, 16, 32, 64, 128))
        rows = _between(source, (1, 4) if small else (1, 4096))
        widths = SMALL_WIDTHS if small else EXPERTS
        sizes: Sizes = {"groups": count, "n": source.choice(widths), "k": source.choice(widths)}
        if "masked" in op:
            sizes |= {"max_m": rows * source.choice((1, 2, 4)), "expected_m": rows}
        else:
            sizes["m"] = _between(source, (1, count)) if sparse else count * rows
            if op == "scaled_grouped_weight_grad":  # groups begin at blocks of scales
                sizes["m"] = -(-sizes["m"] // (128 * count)) * 128 * count
        if blocks:
            m = sizes.get("m", sizes.get("max_m"))
            sizes |= {**_scales(blocks, m, sizes["n"], sizes["k"]), "out_dtype": torch.bfloat16}
        return op, sizes

    return draw


def _attention(head_dim: int, op: str, small: bool) -> Draw:
    def draw(source: random.Random) -> tuple[str, Sizes]:
        batch, seq, heads, kv_heads = measure_attention.sizes(source)
        if small:
            batch, seq = 1, 1 + seq % SMALL_ROWS
        # DeepSeek's prefill has narrower values.
        value_dim = 128 if head_dim == 192 and source.random() < 1 / 3 else head_dim
        return op, {
            "batch": batch, "seq_q": seq, "seq_k": seq, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
            "value_dim": value_dim, "causal": source.random() < 1 / 2,
        }  # fmt: skip

    return draw


def _norm(small: bool) -> Draw:
    def draw(source: random.Random) -> tuple[str, Sizes]:
        op = source.choice(("rms_norm", "add_rms_norm_", "layer_norm"))
        widths = SMALL_WIDTHS if small else measure_products.WIDTHS
        return op, {"tokens": _between(source, (1, SMALL_ROWS) if small else ROWS), "hidden": source.choice(widths)}

    return draw


def _quantize(small: bool) -> Draw:
    def draw(source: random.Random) -> tuple[str, Sizes]:
        op = source.choice(("quantize", "rms_norm_quantize", "add_rms_norm_quantize", "silu_and_mul_quantize"))
        rows, width = _rows_of(source, small)
        name = {"quantize": "k", "silu_and_mul_quantize": "n"}.get(op, "hidden")
        block = source.choice(((1, 128), (1, -1)))
        return op, {"batch": 1, "m": rows, name: width, "dtype": torch.float8_e4m3fn, "block": block}

    return draw


def _gate(small: bool) -> Draw:
    def draw(source: random.Random) -> tuple[str, Sizes]:
        op = source.choice(("silu_and_mul", "gelu_and_mul", "silu_and_mul_backward"))
        rows, width = _rows_of(source, small)
        return op, {"tokens": rows, "n": width}

    return draw


def _rope(small: bool) -> Draw:
    def draw(source: random.Random) -> tuple[str, Sizes]:
        _, seq, heads, kv_heads = measure_attention.sizes(source)
        head_dim = source.choice(HEAD_DIMS)
        rows, _ = _rows_of(source, small)
        seq = source.choice((1, min(rows, seq)))
        return source.choice(("apply_rope", "apply_rope_")), {
            "batch": -(-rows // seq), "seq": seq, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
            "half": head_dim // 2, "max_positions": 8192,
        }  # fmt: skip

    return draw


def _rows_of(source: random.Random, small: bool) -> tuple[int, int]:
    """Rows and their width."""
    rows = _between(source, (1, SMALL_ROWS) if small else ROWS)
    return rows, source.choice(SMALL_WIDTHS if small else measure_products.WIDTHS)


def _decode(kv_heads: Sequence[int], small: bool, stored: torch.dtype | None = None) -> Draw:
    """Decoding a token of each sequence; ``stored`` is the dtype of caches that hold codes."""
    held = {} if stored is None else {"stored": stored}

    def draw(source: random.Random) -> tuple[str, Sizes]:
        head_dim, page_size = source.choice((64, 128, 256)), source.choice(PAGES)
        heads = source.choice(kv_heads)
        size = _between(source, KV_BYTES) / (4 * heads * head_dim)  # tokens in bfloat16 keys and values
        batch = _between(source, (max(1.0, size / 131072), min(256.0, size / 128)))
        context = max(1, round(size / batch))
        if small:
            batch, context = 2, 1 + context % 64
        pages = -(-context // page_size)
        return "paged_attention", {
            "batch": batch, "tokens": batch, "heads": heads * source.choice((1, 2, 4, 8)), "kv_heads": heads,
            "head_dim": head_dim, "value_dim": head_dim, "page_size": page_size, "pages": batch * pages,
            "max_pages": pages, "max_seqlen_q": 1, "max_seqlen_k": context, **held,
        }  # fmt: skip

    return draw
