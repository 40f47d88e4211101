"""Calls of gradients of products and attention, of groups of codes and of square blocks, that are checked and timed."""

from collections.abc import Iterator

from cases import BF16, FP16, Example, drawn


def checked() -> Iterator[Example]:
    """Calls whose results are compared."""
    yield from _products()


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
