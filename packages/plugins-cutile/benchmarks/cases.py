"""The calls that `on_gpu.py` checks and times."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opmux.bench.shapes import FIGURES

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


class Example(NamedTuple):
    """A call of an op.

    Attributes:
        op: its name.
        text: what is printed of it.
        make: makes its tensors on a device; mutated ones are made again for each call.
        options: its options.
    """

    op: str
    text: str
    make: Callable[[str], list[Tensor | None]]
    options: dict[str, Any] = {}


def drawn(device: str, *shape: int, dtype: torch.dtype = BF16) -> Tensor:
    """Normally distributed numbers, the same on every device."""
    if device == "meta":
        return torch.empty(*shape, dtype=dtype, device=device)
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    if torch.Size(shape).numel() > 1 << 24:  # for timings
        seeded = torch.Generator(device).manual_seed(sum(shape))
        return torch.randn(*shape, device=device, generator=seeded).to(dtype)
    return torch.randn(*shape, generator=generator).to(dtype).to(device)


def checked() -> Iterator[Example]:
    """Calls whose results are compared: the edges of rows and widths, dtypes, gaps between rows, odd addresses."""
    yield from _norms()
    yield from _gates()
    yield from _products()
    yield from _rope()
    yield from _attention()
    yield from _gradients()
    yield from _quantised()
    yield from _cache_writes()
    yield from _paged()
    yield from _grouped()
    from gradient_cases import checked as more  # which takes its words from here

    yield from more()


def _norms() -> Iterator[Example]:
    sizes = [(1, 1), (3, 7), (5, 77), (8, 128), (33, 256), (17, 1000), (129, 4096), (7, 4097), (64, 5120), (3, 16384)]
    for dtype in (BF16, FP16, FP32):
        for m, n in sizes if dtype == BF16 else sizes[2:9:2]:
            yield from _norms_of(f"{m}x{n} {dtype}", lambda d, m=m, n=n, t=dtype: drawn(d, m, n, dtype=t), n, dtype)  # type: ignore[misc]
    for n in (2, 3, 5, 9, 17, 33, 65):  # a kernel for every width of tiles that conformance may draw
        for dtype in (BF16, FP16, FP32):
            yield from _norms_of(f"3x{n} {dtype}", lambda d, n=n, t=dtype: drawn(d, 3, n, dtype=t), n, dtype)  # type: ignore[misc]
    yield from _norms_of("gapped 33x512", lambda d: drawn(d, 33, 1024)[:, :512], 512, BF16)
    yield from _norms_of("odd address 33x512", lambda d: drawn(d, 33 * 512 + 1)[1:].view(33, 512), 512, BF16)
    yield from _norms_of("three dims 3x5x2048", lambda d: drawn(d, 3, 5, 2048), 2048, BF16)
    yield Example("rms_norm", "weight in float32, offset", lambda d: [drawn(d, 9, 4096), drawn(d, 4096, dtype=FP32)],
                  {"eps": 0.1, "weight_offset": 1.0})  # fmt: skip
    yield Example("add_rms_norm", "residual in float32", lambda d: [drawn(d, 9, 4096), drawn(d, 9, 4096, dtype=FP32),
                  drawn(d, 4096)])  # fmt: skip
    yield Example("add_layer_norm", "residual in float32", lambda d: [drawn(d, 9, 4096), drawn(d, 9, 4096, dtype=FP32),
                  drawn(d, 4096), drawn(d, 4096)], {"eps": 0.1})  # fmt: skip
    yield Example("rms_norm", "no rows", lambda d: [drawn(d, 0, 4096), drawn(d, 4096)])


def _norms_of(text: str, x: Callable[[str], Tensor], n: int, dtype: torch.dtype) -> Iterator[Example]:
    def w(d: str) -> Tensor:
        return drawn(d, n, dtype=dtype)

    yield Example("rms_norm", text, lambda d: [x(d), w(d)])
    yield Example("add_rms_norm", text, lambda d: [x(d), x(d).flip(0), w(d)])
    if "gapped" not in text:
        yield Example("add_rms_norm_", text, lambda d: [x(d), x(d).flip(0), w(d)])
    yield Example("layer_norm", text, lambda d: [x(d), w(d), w(d).neg()])
    yield Example("layer_norm", f"{text} no bias", lambda d: [x(d), w(d), None])
    yield Example("add_layer_norm", text, lambda d: [x(d), x(d).flip(0), w(d), w(d).neg()])
    yield Example("add_layer_norm", f"{text} no bias", lambda d: [x(d), x(d).flip(0), w(d), None])


def _gates() -> Iterator[Example]:
    for dtype in (BF16, FP16, FP32):
        for m, n in (
            (1, 1),
            (5, 2),
            (5, 3),
            (3, 7),
            (3, 9),
            (3, 17),
            (3, 33),
            (3, 65),
            (33, 64),
            (17, 1000),
            (129, 4096),
            (7, 11008),
        ):
            made = [lambda d, m=m, n=n, t=dtype: [drawn(d, m, 2 * n, dtype=t)],
                    lambda d, m=m, n=n, t=dtype: [drawn(d, m, n, dtype=t), drawn(d, m, n, dtype=t).neg()]]  # type: ignore[misc]  # fmt: skip
            yield Example("silu_and_mul", f"{m}x{n} {dtype}", made[0])
            yield Example("gelu_and_mul", f"{m}x{n} {dtype}", made[0], {"approximate": "tanh"})
            yield Example("silu_mul", f"{m}x{n} {dtype}", made[1])
            yield Example("gelu_mul", f"{m}x{n} {dtype}", made[1], {"approximate": "tanh"})
    yield Example("silu_and_mul", "gapped", lambda d: [drawn(d, 33, 1024)[:, 8:520]])


def _products() -> Iterator[Example]:
    sizes = (
        (1, 8, 8), (1, 64, 128), (7, 200, 520), (16, 4096, 1024), (31, 72, 512), (64, 2112, 1536), (100, 264, 1040),
        (512, 8192, 4096), (777, 3072, 1000), (4096, 4096, 512),
    )  # fmt: skip
    for dtype in (BF16, FP16):
        for m, n, k in sizes:
            for biased in (False, True):
                yield Example(
                    "linear", f"{m}x{n}x{k} {dtype} {'bias' if biased else ''}",
                    lambda d, m=m, n=n, k=k, t=dtype, b=biased:  # type: ignore[misc]
                    [drawn(d, m, k, dtype=t), drawn(d, n, k, dtype=t), drawn(d, n, dtype=t) if b else None],
                )  # fmt: skip
    yield Example(
        "linear", "gapped, three dims",
        lambda d: [drawn(d, 2, 33, 1024)[..., :512], drawn(d, 64, 640)[:, 64:576], None],
    )  # fmt: skip


def _gradients() -> Iterator[Example]:
    for dtype, m, n in (
        (BF16, 1, 1),
        (BF16, 33, 64),
        (FP16, 600, 1000),
        (FP32, 17, 300),
        (BF16, 700, 4096),
        (BF16, 9, 8192),
    ):

        def x(d: str, m: int = m, n: int = n, t: torch.dtype = dtype) -> Tensor:
            return drawn(d, m, n, dtype=t)

        def w(d: str, n: int = n, t: torch.dtype = dtype) -> Tensor:
            return drawn(d, n, dtype=t)

        text = f"{m}x{n} {dtype}"
        yield Example("rms_norm_backward", text, lambda d, x=x, w=w: [x(d).flip(1), x(d), w(d)])  # type: ignore[misc]
        yield Example("layer_norm_backward", text, lambda d, x=x, w=w: [x(d).flip(1), x(d), w(d)])  # type: ignore[misc]
        yield Example("add_rms_norm_backward", text,
                      lambda d, x=x, w=w: [x(d).flip(1), x(d).flip(0), x(d), w(d)])  # type: ignore[misc]  # fmt: skip
        yield Example("add_layer_norm_backward", text,
                      lambda d, x=x, w=w: [x(d).flip(1), x(d).flip(0), x(d), w(d)])  # type: ignore[misc]  # fmt: skip
        for op, options in (("silu", {}), ("gelu", {"approximate": "tanh"})):
            yield Example(f"{op}_and_mul_backward", text,
                          lambda d, x=x: _gate_of(d, x), options)  # type: ignore[misc]  # fmt: skip
            yield Example(f"{op}_mul_backward", text, lambda d, x=x: [x(d), x(d).flip(0), x(d).neg()], options)  # type: ignore[misc]


def _gate_of(device: str, x: Callable[[str], Tensor]) -> list[Tensor | None]:
    grad = x(device)
    return [grad, drawn(device, len(grad), 2 * grad.shape[1], dtype=grad.dtype)]


def codes(device: str, *shape: int, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Codes of 8-bit floats."""
    return torch.empty(*shape, dtype=dtype, device=device) if device == "meta" else drawn(device, *shape).to(dtype)


