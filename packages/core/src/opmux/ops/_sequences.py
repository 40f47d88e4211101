"""Reading and checking the index data of ragged and paged batches: offsets, lengths and block tables."""

from itertools import pairwise

import torch
from torch import Tensor

from opmux.errors import invalid


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
        remedy = "it is the running sum of the sequence lengths, with a 0 in front"
        raise invalid(op, f"cu_seqlens_{name}", "0 at index 0", str(values[0]), remedy)
    for sequence, (start, stop) in enumerate(pairwise(values)):
        if stop < start:
            expected = f"{start} or more at index {sequence + 1}, as at index {sequence}"
            remedy = "it is the running sum of the sequence lengths"
            raise invalid(op, f"cu_seqlens_{name}", expected, str(stop), remedy)
        if stop - start > longest:
            expected = f"{stop - start} or more, the length of sequence {sequence} in `cu_seqlens_{name}`"
            raise invalid(op, f"max_seqlen_{name}", expected, str(longest), "give an upper bound of all lengths")
    if values[-1] > tokens:
        expected = f"at most {tokens}, the number of tokens, at its end"
        raise invalid(op, f"cu_seqlens_{name}", expected, str(values[-1]), "check the lengths that it sums")
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
            expected = f"{stop - start} or more at index {sequence}, its number of new tokens in `cu_seqlens_q`"
            raise invalid(op, "seq_lens", expected, str(length), "seq_lens includes the new tokens")
        if length > capacity:
            expected = f"at most max_pages * page_size = {capacity} at index {sequence}"
            raise invalid(op, "seq_lens", expected, str(length), "give `block_table` more columns")
        if length > longest:
            expected = f"{length} or more, the length of sequence {sequence} in `seq_lens`"
            raise invalid(op, "max_seqlen_k", expected, str(longest), "give an upper bound of all lengths")
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
        expected = f"a page from 0 to pages - 1 = {pages - 1} at ({sequence}, {column})"
        remedy = "check the allocator that gave the pages"
        raise invalid(op, "block_table", expected, str(int(table[sequence, column])), remedy)
