"""What the tuned records say of a call: the answer that a plan is made from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TunedChoice:
    """What the tuned records say of a call.

    Attributes:
        backend: full name of the implementation that was fastest.
        config: its config, or None if it has none.
        picks: the record compared two or more backends, so it may pick one; otherwise it only gives a config.
        note: which record it is and how it was matched, for explain.
        exact: the record is of this very point; otherwise of the nearest size.
        others: what records say of the configs of other backends.
    """

    backend: str
    config: Mapping[str, Any] | None
    picks: bool
    note: str
    exact: bool = False
    others: tuple["TunedChoice", ...] = ()

    def of(self, full_name: str) -> "TunedChoice | None":
        """What the records say of one implementation's config."""
        return next((choice for choice in (self, *self.others) if choice.backend == full_name), None)
