"""Serving through the paged cache gives the tokens of the full forward pass, and a difference is seen."""

import pytest
import torch

import opmux
from opmux.demo.checks import compare_with_full_pass
from opmux.demo.model import Llama
from opmux.demo.scheduling import Request
from opmux.demo.serving import Served, ServingSettings, serve


def requests() -> list[Request]:
    """Five prompts of different lengths, some arriving later, some longer than a page."""
    generator = torch.Generator().manual_seed(1)
    lengths = [(5, 12), (23, 9), (1, 30), (17, 1), (40, 7)]
    return [
        Request(number, torch.randint(13, (prompt,), generator=generator).tolist(), new, arrival=2 * number)
        for number, (prompt, new) in enumerate(lengths)
    ]


def greedy(model: Llama, request: Request) -> list[int]:
    """Every token from the full forward pass over all before it."""
    tokens = list(request.prompt)
    with torch.no_grad():
        for _ in range(request.new_tokens):
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(request.prompt) :]


@pytest.mark.parametrize(
    "settings",
    [
        ServingSettings(pages=40, chunk=64, tokens_per_step=200),
        ServingSettings(pages=5, chunk=7, tokens_per_step=10),
        ServingSettings(pages=64, page_size=1, chunk=3, tokens_per_step=4),
    ],
    ids=["all at once", "few pages, small chunks", "pages of one"],
)
def test_tokens_are_those_of_the_full_forward_pass(model: Llama, settings: ServingSettings) -> None:
    served = serve(model, requests(), settings)
    assert [request.generated for request in served.requests] == [greedy(model, request) for request in requests()]
    assert served.pages_left == settings.pages
    check = compare_with_full_pass(model, served)
    assert (check.tokens, check.equal, check.ties, check.different) == (59, 59, 0, ())
    assert check.max_logit_difference < 1e-4


def test_requests_share_steps_join_and_leave(model: Llama) -> None:
    served = serve(model, requests(), ServingSettings(pages=8, chunk=7, tokens_per_step=10))
    assert any(record.prefill_tokens and record.decode_tokens for record in served.records)
    assert len({request.joined for request in served.requests}) > 1
    assert len({request.left for request in served.requests}) > 1
    assert any(record.waiting for record in served.records)


def test_progress(model: Llama) -> None:
    seen: list[tuple[int, int]] = []
    serve(model, requests(), ServingSettings(), lambda done, total: seen.append((done, total)))
    assert seen[-1] == (59, 59)
    assert seen == sorted(seen)


def served_with(model: Llama, token: int, index: int) -> Served:
    """A served request in which one token is replaced by another."""
    served = serve(model, [Request(0, [1, 2, 3], 6)], ServingSettings())
    served.requests[0].generated[index] = token
    return served


def test_wrong_token_is_a_difference(model: Llama) -> None:
    right = serve(model, [Request(0, [1, 2, 3], 6)], ServingSettings()).requests[0].generated[5]
    check = compare_with_full_pass(model, served_with(model, (right + 1) % 13, 5))
    assert (check.equal, check.ties, len(check.different)) == (5, 0, 1)
    assert check.different[0].startswith(
        f"request 0, token 5: paged serving gives id {(right + 1) % 13}, the full pass"
    )


def test_equally_likely_token_is_a_tie(model: Llama) -> None:
    right = serve(model, [Request(0, [1, 2, 3], 6)], ServingSettings()).requests[0].generated[5]
    twin = (right + 1) % 13
    # The same row in the head gives the same logit, and argmax takes the smaller id.
    with torch.no_grad():
        model.head.weight[twin] = model.head.weight[right]
    check = compare_with_full_pass(model, served_with(model, max(right, twin), 5))
    assert check.different == ()
    assert check.ties >= 1


def test_stale_cache_is_seen(model: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opmux, "write_kv_cache", lambda *_, **__: None)
    served = serve(model, requests(), ServingSettings())
    assert compare_with_full_pass(model, served).different
