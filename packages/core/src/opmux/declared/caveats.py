"""Caveats: results that an op leaves unspecified, and that an implementation says it does not keep apart."""

from enum import StrEnum


class Caveat(StrEnum):
    """A case whose result the op leaves unspecified: an implementation that differs there declares it.

    The value is the text that users see. A caveat is no difference in numerics: it bars no implementation from being
    chosen.
    """

    MASKED_NONFINITE = "a NaN or infinity in a masked-out key or value may spread"
    """A key or value of weight 0 is multiplied rather than skipped, so that a NaN or infinity in it gives NaN: in the
    results of queries that mask it out, and in the gradients of keys that are masked out for such a query."""
    NONFINITE_KIND = "results that are not finite may be NaN or an infinity of either sign"
    """Where infinities meet in sums and products, their order decides whether NaN or an infinity comes out. Which
    elements are finite is the same as in the reference."""
