"""Patterns of index data: orders of indices about which a kernel may make wrong assumptions.

A kernel that ignores its indices, reads them once for a whole tile, or assumes that they increase, is right for some
random indices and for all consecutive ones. Each pattern is a case of its own, with its name as the case's ``data``.
"""

import torch
from torch import Tensor

PATTERNS = ("consecutive", "permutation", "reversed", "repeated", "gaps", "equal", "ends")
"""The names of the patterns. `indices` describes each for indices, `lengths` for sequence lengths."""


def indices(pattern: str, count: int, high: int, generator: torch.Generator) -> Tensor:
    """Indices from 0 to below ``high``, in a pattern.

    consecutive  0, 1, 2, ...
    permutation  the same numbers in a random order: sorted, they are consecutive
    reversed     the same numbers, decreasing
    repeated     0, 0, 1, 1, 2, 2, ...
    gaps         increasing by more than one
    equal        one index, many times
    ends         the first and the last index alternately

    Args:
        pattern: one of `PATTERNS`.
        count: how many.
        high: the exclusive upper bound; patterns that need more numbers wrap around.
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
    reversed     decreasing lengths
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
