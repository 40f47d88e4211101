"""Calls on fp8 and int8 caches, checked against the reference: the interpreter and the GPU run the same ones."""

from typing import Any

import torch
from torch import Tensor

import opmux

BATCHES = {  # (new tokens, tokens in all) of each sequence
    "decode": [(1, 70), (1, 33), (1, 1), (1, 16)],
    "long decode": [(1, 1500), (1, 700), (1, 90)],
    "far decode": [(1, 40000), (1, 33000), (1, 5)],
    "prefill": [(40, 70), (3, 33), (17, 17)],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": (20, 0)},
    "cap": {"softcap": 2.0, "scale": 0.3},
    "negative": {"scale": -0.2},
}
TOLERANCES = {torch.float32: (1e-4, 1e-4), torch.float16: (3e-3, 3e-3), torch.bfloat16: (2e-2, 1e-2)}


def coded_call(
    codes: torch.dtype, dtype: torch.dtype, batch: str, device: str, *, heads: tuple[int, int] = (6, 2), dim: int = 32,
    value_dim: int | None = None, page_size: int = 16, scales: str = "heads", sinks: bool = False,
) -> tuple[tuple[Tensor | None, ...], dict[str, Any]]:  # fmt: skip
    """The tensors and the bounds of a call; ``scales`` is ``heads``, ``one`` or ``none``."""
    generator = torch.Generator(device).manual_seed(1)

    def drawn(*shape: int, spread: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator, device=device) * spread

    news, lengths = zip(*BATCHES[batch], strict=True)
    each = -(-max(lengths) // page_size)
    pages = len(lengths) * each
    spread = 1.0 if scales == "none" else 20.0
    caches = [
        drawn(pages, page_size, heads[1], width, spread=spread).clamp(-100, 100).to(codes)
        for width in (dim, dim if value_dim is None else value_dim)
    ]
    count = heads[1] if scales == "heads" else 1
    of_heads = [None if scales == "none" else drawn(count).abs().add(0.5) / spread for _ in range(3)]
    q = drawn(sum(news), heads[0], dim).to(dtype)
    table = torch.randperm(pages, generator=generator, device=device).to(torch.int32).reshape(len(lengths), each)
    ends = torch.tensor([0, *news], device=device).cumsum(0).to(torch.int32)
    rows = (ends, torch.tensor(lengths, dtype=torch.int32, device=device), table)
    q_scale = of_heads[2] if dtype.itemsize == 1 else None
    tensors = (q, *caches, *rows, drawn(heads[0]) if sinks else None, q_scale, *of_heads[:2])
    return tensors, {"max_seqlen_q": max(news), "max_seqlen_k": max(lengths)}


def check(given: tuple[tuple[Tensor | None, ...], dict[str, Any]], **options: Any) -> None:
    """Compare `paged_attention_lse` with its reference on queries in float32."""
    tensors, bounds = given
    out, lse = opmux.paged_attention_lse(*tensors, **bounds, **options, backend="triton")
    q = tensors[0]
    assert q is not None
    wide = q if q.dtype.itemsize == 1 else q.float()
    exact, exact_lse = opmux.paged_attention_lse(wide, *tensors[1:], **bounds, **options, backend="reference")
    rtol, atol = TOLERANCES[out.dtype]
    torch.testing.assert_close(out.float(), exact.float(), rtol=rtol, atol=atol)
    torch.testing.assert_close(lse, exact_lse, rtol=1e-3, atol=1e-3)


def check_written(codes: torch.dtype, dtype: torch.dtype, device: str, heads: int, dim: int, scales: str) -> None:
    """Compare `write_kv_cache` with its reference: the values of the codes are equal; a NaN has two in some formats."""
    generator = torch.Generator(device).manual_seed(2)
    k, v = (torch.randn(37, heads, dim, generator=generator, device=device).mul(3).to(dtype) for _ in range(2))
    k[0, 0, :3] = torch.tensor([float("inf"), -float("inf"), float("nan")])
    v[5, heads - 1, 0] = 1e30
    count = heads if scales == "heads" else 1
    given = [
        None if scales == "none" else torch.rand(count, generator=generator, device=device).add(0.1) / 50
        for _ in range(2)
    ]
    slots = torch.randperm(64, generator=generator, device=device)[:37]
    slots[3] = -1
    results = []
    for backend in ("triton", "reference"):
        caches = [torch.zeros(4, 16, heads, dim, dtype=torch.uint8, device=device).view(codes) for _ in range(2)]
        opmux.write_kv_cache(k, v, *caches, slots, *given, backend=backend)
        results.append(torch.stack([cache.float() for cache in caches]))
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)
