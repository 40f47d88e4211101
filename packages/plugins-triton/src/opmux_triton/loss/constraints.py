"""What the implementations of the losses require of a call, beyond what data says. Loads no Triton."""

from dataclasses import dataclass

from opmux.dtypes import name_of
from opmux.plugin import Call, Constraint

_FLUSHES = "gfx90a"
"""The arch whose 16-bit matrix instructions take subnormal numbers as 0 (see torch's notes on MI200)."""


@dataclass(frozen=True)
class KeepsSmallGradients(Constraint):
    """Products of the gradients of logits keep those that are subnormal in float16.

    Most gradients of logits are: the share of each of many classes, 2**-17 for 128,000 of them, where normal float16
    begins at 2**-14. On gfx90a they would count as 0 in the gradients of x and of the weight. The range of bfloat16 is
    that of float32, so it loses nothing.
    """

    argument: str

    def check(self, call: Call) -> str | None:
        """The reason why it does not hold, or None."""
        tensor = call.tensors[self.argument]
        if tensor is None or name_of(tensor.dtype) != "float16" or call.arch.name != _FLUSHES:
            return None
        return f"{self.argument} is float16, whose subnormal numbers {call.arch}'s matrix units take as 0: use bfloat16"
