"""The instances of CK's attention over pages: the tile of a workgroup, the parts of the keys, and the rules."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from opmux_ck.attention.configs import AttentionConfig, broken_rules

MOST_PARTS_LOG2 = 5
MOST_PARTS = 1 << MOST_PARTS_LOG2
"""Of the keys of a sequence: CK's kernel that combines them is built for so many."""
MOST_KEYS = 32
"""Of a tile: with more, of a step or in several, the compiler spilled scalar registers in most instances tried."""


@dataclass(frozen=True)
class PagedConfig(AttentionConfig):
    """The tile of a workgroup, and how many workgroups share the keys of a sequence.

    Attributes:
        parts: of the keys of each sequence, as equal as they can be, whose results another kernel combines; 1 for none.
    """

    parts: int = 1

    def __post_init__(self) -> None:
        for reason in (*broken_rules(self), *_more_broken_rules(self)):
            raise ValueError(reason)


def _more_broken_rules(config: PagedConfig) -> Iterator[str]:
    """Why no instance can be made of a config for pages."""
    if config.keys != config.key_step:
        yield f"keys = {config.keys} is not key_step = {config.key_step}: CK looks up a page after each step"
    if config.keys > MOST_KEYS:
        yield f"keys = {config.keys} is more than {MOST_KEYS}: the compiler spills scalar registers"
    if not 1 <= config.parts <= MOST_PARTS:
        yield f"parts = {config.parts} is not from 1 to {MOST_PARTS}"


def misfit_of_page(config: PagedConfig, page_size: int) -> str | None:
    """Why a tile cannot read pages of this size, or None: the keys of a tile lie in one page."""
    if page_size % config.keys:
        return f"keys = {config.keys} does not divide page_size = {page_size}"
    return None


def unsupported_page(features: Mapping[str, int]) -> str | None:
    """Why there is no instance for pages of this size, or None."""
    page_size = features["page_size"]
    if page_size % 16:
        return f"page_size = {page_size} is not a multiple of 16, the fewest keys of a tile, which lie in one page"
    return None
