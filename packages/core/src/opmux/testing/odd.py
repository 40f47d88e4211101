"""Odd cases, drawn by hypothesis: unusual sizes, combined with any dtype, option, optional tensor and view."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from opmux.signatures.signature import Signature
from opmux.testing.profiles import Profile

T = TypeVar("T")

SIZES = (1, 2, 3, 5, 7, 8, 13, 17, 31, 33, 63, 65, 100, 127, 129, 191, 257, 300, 511, 577)
"""Primes, powers of two and their neighbours."""

SIZES_OF: Mapping[str, tuple[Any, ...]] = {
    "heads": (1, 2, 3, 4, 6, 8),
    "kv_heads": (1, 2, 3, 4),
    "head_dim": (2, 8, 16, 24, 40, 64, 72, 96),
    "value_dim": (1, 8, 16, 24, 40, 64, 72),
    "half": (1, 3, 4, 8, 12, 20, 32),
    "batch": (1, 2, 3, 4, 5),
    "pages": (3, 7, 12, 20),
    "page_size": (1, 16, 48),
    "max_pages": (1, 3, 5),
    "max_positions": (33, 65, 130),
    "groups": (1, 2, 5),
}
"""Dims that have ranges of their own."""

STARS = ((), (1,), (2,), (3, 1), (1, 2, 2), (7,), (2, 5), (33,))


def one_of(pool: Sequence[T]) -> st.SearchStrategy[T]:
    """One of a pool, as `st.sampled_from`, but drawn from booleans alone.

    Hypothesis mixes constants from local source files into the integers that it draws (and keeps them in a folder in
    the current directory), so with integers the cases of two processes would differ.
    """
    width = math.ceil(math.log2(len(pool))) + (1 if len(pool) & (len(pool) - 1) else 0)

    def pick(drawn: tuple[bool, ...]) -> T:
        return pool[sum(bit << place for place, bit in enumerate(drawn)) % len(pool)]

    return st.tuples(*[st.booleans()] * width).map(pick)


def named(strategies: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """A value for each name, like `st.fixed_dictionaries`, which would draw integers to shuffle the names."""
    return st.tuples(*strategies.values()).map(lambda drawn: dict(zip(strategies, drawn, strict=True)))


def sizes_of(name: str, star: bool, limit: int) -> st.SearchStrategy[Any]:
    """Sizes of a dim."""
    if star:
        return one_of([s for s in STARS if math.prod(s) <= limit])
    pool = SIZES_OF.get(name, SIZES)
    return one_of([s for s in pool if s <= limit] or [pool[0]])


def draw_odd(
    signature: Signature,
    profile: Profile,
    ways: Mapping[str, Sequence[Any]],
    accept: Callable[[Mapping[str, Any], Mapping[str, Any]], bool],
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Draw odd cases.

    Args:
        signature: the op's signature.
        profile: how many, and how large.
        ways: what else to draw: a name and the values to choose from.
        accept: whether the drawn (dims, ways) make a valid call that was not drawn before.

    Returns:
        The accepted draws, the same ones in every run.
    """
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    drawn_dims = named({name: sizes_of(name, name in signature.stars, profile.odd_limit) for name in signature.binders})
    drawn_ways = named({name: one_of(list(values)) for name, values in ways.items()})

    @settings(
        max_examples=3 * profile.odd,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn_dims, drawn_ways)
    def collect(dims: dict[str, Any], chosen: dict[str, Any]) -> None:
        if len(found) < profile.odd and accept(dims, chosen):
            found.append((dims, chosen))

    if profile.odd:
        state = random.getstate()
        collect()
        random.setstate(state)
    return found
