"""The options of how queries score keys, on the host."""

import math
from typing import NamedTuple

from opmux_triton.scoring import base2

LOG2_E: float = base2.LOG2_E.value


class Scoring(NamedTuple):
    """The options of dense and ragged attention, as the ops have them.

    Attributes:
        scale: factor on the scores before a cap; None for ``1 / sqrt(head_dim)``.
        causal: whether a query sees no key right of its own.
        window: how many keys to the left and to the right a query sees; -1 for all.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0 for no cap.
    """

    scale: float | None
    causal: bool
    window: tuple[int, int]
    softcap: float

    def scale_for(self, head_dim: int) -> float:
        """The factor on the scores."""
        return 1 / math.sqrt(max(1, head_dim)) if self.scale is None else float(self.scale)

    def factors(self, head_dim: int) -> tuple[bool, float, float]:
        """(fold, scale, cap) as the forward kernels take them, in base 2.

        With ``fold`` a fused multiply-add gives the exponent: a positive finite scale and no cap.
        """
        scale = self.scale_for(head_dim)
        if self.softcap > 0:
            return False, scale / self.softcap, self.softcap * LOG2_E
        return 0 < scale < math.inf, scale * LOG2_E, 0.0

    def band(self, queries: int, keys: int) -> tuple[bool, bool, int, int]:
        """(bounded left, bounded right, left, right); a side that hides no key is not bounded."""
        left, right = self.window[0], 0 if self.causal else self.window[1]
        bounded_left, bounded_right = 0 <= left < keys - 1, 0 <= right < queries - 1
        return bounded_left, bounded_right, left if bounded_left else 0, right if bounded_right else 0

    def declared_band(self, queries: int, keys: int) -> tuple[bool, bool, int, int]:
        """Like `band`, but every side that the options name is bounded.

        A window wider than the sequences is cut to them: a sum of positions must not overflow.
        """
        most = queries + keys
        bounded_left, bounded_right = self.window[0] != -1, self.causal or self.window[1] != -1
        left = min(self.window[0], most) if bounded_left else 0
        right = min(self.window[1], most) if bounded_right and not self.causal else 0
        return bounded_left, bounded_right, left, right
