"""Pages and steps, without a model."""

import pytest

from opmux.demo.scheduling import PageAllocator, Request, Scheduler
from opmux.errors import InvalidArgument


def test_pages_have_one_owner_and_come_back() -> None:
    allocator = PageAllocator(5)
    first, second = allocator.allocate(2), allocator.allocate(3)
    assert first is not None
    assert second is not None
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert allocator.free == 0
    allocator.release(second)
    assert allocator.free == 3
    again = allocator.allocate(3)
    assert again is not None
    assert sorted(again) == sorted(second)


def test_too_few_pages_gives_none_and_takes_none() -> None:
    allocator = PageAllocator(2)
    assert allocator.allocate(3) is None
    assert allocator.free == 2


@pytest.mark.parametrize("pages", [[1], [0, 0], [7]])
def test_pages_that_are_not_taken_cannot_be_given_back(pages: list[int]) -> None:
    allocator = PageAllocator(3)
    assert allocator.allocate(1) == [0]
    with pytest.raises(
        InvalidArgument, match=r"`pages` expected pages that are taken, each once, got \[.*\]; free are \[1, 2\]"
    ):
        allocator.release(pages)
    assert allocator.free == 2


def scheduler(pages: int = 8, chunk: int = 4, tokens_per_step: int = 6) -> Scheduler:
    return Scheduler(PageAllocator(pages), 4, chunk, tokens_per_step)


def finish(plan: Scheduler) -> list[list[tuple[int, int, int]]]:
    """Runs to the end; for each step (request, start, tokens) of each piece of work."""
    steps = []
    while not plan.idle:
        work = plan.plan()
        steps.append([(item.request.number, item.start, len(item.tokens)) for item in work])
        owned = [page for item in work for page in item.request.pages]
        assert len(owned) == len(set(owned)), "two requests own one page"
        plan.complete(work, {item.request.number: 9 for item in work if item.samples})
        assert len(steps) < 200, "no end"
    return steps


def test_prompt_is_computed_in_chunks_and_then_one_token_a_step() -> None:
    plan = scheduler()
    request = Request(0, [1] * 9, 3)
    plan.submit(request)
    # The last generated token is not computed on: 9 + 3 - 1 tokens in all.
    assert finish(plan) == [[(0, 0, 4)], [(0, 4, 4)], [(0, 8, 1)], [(0, 9, 1)], [(0, 10, 1)]]
    assert request.generated == [9, 9, 9]
    assert (request.joined, request.left) == (0, 4)


def test_chunks_share_a_step_with_generating_requests() -> None:
    plan = scheduler()
    for request in (
        Request(0, [1] * 2, 4),
        Request(1, [1] * 7, 2, arrival=1),
        Request(2, [1] * 3, 1, arrival=1),
    ):
        plan.submit(request)
    assert finish(plan) == [
        [(0, 0, 2)],
        [(0, 2, 1), (1, 0, 4), (2, 0, 1)],
        [(0, 3, 1), (1, 4, 3), (2, 1, 2)],
        [(0, 4, 1), (1, 7, 1)],
    ]
    joined = [record.joined for record in plan.records]
    left = [record.left for record in plan.records]
    assert joined == [(0,), (1, 2), (), ()]
    assert left == [(), (), (2,), (0, 1)]
    assert [(record.prefill_tokens, record.decode_tokens) for record in plan.records] == [
        (2, 0),
        (5, 1),
        (5, 1),
        (0, 2),
    ]


def test_step_without_requests_passes() -> None:
    plan = scheduler()
    plan.submit(Request(0, [1], 1, arrival=2))
    assert finish(plan) == [[], [], [(0, 0, 1)]]


def test_exhausted_pages_make_requests_wait_in_order() -> None:
    plan = scheduler(pages=3)
    # Two pages, two pages, one page: the third would fit at once, but does not overtake the second.
    requests = [Request(0, [1] * 4, 2), Request(1, [1] * 4, 2), Request(2, [1] * 2, 2)]
    for request in requests:
        plan.submit(request)
    finish(plan)
    assert [request.joined for request in requests] == [0, 2, 2]
    assert [record.waiting for record in plan.records] == [2, 2, 0, 0]
    assert all(record.pages <= 3 for record in plan.records)
    assert plan.allocator.free == 3


def test_more_generating_requests_than_tokens_in_a_step() -> None:
    plan = scheduler(tokens_per_step=1)
    requests = [Request(number, [1, 1], 3) for number in range(3)]
    for request in requests:
        plan.submit(request)
    finish(plan)
    assert all(len(request.generated) == 3 for request in requests)
    assert plan.allocator.free == 8


def test_request_longer_than_the_cache() -> None:
    with pytest.raises(InvalidArgument) as caught:
        scheduler(pages=2).submit(Request(5, [1] * 8, 2))
    assert str(caught.value) == (
        "demo: `request 5` expected tokens that fit the 2 pages of the cache, got tokens for 3; "
        "give the cache more pages, or ask for fewer tokens"
    )


@pytest.mark.parametrize("request_", [Request(1, [], 2), Request(1, [4], 0)])
def test_empty_request(request_: Request) -> None:
    with pytest.raises(
        InvalidArgument, match="demo: `request 1` expected at least one prompt token and one new token, got "
    ):
        scheduler().submit(request_)
