"""The calls that `on_gpu.py` checks and times."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
    yield Example("rms_norm", "no rows", lambda d: [drawn(d, 0, 4096), drawn(d, 4096)])


def _norms_of(text: str, x: Callable[[str], Tensor], n: int, dtype: torch.dtype) -> Iterator[Example]:
    def w(d: str) -> Tensor:
        return drawn(d, n, dtype=dtype)

    yield Example("rms_norm", text, lambda d: [x(d), w(d)])
    yield Example("add_rms_norm", text, lambda d: [x(d), x(d).flip(0), w(d)])
    yield Example("layer_norm", text, lambda d: [x(d), w(d), w(d).neg()])
    yield Example("layer_norm", f"{text} no bias", lambda d: [x(d), w(d), None])


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


PRODUCTS = ((8192, 8192, 8192), (4096, 7168, 16384), (4096, 24576, 1536), (4096, 2112, 7168), (128, 7168, 16384),
            (1, 7168, 16384))  # fmt: skip
"""m, n and k of products that are timed."""


def products() -> Iterator[Example]:
    """Products that are timed, beside cuBLASLt's."""
    for m, n, k in PRODUCTS:
        yield Example("linear", f"{m}x{n}x{k}", lambda d, m=m, n=n, k=k: [drawn(d, m, k), drawn(d, n, k), None])  # type: ignore[misc]


def timed() -> Iterator[Example]:
    """Calls that are timed, in each of some configs."""
    for m, n in ((32768, 4096), (16384, 7168), (8192, 16384), (1 << 20, 128)):
        yield Example("rms_norm", f"{m}x{n}", lambda d, m=m, n=n: [drawn(d, m, n), drawn(d, n)])  # type: ignore[misc]
    for m, n in ((16384, 4096), (8192, 8192)):
        yield Example("add_rms_norm", f"{m}x{n}", lambda d, m=m, n=n: [drawn(d, m, n), drawn(d, m, n), drawn(d, n)])  # type: ignore[misc]
        yield Example("layer_norm", f"{m}x{n}", lambda d, m=m, n=n: [drawn(d, m, n), drawn(d, n), drawn(d, n)])  # type: ignore[misc]
    for m, n in ((8192, 14336), (16384, 2048)):
        yield Example("silu_and_mul", f"{m}x{n}", lambda d, m=m, n=n: [drawn(d, m, 2 * n)])  # type: ignore[misc]
    yield Example("gelu_and_mul", "8192x11008", lambda d: [drawn(d, 8192, 22016)], {"approximate": "tanh"})
