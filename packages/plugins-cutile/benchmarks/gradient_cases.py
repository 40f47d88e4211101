"""Calls of gradients of products and attention, and of groups of codes, that are checked and timed."""

from collections.abc import Iterator
from typing import Any

import torch
from cases import ATTENTION, BF16, FP16, FP32, Example, codes, drawn, scales
from torch import Tensor

import opmux


def checked() -> Iterator[Example]:
    """Calls whose results are compared."""
    yield from _products()
    yield from _groups()
    yield from _group_gradients()
    yield from _squares()
    yield from _attention()


def _products() -> Iterator[Example]:
    sizes = ((1, 8, 8), (7, 200, 520), (31, 72, 512), (100, 264, 1040), (300, 512, 768), (1000, 2048, 1024))
    for dtype in (BF16, FP16):
        for m, n, k in sizes:
            yield Example(
                "linear_backward", f"{m}x{n}x{k} {dtype}",
                lambda d, m=m, n=n, k=k, t=dtype:  # type: ignore[misc]
                [drawn(d, m, n, dtype=t), drawn(d, m, k, dtype=t).flip(0), drawn(d, n, k, dtype=t)],
            )  # fmt: skip
    yield Example(
        "linear_backward", "gapped, three dims",
        lambda d: [drawn(d, 2, 33, 640)[..., 64:128], drawn(d, 2, 33, 1024)[..., :512], drawn(d, 64, 640)[:, 64:576]],
    )  # fmt: skip


def _groups() -> Iterator[Example]:
    for rows in ((3, 0, 70, 130), (300, 1, 0), (1,)):
        for n, k in ((264, 144), (512, 1024)):
            for kind in ("rows", "one", "blocks", "groups"):
                for op in ("scaled_grouped_linear", "scaled_masked_grouped_linear"):
                    yield Example(
                        op, f"{rows} rows {n}x{k} {kind}",
                        lambda d, o=op, r=rows, n=n, k=k, s=kind: codes_of_groups(d, o, r, n, k, s),  # type: ignore[misc]
                        {"out_dtype": BF16} | ({"expected_m": max(rows)} if "masked" in op else {}),
                    )  # fmt: skip


def codes_of_groups(device: str, op: str, rows: tuple[int, ...], n: int, k: int, kind: str) -> list[Tensor | None]:
    """Codes and scales of groups: those of a masked product use all their rows."""
    groups, blocks = len(rows), -(-k // 128)
    leading = (groups, max(rows)) if "masked" in op else (sum(rows),)
    of_x = {"rows": (*leading, 1), "one": (*leading[:-1], 1, 1)}.get(kind, (*leading, blocks))
    of_w = {"rows": (n, 1), "one": (1, 1), "blocks": (-(-n // 128), blocks), "groups": (n, blocks)}[kind]
    x, w = codes(device, *leading, k), codes(device, groups, n, k)
    given = scales(device, *of_x), scales(device, groups, *of_w)
    if "masked" in op:
        return [x, w, torch.full((groups,), max(rows), dtype=torch.int32, device=device), *given]
    return [x, w, torch.tensor([0, *rows], device=device).cumsum(0).to(torch.int32), *given, None]


def _group_gradients() -> Iterator[Example]:
    for rows in ((3, 0, 70, 130), (1,)):
        for n, k in ((264, 144), (128, 512)):

            def starts(d: str, r: tuple[int, ...] = rows) -> Tensor:
                return torch.tensor([0, *r], device=d).cumsum(0).to(torch.int32)

            def given(d: str, r: tuple[int, ...] = rows, n: int = n, k: int = k) -> list[Tensor]:
                return [drawn(d, sum(r), n), drawn(d, sum(r), k).flip(0)]

            text, sizes = f"{rows} rows {n}x{k}", (len(rows), n, k)
            yield Example("grouped_linear_backward", text, lambda d, g=given, s=starts, m=sizes: [  # type: ignore[misc]
                *g(d), drawn(d, *m), s(d), None])  # fmt: skip
            yield Example("grouped_weight_grad", text, lambda d, g=given, s=starts, m=sizes: [  # type: ignore[misc]
                drawn(d, *m, dtype=FP32), *g(d), s(d), None])  # fmt: skip


def _squares() -> Iterator[Example]:
    for dtype in (torch.float8_e4m3fn, torch.int8):
        for block in ((128, 128), (-1, -1)):
            for shape in ((3, 77), (300, 4096), (2, 130, 264)):
                yield Example("quantize", f"{shape} {dtype} {block}", lambda d, s=shape: [drawn(d, *s)],  # type: ignore[misc]
                              {"dtype": dtype, "block": block, "scale_major": "m"})  # fmt: skip


def _attention() -> Iterator[Example]:
    for dtype, sizes, options, sinks in ATTENTION:
        for op in ("attention_backward", "attention_varlen_backward"):
            lengths = {"max_seqlen_q": sizes[0], "max_seqlen_k": sizes[1]} if "varlen" in op else {}
            yield Example(
                op, f"{sizes} {dtype} {options} sinks {sinks}",
                lambda d, o=op, t=dtype, s=sizes, w=sinks, p=options | lengths:  # type: ignore[misc]
                attention_of(d, o, t, s, w, p),
                options | lengths,
            )  # fmt: skip


def attention_of(
    device: str, op: str, dtype: torch.dtype, sizes: tuple[int, ...], sinks: torch.dtype | None, options: dict[str, Any]
) -> list[Tensor | None]:
    """What gradients of attention are computed from, with the results of the forward."""
    seq_q, seq_k, heads, kv_heads, dim, width = sizes
    logits = None if sinks is None else drawn(device, heads, dtype=sinks)
    shapes = (seq_q, heads, dim), (seq_k, kv_heads, dim), (seq_k, kv_heads, width)
    if "varlen" in op:  # a short sequence, one without tokens, a long one; some tokens belong to none
        q, k, v = (drawn(device, 2 * shape[0] + 3, *shape[1:], dtype=dtype) for shape in shapes)
        starts = [torch.tensor([0, n // 3, n // 3, n // 3 + n], dtype=torch.int32, device=device)
                  for n in (seq_q, seq_k)]  # fmt: skip
    else:
        q, k, v = (drawn(device, 2, *shape, dtype=dtype) for shape in shapes)
        starts = []
    of_lse = (*q.shape[:-3], heads, q.shape[-3])
    if device == "meta":
        out, lse = q.new_empty((*q.shape[:-1], width)), q.new_empty(of_lse, dtype=FP32)
    else:
        forward = opmux.attention_varlen_lse if starts else opmux.attention_lse
        out, lse = forward(q, k, v, *starts, logits, backend="reference", **options)
    grad_out = drawn(device, *q.shape[:-1], width, dtype=dtype).flip(0)
    return [grad_out, q, k, v, out, lse, *starts, logits, drawn(device, *of_lse, dtype=FP32) if sinks else None]


PRODUCTS = ((8192, 8192, 8192), (4096, 16384, 7168), (4096, 1536, 24576), (16384, 4096, 4096))
"""tokens, n and k of gradients of `linear` that are timed."""
GROUPS = ((8, 8192, 4096, 7168), (32, 8192, 7168, 2048), (32, 1024, 4096, 7168))
"""groups, their rows together, n and k of products of groups that are timed."""


def even(groups: int, rows: int) -> tuple[int, ...]:
    """Groups of equally many rows."""
    return (rows // groups,) * groups
