"""Reading and checking the index data of ragged and paged batches: offsets, lengths and block tables."""

from itertools import pairwise

import torch
from torch import Tensor

from opmux.errors import InvalidArgument


def count_pairs(queries: Tensor, keys: Tensor, longest_q: int, longest_k: int) -> int:
    """The number of (query, key) pairs within the same sequence.

    Args:
        queries: ``(batch,)``: the number of queries of each sequence.
        keys: ``(batch,)``: the number of its keys.
        longest_q: An upper bound on ``queries``, used where the data cannot be read (fake tensors).
        longest_k: An upper bound on ``keys``.
    """
    if type(queries) is not Tensor or queries.is_meta:
        return queries.shape[0] * longest_q * longest_k
    return int((queries.long() * keys.long()).sum())


def read_offsets(op: str, name: str, offsets: Tensor, *, tokens: int, longest: int) -> list[int]:
    """Read the offsets of ragged sequences as a list, and validate them.

    Args:
        op: The op that reads them, for the message.
        name: ``"q"`` or ``"k"``: whose sequences these are.
        offsets: ``cu_seqlens_{name}``, ``(batch + 1,)``: where each sequence starts, and where the last one
            ends.
        tokens: How many tokens there are.
        longest: ``max_seqlen_{name}``.

    Raises:
        InvalidArgument: If the offsets do not start at 0, decrease or end past the tokens, or if a sequence is
            longer than allowed.
    """
    values: list[int] = offsets.tolist()
    if values[0] != 0:
        raise InvalidArgument(
            f"{op}: `cu_seqlens_{name}` starts with {values[0]}, expected 0; "
            "it is the running sum of the sequence lengths, with a 0 in front"
        )
    for sequence, (start, stop) in enumerate(pairwise(values)):
        if stop < start:
            raise InvalidArgument(
                f"{op}: `cu_seqlens_{name}` holds {stop} at {sequence + 1}, expected {start} or more, as at "
                f"{sequence}; it is the running sum of the sequence lengths"
            )
        if stop - start > longest:
            raise InvalidArgument(
                f"{op}: `max_seqlen_{name}` is {longest}, expected {stop - start} or more, the length of "
                f"sequence {sequence} in `cu_seqlens_{name}`; give an upper bound of all lengths"
            )
    if values[-1] > tokens:
        raise InvalidArgument(
            f"{op}: `cu_seqlens_{name}` ends with {values[-1]}, expected {tokens} or less, the number of "
            "tokens; check the lengths it sums"
        )
    return values


def read_lengths(op: str, seq_lens: Tensor, offsets: list[int], *, capacity: int, longest: int) -> list[int]:
    """Read the lengths of cached sequences as a list, and validate them.

    Args:
        op: The op that reads them, for the message.
        seq_lens: ``(batch,)``: the length of each sequence, including its new tokens.
        offsets: Where the new tokens of each sequence start, from `read_offsets`.
        capacity: How many tokens a row of the block table can hold.
        longest: ``max_seqlen_k``.

    Raises:
        InvalidArgument: If a length is below the number of new tokens, or above the capacity or the longest
            allowed.
    """
    values: list[int] = seq_lens.tolist()
    for sequence, (length, (start, stop)) in enumerate(zip(values, pairwise(offsets), strict=True)):
        if length < stop - start:
            raise InvalidArgument(
                f"{op}: `seq_lens` holds {length} at {sequence}, expected {stop - start} or more, the number "
                "of its new tokens in `cu_seqlens_q`; seq_lens includes the new tokens"
            )
        if length > capacity:
            raise InvalidArgument(
                f"{op}: `seq_lens` holds {length} at {sequence}, expected at most max_pages * page_size = "
                f"{capacity}; give `block_table` more columns"
            )
        if length > longest:
            raise InvalidArgument(
                f"{op}: `max_seqlen_k` is {longest}, expected {length} or more, the length of sequence "
                f"{sequence} in `seq_lens`; give an upper bound of all lengths"
            )
    return values


def check_block_table(op: str, block_table: Tensor, lengths: list[int], pages: int, page_size: int) -> None:
    """Refuse a block table that names a page outside the cache where its sequence needs one.

    Args:
        op: The op that reads it, for the message.
        block_table: ``(batch, max_pages)``: the pages of each sequence, in order; the entries past it may
            hold anything.
        lengths: The length of each sequence in tokens.
        pages: How many pages the cache has.
        page_size: How many tokens a page holds.

    Raises:
        InvalidArgument: If an entry within a sequence is negative, or is not a page of the cache.
    """
    table = block_table.cpu()
    needed = torch.tensor([-(-length // page_size) for length in lengths], dtype=torch.int64)
    used = torch.arange(table.shape[1]) < needed.unsqueeze(1)
    outside = torch.nonzero(used & ((table < 0) | (table >= pages))).tolist()
    if outside:
        sequence, column = outside[0]
        raise InvalidArgument(
            f"{op}: `block_table` holds {int(table[sequence, column])} at ({sequence}, {column}), expected a "
            f"page from 0 to pages - 1 = {pages - 1}; check the allocator that gave the pages"
        )
