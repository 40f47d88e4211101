"""Which keys a query attends to: a band of the (query, key) plane, known from lengths and options alone."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Band:
    """Query ``i`` attends to the keys in ``[i + offset - left, i + offset + right]``, aligned bottom-right.

    Attributes:
        queries: Number of queries.
        keys: Number of keys.
        left: Keys seen before the query's own position; None means all.
        right: Keys seen after it; None means all.
    """

    queries: int
    keys: int
    left: int | None
    right: int | None

    @classmethod
    def of(cls, queries: int, keys: int, causal: bool, window: tuple[int, int]) -> "Band":
        """The band of an op's options."""
        left, right = (None if side == -1 else side for side in window)
        return cls(queries, keys, left, 0 if causal else right)

    @property
    def offset(self) -> int:
        """The position of query 0."""
        return self.keys - self.queries

    def interval(self, start: int, stop: int) -> tuple[int, int]:
        """The keys that some query in [start, stop) attends to, as (first, one past the last)."""
        first = 0 if self.left is None else max(0, start + self.offset - self.left)
        last = self.keys if self.right is None else min(self.keys, stop + self.offset + self.right)
        return first, last

    def covers(self, query: slice, key: slice) -> bool:
        """Whether every one of these queries attends to every one of these keys."""
        _, last = self.interval(query.start, query.start + 1)
        first, _ = self.interval(query.stop - 1, query.stop)
        return bool(first <= key.start and key.stop <= last)

    @property
    def partial(self) -> bool:
        """Whether some query does not attend to some key."""
        return self.queries > 0 and not self.covers(slice(0, self.queries), slice(0, self.keys))

    def transposed(self) -> "Band":
        """The queries that attend to each key: the same band with queries and keys swapped."""
        return Band(self.keys, self.queries, self.right, self.left)

    def query_blocks(self, length: int, groups: int) -> Iterator[tuple[slice, slice]]:
        """Blocks of queries, each with the rows it covers at ``groups`` rows per query."""
        for start in range(0, self.queries, length):
            stop = min(start + length, self.queries)
            yield slice(start, stop), slice(start * groups, stop * groups)

    def key_blocks(self, query: slice, length: int) -> Iterator[slice]:
        """Blocks of the keys that a block of queries attends to."""
        first, last = self.interval(query.start, query.stop)
        for start in range(first, last, length):
            yield slice(start, min(start + length, last))

    def masked_out(self, query: slice, key: slice, groups: int, device: torch.device) -> Tensor | None:
        """The mask of a block's scores to ignore, ``(rows, keys)``; None if all of them count."""
        if self.covers(query, key):
            return None
        position = self.positions(query, groups, device).unsqueeze(1)
        keys = torch.arange(key.start, key.stop, device=device)
        masked = torch.zeros((), dtype=torch.bool, device=device)
        if self.left is not None:
            masked = masked | (keys < position - self.left)
        if self.right is not None:
            masked = masked | (keys > position + self.right)
        return masked

    def bounds(self, query_rows: int, key_rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """For each row of the queries, the rows of the keys it attends to, as (first, one past the last).

        Each query has ``query_rows`` rows and each key ``key_rows``. Where a query attends to nothing, the two bounds
        are equal.
        """
        position = self.positions(slice(0, self.queries), query_rows, device)
        first, last = torch.zeros_like(position), torch.full_like(position, self.keys)
        if self.left is not None:
            first = (position - self.left).clamp(0, self.keys)
        if self.right is not None:
            last = (position + self.right + 1).clamp(0, self.keys)
        return first * key_rows, last * key_rows

    def positions(self, query: slice, rows: int, device: torch.device) -> Tensor:
        """The position of each row of a block of queries."""
        return torch.arange(query.start, query.stop, device=device).repeat_interleave(rows) + self.offset
