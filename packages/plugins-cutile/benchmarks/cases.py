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
        return torch.randn(*shape, device=device).to(dtype)
    return torch.randn(*shape, generator=generator).to(dtype).to(device)


def checked() -> Iterator[Example]:
    """Calls whose results are compared: the edges of rows and widths, dtypes, gaps between rows, odd addresses."""
    yield from _norms()


def _norms() -> Iterator[Example]:
    sizes = [(1, 1), (3, 7), (5, 77), (8, 128), (33, 256), (17, 1000), (129, 4096), (7, 4097), (64, 5120), (3, 16384)]
    for dtype in (BF16, FP16, FP32):
        for m, n in sizes if dtype == BF16 else sizes[2:9:2]:
            yield from _norms_of(f"{m}x{n} {dtype}", lambda d, m=m, n=n, t=dtype: drawn(d, m, n, dtype=t), n, dtype)  # type: ignore[misc]
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
    if "gapped" not in text:
        yield Example("add_rms_norm_", text, lambda d: [x(d), x(d).flip(0), w(d)])
    yield Example("layer_norm", text, lambda d: [x(d), w(d), w(d).neg()])
    yield Example("layer_norm", f"{text} no bias", lambda d: [x(d), w(d), None])


def timed() -> Iterator[Example]:
    """Calls that are timed, in each of some configs."""
    for m, n in ((32768, 4096), (16384, 7168), (8192, 16384), (1 << 20, 128)):
        yield Example("rms_norm", f"{m}x{n}", lambda d, m=m, n=n: [drawn(d, m, n), drawn(d, n)])  # type: ignore[misc]
    for m, n in ((16384, 4096), (8192, 8192)):
        yield Example("add_rms_norm", f"{m}x{n}", lambda d, m=m, n=n: [drawn(d, m, n), drawn(d, m, n), drawn(d, n)])  # type: ignore[misc]
        yield Example("layer_norm", f"{m}x{n}", lambda d, m=m, n=n: [drawn(d, m, n), drawn(d, n), drawn(d, n)])  # type: ignore[misc]
