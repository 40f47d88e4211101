"""Serving several prompts at once through a paged cache, greedily."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from opmux.demo.model import Llama
from opmux.demo.scheduling import PageAllocator, Request, Scheduler, StepRecord, Work
from opmux.nn import PagedCache, PagedStep


@dataclass(frozen=True)
class ServingSettings:
    """The size of the cache and of a step; small enough here that prompts are cut and requests wait."""

    pages: int = 20
    page_size: int = 16
    chunk: int = 24
    tokens_per_step: int = 40


class Engine:
    """A model, its paged cache, and the steps that a scheduler plans."""

    def __init__(self, model: Llama, settings: ServingSettings) -> None:
        """Allocate the cache on the model's device."""
        self.model = model
        self.settings = settings
        self.device = model.embedding.device
        c, like = model.config, model.embedding
        self.cache = PagedCache(
            c.layers, settings.pages, settings.page_size, c.kv_heads, c.head_dim, dtype=like.dtype, device=like.device
        )
        self.cache.data.fill_(float("nan"))  # a read of a slot that was never written then shows

    @torch.no_grad()
    def compute(self, work: list[Work]) -> Tensor:
        """Compute one step and write its keys and values to the cache.

        Returns:
            The logits of the last token of each piece of work, float32[batch, vocabulary].
        """
        step = PagedStep.of(
            [item.start for item in work],
            [len(item.tokens) for item in work],
            [item.request.pages for item in work],
            self.settings.page_size,
            self.device,
        )
        ids = torch.tensor([token for item in work for token in item.tokens], device=self.device)
        contexts = [self.cache.layer(index, step) for index in range(self.model.config.layers)]
        y = self.model.body(ids, contexts)
        return self.model.logits(y.index_select(0, step.cu_seqlens_q[1:] - 1))


@dataclass(frozen=True)
class Served:
    """Finished requests and how they were computed."""

    requests: list[Request]
    logits: dict[int, list[Tensor]]
    """Request number -> the logits behind each generated token, float32[vocabulary] on the CPU."""
    records: list[StepRecord]
    pages_left: int
    """Free pages at the end: all of them."""
    seconds: float


def serve(
    model: Llama,
    requests: list[Request],
    settings: ServingSettings,
    on_step: Callable[[int, int], None] = lambda _done, _total: None,
) -> Served:
    """Run all requests to completion.

    Args:
        model: The model.
        requests: What to compute; each is changed to its finished state.
        settings: The cache and the steps.
        on_step: Called after each step with the number of generated tokens, and how many there will be.

    Returns:
        The requests, the logits behind each token, and the record of each step.

    Raises:
        InvalidArgument: A request is empty or does not fit the cache.
    """
    allocator = PageAllocator(settings.pages)
    scheduler = Scheduler(allocator, settings.page_size, settings.chunk, settings.tokens_per_step)
    for request in requests:
        scheduler.submit(request)
    engine = Engine(model, settings)
    logits: dict[int, list[Tensor]] = {request.number: [] for request in requests}
    total = sum(request.new_tokens for request in requests)
    done = 0
    started = time.perf_counter()
    while not scheduler.idle:
        work = scheduler.plan()
        sampled: dict[int, int] = {}
        if work:
            rows = engine.compute(work).cpu()
            for item, row in zip(work, rows, strict=True):
                if item.samples:
                    logits[item.request.number].append(row)
                    sampled[item.request.number] = int(row.argmax())
        scheduler.complete(work, sampled)
        done += len(sampled)
        on_step(done, total)
    return Served(requests, logits, scheduler.records, allocator.free, time.perf_counter() - started)
