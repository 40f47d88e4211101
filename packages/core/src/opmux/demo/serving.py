"""Serving several prompts at once through a paged cache, greedily."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import opmux
from opmux.demo.model import Llama
from opmux.demo.scheduling import PageAllocator, Request, Scheduler, StepRecord, Work


@dataclass(frozen=True)
class ServingSettings:
    """The size of the cache and of a step; small enough here that prompts are cut and requests wait."""

    pages: int = 20
    page_size: int = 16
    chunk: int = 24
    tokens_per_step: int = 40


@dataclass(frozen=True)
class Batch:
    """The tokens of one step, ragged, on the device of the model; q rows are in the order of the work."""

    ids: Tensor
    """int64[tokens]."""
    positions: Tensor
    """int64[tokens], the place of each token in its request."""
    slot_mapping: Tensor
    """int64[tokens], page * page_size + offset."""
    cu_seqlens_q: Tensor
    """int32[batch + 1]."""
    seq_lens: Tensor
    """int32[batch], cached tokens with those of this step."""
    block_table: Tensor
    """int32[batch, max_pages], 0 where a request has fewer pages."""
    max_seqlen_q: int
    max_seqlen_k: int

    @classmethod
    def of(cls, work: list[Work], page_size: int, device: torch.device) -> "Batch":
        """Lay out the work of a step."""
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        cu_seqlens, seq_lens = [0], []
        for item in work:
            places = range(item.start, item.start + len(item.tokens))
            ids += item.tokens
            positions += places
            slots += [item.request.pages[p // page_size] * page_size + p % page_size for p in places]
            cu_seqlens.append(len(ids))
            seq_lens.append(places.stop)
        width = max(len(item.request.pages) for item in work)
        table = [item.request.pages + [0] * (width - len(item.request.pages)) for item in work]
        return cls(
            ids=torch.tensor(ids, device=device),
            positions=torch.tensor(positions, device=device),
            slot_mapping=torch.tensor(slots, device=device),
            cu_seqlens_q=torch.tensor(cu_seqlens, dtype=torch.int32, device=device),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=device),
            block_table=torch.tensor(table, dtype=torch.int32, device=device),
            max_seqlen_q=max(len(item.tokens) for item in work),
            max_seqlen_k=max(seq_lens),
        )


class Engine:
    """A model, its paged cache, and the steps that a scheduler plans."""

    def __init__(self, model: Llama, settings: ServingSettings) -> None:
        """Allocate the cache on the model's device."""
        self.model = model
        self.settings = settings
        self.device = model.embedding.device
        c = model.config
        # NaN, so that a read of what was never written shows. The caches are slices of this one tensor.
        shape = (settings.pages, c.layers, 2, settings.page_size, c.kv_heads, c.head_dim)
        self.cache = torch.full(shape, float("nan"), dtype=model.embedding.dtype, device=self.device)

    @torch.no_grad()
    def compute(self, work: list[Work]) -> Tensor:
        """Compute one step and write its keys and values to the cache.

        Returns:
            The logits of the last token of each piece of work, float32[batch, vocabulary].
        """
        batch = Batch.of(work, self.settings.page_size, self.device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k_cache, v_cache = self.cache[:, layer, 0], self.cache[:, layer, 1]
            opmux.write_kv_cache(k, v, k_cache, v_cache, batch.slot_mapping)
            return opmux.paged_attention(
                q,
                k_cache,
                v_cache,
                batch.cu_seqlens_q,
                batch.seq_lens,
                batch.block_table,
                max_seqlen_q=batch.max_seqlen_q,
                max_seqlen_k=batch.max_seqlen_k,
            )

        y = self.model.body(batch.ids, batch.positions, attend)
        return self.model.logits(y.index_select(0, batch.cu_seqlens_q[1:] - 1))


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
    """Compute all requests to their ends.

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
