"""The archs that records claim, and a constraint on them."""

from dataclasses import dataclass

from opmux.plugin import Call, Constraint

NVIDIA = ("sm_80+",)
GPUS = (*NVIDIA, "gfx9*")


@dataclass(frozen=True)
class OnArch(Constraint):
    """The call is on one of these archs: for what a library takes on some of a record's archs only.

    Attributes:
        patterns: as in a record's ``archs``.
    """

    patterns: tuple[str, ...]

    def check(self, call: Call) -> str | None:
        """The reason why it does not hold, or None."""
        return None if any(call.arch.matches(p) for p in self.patterns) else f"this is {call.arch}"


ON_CPU = OnArch(("cpu",))