def scales(device: str, *shape: int) -> Tensor:
    """Positive scales."""
    return drawn(device, *shape, dtype=FP32).abs() + 0.5


def _quantised() -> Iterator[Example]:
    for m, n, k in (
        (1, 8, 16),
        (33, 520, 272),
        (130, 264, 1040),
        (300, 2112, 1536),
        (4096, 4096, 512),
        (3301, 1032, 5264),
    ):
        blocks = -(-k // 128)
        for kind, of_x, of_w in (
            ("rows", (m, 1), (n, 1)), ("one", (1, 1), (1, 1)), ("blocks", (m, blocks), (-(-n // 128), blocks)),
            ("groups", (m, blocks), (n, blocks)),
        ):  # fmt: skip
            yield Example(
                "scaled_linear", f"{m}x{n}x{k} {kind}",
                lambda d, m=m, n=n, k=k, a=of_x, b=of_w:  # type: ignore[misc]
                [codes(d, m, k), codes(d, n, k), scales(d, *a), scales(d, *b), drawn(d, n) if m % 2 else None],
                {"out_dtype": BF16},
            )  # fmt: skip
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8):
        for block in ((1, 128), (1, 32), (1, -1)):
            for major in ("k", "m"):
                options = {"dtype": dtype, "block": block, "scale_major": major}
                for m, n in ((3, 77), (33, 4096)):
                    text = f"{m}x{n} {dtype} {block} {major}"
                    yield Example("quantize", text, lambda d, m=m, n=n: [drawn(d, m, n)], options)  # type: ignore[misc]
                    yield Example("rms_norm_quantize", text, lambda d, m=m, n=n: [drawn(d, m, n), drawn(d, n)], options)  # type: ignore[misc]


def _cache_writes() -> Iterator[Example]:
    for stored in (BF16, FP16, FP32, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8):
        for size, pages, tokens in ((16, 5, 31), (1, 40, 33), (64, 3, 100)):
            for heads, dim, width in ((2, 128, 128), (8, 64, 64), (1, 40, 24)):
                for scaled in (False, True) if stored.itemsize == 1 else (False,):
                    yield Example(
                        "write_kv_cache",
                        f"{tokens} tokens to {pages} pages of {size}x{heads}x{dim}/{width} {stored} scaled {scaled}",
                        lambda d, t=stored, a=(size, pages, tokens, heads, dim, width), s=scaled:  # type: ignore[misc]
                        _write_of(d, t, a, s),
                    )  # fmt: skip


def _write_of(device: str, stored: torch.dtype, sizes: tuple[int, ...], scaled: bool) -> list[Tensor | None]:
    size, pages, tokens, heads, dim, width = sizes
    caches = [torch.zeros(pages, size, heads, d, dtype=FP32, device=device).to(stored) for d in (dim, width)]
    slots = torch.arange(tokens, device=device) * 7 % (pages * size)  # distinct: neither number divides by 7
    slots[::5] = -1
    of = [scales(device, heads) * 0.01, scales(device, 1) * 0.01] if scaled else [None, None]
    return [drawn(device, tokens, heads, dim), drawn(device, tokens, heads, width).neg(), *caches, slots, *of]


def _rope() -> Iterator[Example]:
    for dtype, size, half in ((BF16, 128, 64), (FP16, 64, 32), (FP32, 80, 20), (BF16, 40, 12), (BF16, 6, 3)):
        for interleaved in (False, True):
            for given in (None, torch.int32, torch.int64):
                for op in ("apply_rope", "apply_rope_", "apply_rope_backward"):
                    yield Example(
                        op, f"3x11x5x{size} half {half} {dtype} interleaved {interleaved} positions {given}",
                        lambda d, t=dtype, s=size, h=half, g=given: _rope_of(d, t, s, h, g),  # type: ignore[misc]
                        {"interleaved": interleaved},
                    )  # fmt: skip


def _rope_of(device: str, dtype: torch.dtype, size: int, half: int, given: torch.dtype | None) -> list[Tensor | None]:
    q, k = drawn(device, 3, 11, 5, size, dtype=dtype), drawn(device, 3, 11, 2, size, dtype=dtype)
    angles = drawn(device, 33, half, dtype=FP32)
    places = None if given is None else (torch.arange(33, device=device) * 7 % 33).view(3, 11).to(given)
    return [q, k, angles.cos(), angles.sin(), places]


ATTENTION: tuple[tuple[torch.dtype, tuple[int, ...], dict[str, Any], torch.dtype | None], ...] = (
    # dtype, (seq_q, seq_k, heads, kv_heads, head_dim, value_dim), options, the sinks' dtype
    (BF16, (130, 197, 8, 2, 128, 128), {}, None),
    (BF16, (130, 197, 8, 2, 128, 128), {"causal": True}, None),
    (BF16, (300, 131, 4, 4, 64, 64), {"causal": True}, None),
    (FP16, (257, 513, 4, 1, 64, 64), {"window": (40, 0)}, None),
    (BF16, (257, 300, 4, 2, 128, 128), {"window": (9, 70), "softcap": 5.0, "scale": 0.5}, BF16),
    (BF16, (1, 1000, 8, 2, 128, 128), {"causal": True}, FP32),
    (BF16, (64, 64, 4, 4, 72, 40), {"causal": True}, None),
    (BF16, (200, 200, 4, 4, 192, 128), {"causal": True}, None),
)
"""Attention that is compared, dense and ragged, with its lse and without."""


def _attention() -> Iterator[Example]:
    for place, (dtype, sizes, options, sinks) in enumerate(ATTENTION):
        for op in ("attention_lse", "attention_varlen_lse", *(("attention", "attention_varlen") if place < 2 else ())):
            lengths = {"max_seqlen_q": sizes[0], "max_seqlen_k": sizes[1]} if "varlen" in op else {}
            yield Example(
                op, f"{sizes} {dtype} {options} sinks {sinks}",
                lambda d, o=op, t=dtype, s=sizes, w=sinks: heads_of(d, o, t, s, w),  # type: ignore[misc]
                options | lengths,
            )  # fmt: skip


def heads_of(
    device: str, op: str, dtype: torch.dtype, sizes: tuple[int, ...], sinks: torch.dtype | None
) -> list[Tensor | None]:
    """The tensors of an op of attention."""
    seq_q, seq_k, heads, kv_heads, dim, width = sizes
    logits = None if sinks is None else drawn(device, heads, dtype=sinks)
    shapes = (seq_q, heads, dim), (seq_k, kv_heads, dim), (seq_k, kv_heads, width)
    if "varlen" not in op:
        return [*(drawn(device, 2, *shape, dtype=dtype) for shape in shapes), logits]
    # Three sequences: a short one, one without tokens, a long one; some tokens belong to none.
    q, k, v = (drawn(device, 2 * shape[0] + 3, *shape[1:], dtype=dtype) for shape in shapes)
    starts = [torch.tensor([0, n // 3, n // 3, n // 3 + n], dtype=torch.int32, device=device) for n in (seq_q, seq_k)]
    return [q, k, v, *starts, logits]


PAGED: tuple[tuple[torch.dtype, torch.dtype, tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    # q's dtype, the caches', (page_size, heads, kv_heads, head_dim, value_dim), new tokens of each sequence, options
    (BF16, BF16, (16, 8, 2, 128, 128), (1, 1, 1), {}),
    (FP16, FP16, (64, 16, 2, 64, 64), (1, 0, 1), {"softcap": 5.0}),
    (BF16, BF16, (1, 4, 4, 40, 24), (3, 1, 70), {"window": (30, 0)}),
    (BF16, BF16, (32, 8, 1, 128, 64), (90, 1, 200), {"causal": False}),
    (BF16, torch.float8_e4m3fn, (16, 8, 2, 128, 128), (1, 1, 1), {}),
    (BF16, torch.float8_e5m2, (64, 4, 2, 64, 64), (5, 1, 40), {"window": (64, 64), "causal": False}),
    (FP16, torch.int8, (16, 8, 4, 128, 64), (1, 17, 1), {}),
    (BF16, torch.float8_e5m2, (64, 4, 2, 64, 64), (1, 1, 1), {"window": (64, 64), "causal": False}),
    (FP16, torch.int8, (32, 8, 4, 128, 128), (1, 0, 1), {"softcap": 5.0}),
    (BF16, BF16, (128, 8, 2, 64, 64), (1, 1, 1), {"window": (40, 0)}),
)
"""Attention over paged caches that is compared, with its lse and without, decoding, prefill and both."""
PAGED_LENGTHS = (300, 33, 257)
"""Tokens of each sequence there."""


def _paged() -> Iterator[Example]:
    for dtype, stored, sizes, new, options in PAGED:
        for op in ("paged_attention", "paged_attention_lse"):
            for sinks in (False, True) if op.endswith("lse") else (False,):
                yield Example(
                    op, f"{sizes} {new} of {PAGED_LENGTHS} {dtype} {stored} {options} sinks {sinks}",
                    lambda d, t=dtype, c=stored, s=sizes, n=new, w=sinks: paged_of(d, t, c, s, n, w),  # type: ignore[misc]
                    options | {"max_seqlen_q": max(new), "max_seqlen_k": max(PAGED_LENGTHS)},
                )  # fmt: skip


def paged_of(
    device: str, dtype: torch.dtype, stored: torch.dtype, sizes: tuple[int, ...], new: tuple[int, ...], sinks: bool
) -> list[Tensor | None]:
    """The tensors of an op of paged attention."""
    size, heads, kv_heads, dim, width = sizes
    most = -(-max(PAGED_LENGTHS) // size)
    pages = most * len(new) + 1  # the last one belongs to nobody
    coded = stored.itemsize == 1
    caches = [(drawn(device, pages, size, kv_heads, d) * (20 if coded else 1)).to(stored) for d in (dim, width)]
    table = (torch.arange(most * len(new), device=device) * 5 % (pages - 1)).view(len(new), most).to(torch.int32)
    starts = torch.tensor([0, *new], device=device).cumsum(0).to(torch.int32)
    lengths = torch.tensor(PAGED_LENGTHS, dtype=torch.int32, device=device)
    of_codes = [scales(device, n) * 0.03 if coded else None for n in (kv_heads, 1)]
    logits = drawn(device, heads, dtype=FP32) if sinks else None
    q = drawn(device, sum(new) + 2, heads, dim, dtype=dtype)
    return [q, *caches, starts, lengths, table, logits, None, *of_codes]


def _grouped() -> Iterator[Example]:
    for dtype in (BF16, FP16):
        for sizes in ((3, 0, 70, 130), (5, 1, 0), (1,)):
            for n, k in ((264, 136), (512, 1024)):
                yield Example(
                    "grouped_linear", f"{sizes} rows {n}x{k} {dtype}",
                    lambda d, s=sizes, n=n, k=k, t=dtype: [  # type: ignore[misc]
                        drawn(d, sum(s), k, dtype=t), drawn(d, len(s), n, k, dtype=t),
                        torch.tensor([0, *s], device=d).cumsum(0).to(torch.int32), None,
                    ],
                )  # fmt: skip
                yield Example(
                    "masked_grouped_linear", f"all of {max(sizes)} rows of {len(sizes)} groups, {n}x{k} {dtype}",
                    lambda d, s=sizes, n=n, k=k, t=dtype: [  # type: ignore[misc]
                        drawn(d, len(s), max(s), k, dtype=t), drawn(d, len(s), n, k, dtype=t),
                        torch.full((len(s),), max(s), dtype=torch.int32, device=d),
                    ],
                    {"expected_m": max(sizes)},
                )  # fmt: skip


DECODE = (
    (64, 8192, 16, 32, 8, 128),
    (64, 8192, 64, 32, 8, 128),
    (8, 32768, 64, 32, 8, 128),
    (128, 4096, 64, 64, 8, 128),
)
"""Sequences, keys, page size, heads, kv_heads and head_dim of decoding that is timed."""


def decode() -> Iterator[Example]:
    """Decoding from paged caches that is timed, beside a copy of as many bytes as the caches have."""
    for sizes in DECODE:
        for stored in (BF16, torch.float8_e4m3fn):
            batch, keys, size, heads, kv_heads, dim = sizes
            yield Example(
                "paged_attention", f"{batch}x{keys} in pages of {size}, {heads}/{kv_heads}x{dim} {str(stored)[6:]}",
                lambda d, s=sizes, t=stored: _decode_of(d, s, t),  # type: ignore[misc]
                {"max_seqlen_q": 1, "max_seqlen_k": keys},
            )  # fmt: skip


def _decode_of(device: str, sizes: tuple[int, ...], stored: torch.dtype) -> list[Tensor | None]:
    batch, keys, size, heads, kv_heads, dim = sizes
    each = keys // size
    caches = [drawn(device, batch * each, size, kv_heads, dim).to(stored) for _ in range(2)]
    starts = torch.arange(batch + 1, dtype=torch.int32, device=device)
    lengths = torch.full((batch,), keys, dtype=torch.int32, device=device)
    table = torch.arange(batch * each, dtype=torch.int32, device=device)
    if device != "meta":
        table = table[torch.randperm(batch * each, generator=torch.Generator().manual_seed(1)).to(device)]
    return [drawn(device, batch, heads, dim), *caches, starts, lengths, table.view(batch, each), *[None] * 4]


FLASH = (
    *((s.batch, s.new, s.heads, s.kv_heads, s.head_dim, s.causal) for s in FIGURES["attention"] if s.new == s.context),
    (2, 8192, 16, 16, 64, True),
)
"""batch, seq, heads, kv_heads, head_dim and causal of attention that is timed: the dense calls that
`opmux bench --size figures` times, and one more."""


def flash() -> Iterator[Example]:
    """Attention that is timed, beside cuDNN's."""
    for batch, seq, heads, kv_heads, dim, causal in FLASH:
        yield Example(
            "attention", f"{batch}x{seq}x{heads}/{kv_heads}x{dim}{' causal' if causal else ''}",
            lambda d, b=batch, s=seq, h=heads, g=kv_heads, n=dim:  # type: ignore[misc]
            [drawn(d, b, s, h, n), drawn(d, b, s, g, n), drawn(d, b, s, g, n).neg(), None],
            {"causal": causal},
        )  # fmt: skip


PRODUCTS = ((8192, 8192, 8192), (4096, 7168, 16384), (4096, 24576, 1536), (4096, 2112, 7168), (128, 7168, 16384),
            (1, 7168, 16384))  # fmt: skip
"""m, n and k of products that are timed."""


def products() -> Iterator[Example]:
    """Products that are timed, beside cuBLASLt's."""
    for m, n, k in PRODUCTS:
        yield Example("linear", f"{m}x{n}x{k}", lambda d, m=m, n=n, k=k: [drawn(d, m, k), drawn(d, n, k), None])  # type: ignore[misc]


def scaled_products() -> Iterator[Example]:
    """Products of 8-bit codes that are timed, beside cuBLASLt's where torch has it."""
    for m, n, k in ((8192, 8192, 8192), (4096, 7168, 16384), (4096, 24576, 1536)):
        for kind, of_x, of_w in (("rows", (m, 1), (n, 1)), ("blocks", (m, k // 128), (n // 128, k // 128))):
            yield Example(
                "scaled_linear", f"{m}x{n}x{k} {kind}",
                lambda d, m=m, n=n, k=k, a=of_x, b=of_w:  # type: ignore[misc]
                [codes(d, m, k), codes(d, n, k), scales(d, *a), scales(d, *b), None],
                {"out_dtype": BF16},
            )  # fmt: skip


def timed() -> Iterator[Example]:
    """Calls that are timed, in each of some configs."""
    for m, n in ((32768, 4096), (16384, 7168), (8192, 16384), (1 << 20, 128)):
        yield Example("rms_norm", f"{m}x{n}", lambda d, m=m, n=n: [drawn(d, m, n), drawn(d, n)])  # type: ignore[misc]
    for m, n in ((16384, 4096), (8192, 8192)):
        yield Example("add_rms_norm", f"{m}x{n}", lambda d, m=m, n=n: [drawn(d, m, n), drawn(d, m, n), drawn(d, n)])  # type: ignore[misc]
        yield Example("layer_norm", f"{m}x{n}", lambda d, m=m, n=n: [drawn(d, m, n), drawn(d, n), drawn(d, n)])  # type: ignore[misc]
    for m, n in ((8192, 14336), (16384, 2048)):
        yield Example("silu_and_mul", f"{m}x{n}", lambda d, m=m, n=n: [drawn(d, m, 2 * n)])  # type: ignore[misc]
    yield Example("add_rms_norm", "8192x7168", lambda d: [drawn(d, 8192, 7168), drawn(d, 8192, 7168), drawn(d, 7168)])
    yield Example("apply_rope", "32768x32/8x128", lambda d: [drawn(d, 1, 32768, 32, 128), drawn(d, 1, 32768, 8, 128),
                  drawn(d, 32768, 64, dtype=FP32), drawn(d, 32768, 64, dtype=FP32), None])  # fmt: skip
    for block in ((1, 128), (1, -1)):
        options = {"dtype": torch.float8_e4m3fn, "block": block}
        yield Example("quantize", f"16384x8192 {block}", lambda d: [drawn(d, 16384, 8192)], options)
        yield Example(
            "rms_norm_quantize", f"32768x4096 {block}", lambda d: [drawn(d, 32768, 4096), drawn(d, 4096)], options
        )
        yield Example("silu_and_mul_quantize", f"8192x14336 {block}" if block[1] > 0 else f"16384x8192 {block}",
                      lambda d, b=block[1]: [drawn(d, 8192, 28672) if b > 0 else drawn(d, 16384, 16384)], options)  # type: ignore[misc]  # fmt: skip
    for m, n in ((16384, 4096), (8192, 8192)):
        for op in ("rms_norm_backward", "layer_norm_backward"):
            yield Example(op, f"{m}x{n}", lambda d, m=m, n=n: [drawn(d, m, n), drawn(d, m, n), drawn(d, n)])  # type: ignore[misc]
    yield Example("silu_and_mul_backward", "8192x8192", lambda d: [drawn(d, 8192, 8192), drawn(d, 8192, 16384)])
    yield Example("gelu_and_mul", "8192x11008", lambda d: [drawn(d, 8192, 22016)], {"approximate": "tanh"})
