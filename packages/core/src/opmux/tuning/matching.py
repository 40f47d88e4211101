"""How each dim and option of a call is matched to tuned records: exactly, to the nearest value, or not at all.

A name has one meaning in every op, so the rule goes by names and holds for the ops of plugins too.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opmux.callpath.op import Op
from opmux.signatures.signature import Option

NEAREST = (
    "max_seqlen_q", "seq_q", "tokens", "tokens_q", "m", "max_m", "expected_m", "batch", "seq", "seq_k", "tokens_k",
    "max_seqlen_k",
)  # fmt: skip
"""Sizes that change from call to call, in the order in which their nearest recorded values are looked up. A star dim
is one too, by its product; one with another name has the position of ``tokens``. ``max_seqlen_q`` comes first because a
value of 1 tells decoding from prefill, which need different configs."""

CAPACITY = frozenset({"pages", "max_pages", "max_positions"})
"""Sizes of buffers of which a call reads only a part: they do not determine its time, so they are not matched."""


@dataclass(frozen=True)
class Matching:
    """How the dims and options of an op are matched.

    Attributes:
        nearest: dims and options for which the nearest recorded value is taken, in the order of the search.
        exact: dims that must be equal: those of the model.
        capacity: dims that are not matched.
        fixed: options that must be equal: flags and tuples of ints. A record that does not name one means its default.
        free: options that are matched only if a record names them: numbers and masks.
    """

    nearest: tuple[str, ...]
    exact: tuple[str, ...]
    capacity: tuple[str, ...]
    fixed: tuple[Option, ...]
    free: tuple[Option, ...]

    def must_name(self, options: tuple[Option, ...]) -> tuple[str, ...]:
        """Options that every record has to name: those without a default, and sizes."""
        return tuple(o.name for o in options if o.required or o.name in self.nearest)


@functools.lru_cache(maxsize=512)
def matching_of(op: Op) -> Matching:
    """How the dims and options of an op are matched."""
    signature = op.signature
    sizes = {name for name in signature.binders if name in NEAREST or name in signature.stars}
    sizes |= {o.name for o in signature.options if o.kind == "int" and o.name in NEAREST}
    places = {name: place for place, name in enumerate(NEAREST)}
    nearest = tuple(sorted(sizes, key=lambda name: (places.get(name, places["tokens"]), name)))
    rest = [name for name in signature.binders if name not in sizes]
    options = [o for o in signature.options if o.name not in sizes]
    fixed = tuple(o for o in options if o.is_flag or o.kind == "ints")
    return Matching(
        nearest,
        tuple(name for name in rest if name not in CAPACITY),
        tuple(name for name in rest if name in CAPACITY),
        fixed,
        tuple(o for o in options if o not in fixed),
    )


def shrinks(options: Mapping[str, Any]) -> bool:
    """Whether the options skip work in a way that no expression over dims describes: a window, an unwanted output."""
    window, mask = options.get("window"), options.get("output_mask")
    return (window is not None and any(side != -1 for side in window)) or (mask is not None and not all(mask))


def attended(dims: Mapping[str, int], options: Mapping[str, Any]) -> float | None:
    """The fraction of (query, key) pairs that a causal mask leaves, 1.0 without one; None if it is not known."""
    if not options.get("causal"):
        return 1.0
    if not {"seq_q", "seq_k"} <= dims.keys():
        return None
    queries, keys = dims["seq_q"], dims["seq_k"]
    if queries > keys:  # the first queries see no key, so they need not be read either
        return None
    # Aligned bottom-right: query i sees i + 1 + keys - queries keys.
    return 1.0 - (queries - 1) / (2 * keys)
