"""On an H100 or H200: attention's Gluon kernel at every kind of head size, with and without masks."""

import pytest
import torch

import opmux

pytestmark = pytest.mark.gpu

SIZES = [(n, n) for n in (64, 72, 80, 88, 96, 104, 128, 136, 144, 160, 184, 192, 200, 256)] + [(192, 128)]
BANDS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": (70, 9)},
    "causal window": {"causal": True, "window": (130, -1)},
}


def tensors(head_dim: int, value_dim: int, queries: int = 333, keys: int = 461) -> list[torch.Tensor]:
    made = torch.Generator("cuda").manual_seed(head_dim + value_dim)

    def draw(seq: int, heads: int, dim: int) -> torch.Tensor:
        return torch.randn(2, seq, heads, dim, device="cuda", generator=made).to(torch.bfloat16)

    return [draw(queries, 6, head_dim), draw(keys, 2, head_dim), draw(keys, 2, value_dim)]


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize(("head_dim", "value_dim"), SIZES)
def test_every_head_size_agrees_with_the_reference(head_dim: int, value_dim: int, band: str) -> None:
    given = tensors(head_dim, value_dim)
    sinks = torch.linspace(-2, 2, 6, device="cuda")
    # Peaked weights, so that a wrong key or column shows.
    options = {**BANDS[band], "scale": 4 / head_dim**0.5}
    out, lse = opmux.attention_lse(*given, sinks, **options, backend="triton:hopper")
    exact, exact_lse = opmux.attention_lse(*(t.double() for t in given), sinks.double(), **options, backend="reference")
    torch.testing.assert_close(out.double(), exact, rtol=0.02, atol=0.02)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("head_dim", "value_dim"), [(64, 64), (80, 80), (192, 192), (192, 128), (256, 256)])
def test_a_masked_value_that_is_not_finite_stays_out(head_dim: int, value_dim: int) -> None:
    q, k, v = tensors(head_dim, value_dim, 300, 300)
    clean = opmux.attention(q, k, v, causal=True, backend="triton:hopper")
    v[:, 170:, :, value_dim - 3 :] = float("nan")
    found = opmux.attention(q, k, v, causal=True, backend="triton:hopper")
    torch.testing.assert_close(found[:, :170], clean[:, :170], rtol=0.02, atol=0.02)
    torch.testing.assert_close(found[..., : value_dim - 3], clean[..., : value_dim - 3], rtol=0.02, atol=0.02)
    assert found[:, 170:, :, value_dim - 3 :].isnan().all()


@pytest.mark.parametrize("head_dim", [80, 96, 192, 256])
def test_columns_past_the_last_head_are_left_alone(head_dim: int) -> None:
    """Heads as slices of a wider tensor: what lies beside them is neither read nor written."""
    wide = [torch.full((1, 200, 4, head_dim + 16), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    given = [t[..., :head_dim] for t in wide]
    for t in given:
        t.normal_()
    out = opmux.attention(*given, backend="triton:hopper")
    assert torch.equal(out, opmux.attention(*(t.contiguous() for t in given), backend="triton:hopper"))
    assert out.isfinite().all()
