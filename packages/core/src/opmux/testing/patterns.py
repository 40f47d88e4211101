"""Patterns of index data: the orders in which an index may come, and that a kernel may wrongly take for granted.

A kernel that ignores its indices, reads them once for a whole tile, or assumes that they rise, is right for random
indices now and then and for consecutive ones always. Each pattern is a case of its own, by its name as the case's
``data``.
"""

import torch
from torch import Tensor

PATTERNS = ("consecutive", "permutation", "reversed", "repeated", "gaps", "equal", "ends")
"""The names of the patterns. What each means for indices, `indices` says; for lengths of sequences, `lengths`."""


def indices(pattern: str, count: int, high: int, generator: torch.Generator) -> Tensor:
    """Indices from 0 to below ``high``, in a pattern.

    consecutive  0, 1, 2, ...
    permutation  the same numbers in a random order: sorted, they are consecutive
    reversed     the same numbers, falling
    repeated     0, 0, 1, 1, 2, 2, ...
    gaps         rising by more than one
    equal        one index, many times
    ends         the first and the last index by turns

    Args:
        pattern: one of `PATTERNS`.
        count: how many.
        high: what they are below; patterns that need more numbers wrap around.
        generator: the source of randomness, whose device the result is on.

    Returns:
        int64, ``(count,)``.
    """
    device, most = generator.device, max(high, 1)
    places = torch.arange(count, device=device)
    match pattern:
        case "permutation":
            return torch.randperm(count, generator=generator, device=device) % most
        case "reversed":
            return (count - 1 - places) % most
        case "repeated":
            return places // 2 % most
        case "gaps":
            return places * max(2, most // max(count, 1)) % most
        case "equal":
            return torch.full_like(places, most // 2)
        case "ends":
            return places % 2 * (most - 1)
    return places % most


def lengths(pattern: str, batch: int, tokens: int) -> list[int] | None:
    """Lengths of ``batch`` sequences over ``tokens`` tokens, in a pattern.

    consecutive  one token each
    reversed     falling lengths
    repeated     everything in the last sequence: the offsets repeat 0
    gaps         every other sequence is empty
    equal        equal lengths
    ends         everything in the first and the last sequence

    Returns:
        The lengths; None where the pattern means nothing for lengths.
    """
    if batch == 0:
        return []
    share = tokens // batch
    match pattern:
        case "consecutive":
            return [int(place < tokens) for place in range(batch)]
        case "reversed":
            weights = [batch - place for place in range(batch)]
            return [tokens * weight // sum(weights) for weight in weights]
        case "repeated":
            return [0] * (batch - 1) + [tokens]
        case "gaps":
            return [2 * share if place % 2 else 0 for place in range(batch)] if batch > 1 else [tokens]
        case "equal":
            return [share] * batch
        case "ends":
            found = [0] * batch
            found[0] = tokens // 2
            found[-1] += tokens - tokens // 2
            return found
    return None
