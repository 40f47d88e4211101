"""Dense attention on the emulator, through the native launcher, against the reference."""

from collections.abc import Iterator

import pytest
import torch

import opmux
from opmux_asm.attention import dense_targets
from opmux_emulator.jit_launches import on

TOLERANCE = {torch.bfloat16: 2**-6, torch.float16: 2**-9}


@pytest.fixture(params=["gfx942", "gfx950"], autouse=True)
def played(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each arch in turn."""
    with on(request.param):
        yield


def inputs(
    batch: int, seq_q: int, seq_k: int, heads: int, kv_heads: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, ...]:
    """q, k and v."""
    q = torch.randn(batch, seq_q, heads, 128)
    k, v = (torch.randn(batch, seq_k, kv_heads, 128) for _ in range(2))
    return q.to(dtype), k.to(dtype), v.to(dtype)


def compare(*given: torch.Tensor, **options: object) -> None:
    """Results and logarithms, against those of the reference."""
    out, lse = opmux.attention_lse(*given, **options, backend="asm")
    expected, logs = opmux.attention_lse(*(t.double() for t in given), **options, backend="reference")
    tolerance = TOLERANCE[given[0].dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.double(), logs, rtol=1e-5, atol=1e-3)
    alone = opmux.attention(*given, **options, backend="asm")
    assert torch.equal(alone, out)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("sizes", "causal"),
    [((2, 130, 300, 4, 2), True), ((1, 33, 65, 3, 1), False), ((1, 100, 40, 2, 2), True), ((1, 129, 256, 1, 1), False)],
    ids=str,
)
def test_tiles_that_are_full_and_others(sizes: tuple[int, ...], causal: bool, dtype: torch.dtype) -> None:
    """Queries before the first key attend to nothing: 100 queries of 40 keys have 60 of them."""
    compare(*inputs(*sizes, dtype=dtype), causal=causal)


def test_strides() -> None:
    q, k, v = (torch.randn(2, 3, 40, 256).bfloat16().mT.mT.transpose(1, 2)[..., 64:192] for _ in range(3))
    compare(q, k, v)


@pytest.mark.parametrize("scale", [-0.2, 0.0, 2.0])
def test_scales_of_any_sign(scale: float) -> None:
    compare(*inputs(1, 40, 90, 2, 1), scale=scale, causal=True)


def test_references_move_when_scores_grow() -> None:
    """Scores grow from tile to tile by more than a reference lags behind."""
    q, k, v = inputs(1, 20, 400, 1, 1)
    k *= torch.linspace(0.1, 8, 400)[None, :, None, None]
    compare(q, k, v)


def test_infinite_and_missing_numbers() -> None:
    q, k, v = inputs(1, 10, 80, 1, 1)
    q[0, 3], k[0, 70, 0, 0], v[0, 5, 0, 7] = torch.nan, torch.inf, torch.inf
    out, lse = opmux.attention_lse(q, k, v, backend="asm")
    expected, logs = opmux.attention_lse(q, k, v, backend="reference")
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(lse.isnan(), logs.isnan())


def test_without_keys() -> None:
    q, k, v = inputs(1, 3, 0, 2, 1)
    out, lse = opmux.attention_lse(q, k, v, backend="asm")
    assert (out.abs().max(), lse.max()) == (0, -torch.inf)


def test_tokens_too_far_apart_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_targets, "LONGEST_STRIDE", 256)
    compare(*inputs(1, 5, 70, 2, 1))
