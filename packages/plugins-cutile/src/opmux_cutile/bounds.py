"""Bounds by what kernels count in 32 bits, and by the grid's: what is past them is refused before a launch.

A kernel's sizes and strides are numbers of 32 bits. `cuda.tile` finds elements that are gathered or scattered in 64,
but the begin of a part of a tensor in the 32 bits of its strides, so a tensor that is cut may not reach further. The
tensors of a call have their `MaxNumel`; these are for results, which a call does not have yet, and for strides alone.
"""

from dataclasses import dataclass

from opmux.plugin import Call, Constraint, Exact, Feature, Signature, UnitStride

MOST_GRID = 65535
"""Blocks of a grid in its second and third dim."""
MOST_HALVES = (1 << 30) - 1
"""Elements of two bytes that 32 bits count."""
MOST_FLOATS = (1 << 29) - 1
"""Elements of four bytes that 32 bits count."""
NARROWEST = 512
"""Columns of the narrowest tile in which a row is computed by several blocks."""
WIDEST = MOST_GRID * NARROWEST
"""Columns of a row that such tiles cover."""


@dataclass(frozen=True)
class ResultAtMost(Constraint):
    """The result, whose size is the product of these dims, has at most ``bound`` elements."""

    dims: tuple[str, ...]
    bound: int

    def features(self, signature: Signature) -> tuple[Feature, ...]:
        read = " * ".join(Exact(dim).feature(signature).source for dim in self.dims)
        return (Feature(f"{' * '.join(self.dims)} <= {self.bound}", f"({read} <= {self.bound})"),)

    def check(self, call: Call) -> str | None:
        return None if self._read(call) else f"the result has more than {self.bound} elements"


@dataclass(frozen=True)
class GridAtMost(Constraint):
    """A dim, of which a block of the grid has one or some, is at most ``bound``.

    As `AtMost`, but conformance makes no call up that breaks it: that would be one of some hundred million numbers.
    """

    dim: str
    bound: int = MOST_GRID

    def features(self, signature: Signature) -> tuple[Feature, ...]:
        source = Exact(self.dim).feature(signature).source
        return (Feature(f"{self.dim} <= {self.bound}", f"({source} <= {self.bound})"),)

    def check(self, call: Call) -> str | None:
        return None if self._read(call) else f"{self.dim} = {call.size(self.dim)} is more than {self.bound}"


@dataclass(frozen=True)
class StridesAtMost(Constraint):
    """No stride of the tensor, which is not an optional one, is more than ``bound`` elements."""

    argument: str
    bound: int = (1 << 31) - 1

    def features(self, signature: Signature) -> tuple[Feature, ...]:
        UnitStride(self.argument).features(signature)  # refuses what is no tensor of the op
        return (
            Feature(f"strides({self.argument}) <= {self.bound}", f"(max({self.argument}.stride()) <= {self.bound})"),
        )

    def check(self, call: Call) -> str | None:
        tensor = call.tensors[self.argument]
        if tensor is None or self._read(call):
            return None
        return f"a stride of {self.argument} is more than {self.bound} elements: {list(tensor.stride())}"
