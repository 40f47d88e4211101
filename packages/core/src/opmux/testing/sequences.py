"""Sequence lengths: ragged and paged batches, including the lengths that break kernels."""

import torch

LONG = "long"
"""The kind of a batch with one sequence that fills the block table."""


def draw_lengths(generator: torch.Generator, batch: int, tokens: int) -> list[int]:
    """Lengths of ``batch`` sequences over ``tokens`` tokens: some are left over, and one sequence may be empty."""
    if batch == 0:
        return []
    lengths, left = [], tokens - tokens // 16
    for place in range(batch):
        share = left // (batch - place)
        if place == batch - 1:
            length = left
        elif batch > 2 and place == 1:
            length = 0
        else:
            length = _between(generator, min(1, share), max(share + share // 2, min(1, share)))
        lengths.append(min(length, left))
        left -= lengths[-1]
    return lengths


def draw_paged(
    generator: torch.Generator,
    *,
    batch: int,
    tokens: int,
    pages: int,
    page_size: int,
    max_pages: int,
    kind: str,
    longest: int | None = None,
) -> dict[str, list[int]]:
    """Draw a batch over a paged cache.

    Args:
        generator: the source of randomness.
        batch: how many sequences.
        tokens: how many new tokens there is room for.
        pages: how many pages the cache has; no page is used twice.
        page_size: tokens per page.
        max_pages: columns of the block table.
        kind: ``decode`` (one new token each), ``prefill`` (all tokens are new), ``equal`` (equal lengths), ``ends``
            (no token and as many as fit, alternately), ``long`` (one new token each, and the first sequence as long as
            fits, with all the new tokens that the others leave); anything else is a mixture.
        longest: if given, all sequences have this many tokens, or as many as there are pages for, and ``kind`` is not
            read.

    Returns:
        ``new``: new tokens of each sequence; ``lengths``: all of its tokens; ``pages``: how many pages it needs.
    """
    if longest is not None:
        length = min(longest, max_pages * page_size, pages // batch * page_size)
        alike = {"new": min(tokens // batch, length), "lengths": length, "pages": -(-length // page_size)}
        return {name: [value] * batch for name, value in alike.items()}
    new, lengths, needed = [], [], []
    free = pages
    for place in range(batch):
        most = min(max_pages, free - (batch - place - 1) if free > batch - place - 1 else free)
        capacity = most * page_size
        # Avoid a whole number of pages if possible, so that the rest of the last page is poisoned.
        length = _between(generator, min(1, capacity), capacity)
        share = tokens // batch
        if kind == "equal":
            length = min(capacity, min(max_pages, pages // batch) * page_size // 2)
        elif kind == "ends":
            length = capacity if place % 2 else 0
        elif kind == LONG and place == 0:
            length = max(0, capacity - 1)
        elif kind == LONG and place == 1 and batch > 2:
            length = 0
        if kind == LONG:
            fresh = min(length, 1 if place else max(0, tokens - batch + 1))
        elif kind == "decode":
            fresh = min(1, length, share)
        elif kind == "prefill":
            length = min(length, share)
            fresh = length
        else:
            fresh = min(length, (1, share, max(1, share // 2), 0)[place % 4], share)
        if kind not in ("prefill", "equal", "ends", LONG) and batch > 3 and place == 3:
            length = fresh  # a sequence with only new tokens, or without any
        new.append(fresh)
        lengths.append(length)
        needed.append(-(-length // page_size))
        free -= needed[-1]
    return {"new": new, "lengths": lengths, "pages": needed}


def running(lengths: list[int]) -> list[int]:
    """Where each sequence starts, and where the last one ends."""
    total = [0]
    for length in lengths:
        total.append(total[-1] + length)
    return total


def _between(generator: torch.Generator, low: int, high: int) -> int:
    """A number from low to high, inclusive."""
    if high <= low:
        return low
    return int(torch.randint(low, high + 1, (), generator=generator, device=generator.device))
