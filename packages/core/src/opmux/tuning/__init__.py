"""Tuned records: measured rows that say which backend and config were fastest. Format, layers, checks, lookup."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opmux.implementation import Call
    from opmux.op import Op
    from opmux.resolver import TunedChoice


def lookup(op: "Op", call: "Call") -> "TunedChoice | None":
    """What the tuned records say of a call."""
    return None
