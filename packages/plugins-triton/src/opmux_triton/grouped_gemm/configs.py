"""The launch parameters of grouped products as configs. Which an arch gets is in `heuristics`. Loads no Triton."""

from dataclasses import dataclass, replace

from opmux_triton.compiler_options import CompilerOptions
from opmux_triton.config_checks import require_at_least, require_powers_of_two


@dataclass(frozen=True, kw_only=True)
class GroupedConfig(CompilerOptions):
    """A product of every group by tiles.

    Attributes:
        block_m, block_n, block_k: rows of a group, columns of the result, and columns of the operands at a time. For
            the gradient of weights: rows and columns of a weight, and rows of the operands at a time.
        group: rows of tiles that are walked together.
        per_unit: programs on a multiprocessor.
        tma: whether operands come by descriptors where they can; else by pointers, in the same tiles, or `for_pointers`
            where ``along`` or the gradient of weights is meant.
        along: whether the weights of a product come by descriptors too where neighbours in them are neighbours in n,
            as the gradient of x needs them, and k is a multiple of ``block_k``.
        uneven: columns of the operands at a time, for pointers where k is no multiple of ``block_k``; the tile is then
            half as wide, with three stages at most: addresses and masks take registers. 0 where nothing changes.
        early: for sums that are added to: whether what is there is loaded before the products.
    """

    block_m: int
    block_n: int
    block_k: int
    group: int = 8
    per_unit: int = 2
    tma: bool = False
    along: bool = False
    uneven: int = 0
    early: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_powers_of_two(self, "block_m", "block_n", "block_k")
        require_at_least(16, self, "block_m", "block_n", "block_k")
        require_at_least(1, self, "group", "per_unit")

    def for_pointers(self) -> "GroupedConfig":
        """At most 128 columns: pointers take registers that wider tiles of descriptors need."""
        return replace(self, block_n=min(128, self.block_n))

    def for_uneven(self) -> "GroupedConfig":
        """With what changes where k is no multiple of ``block_k``."""
        if not self.uneven:
            return self
        width, stages = max(16, self.block_n // 2), min(3, self.num_stages)
        return replace(self, block_n=width, block_k=self.uneven, num_stages=stages)


@dataclass(frozen=True, kw_only=True)
class ScaledGroupedConfig(GroupedConfig):
    """A product of codes; sums of ``block_k`` columns are added up in float32, so that is 128 at most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_k > 128:
            raise ValueError(f"block_k expected 128 at most, got {self.block_k}")


@dataclass(frozen=True)
class GroupedBackwardConfig:
    """`grouped_linear_backward`.

    Attributes:
        grad_x: of the product that gives grad_x, over n.
        grad_w: of the sums that give grad_w, over the rows of a group.
    """

    grad_x: GroupedConfig
    grad_w: GroupedConfig
