"""The launch parameters of scaled products as configs. Which an arch gets is in `heuristics`. Loads no Triton."""

from dataclasses import dataclass

from opmux_triton.compiler_options import CompilerOptions
from opmux_triton.config_checks import require_at_least, require_powers_of_two


@dataclass(frozen=True, kw_only=True)
class ScaledConfig(CompilerOptions):
    """A product by the portable kernel.

    Attributes:
        block_m: rows of x of a tile.
        block_n: rows of the weight of a tile.
        block_k: columns of both at a time; they share their scales, so at most 128.
        swap: whether the weight's rows are the rows of the matrix instruction, for few rows of x.
        group: rows of tiles that are walked together.
        parts: into how many parts k is cut; a second kernel adds them up.
        xcds: dies among which programs are dealt out.
        uneven: columns at a time where rows do not lie in vectors of 16: addresses and masks take registers then.
    """

    block_m: int
    block_n: int
    block_k: int
    swap: bool = False
    group: int = 8
    parts: int = 1
    xcds: int = 1
    uneven: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        require_powers_of_two(self, "block_m", "block_n", "block_k", "uneven")
        require_at_least(16, self, "block_m", "block_n", "block_k", "uneven")
        require_at_least(1, self, "group", "parts", "xcds")
        for name in ("block_k", "uneven"):
            if getattr(self, name) > 128:
                raise ValueError(
                    f"{name} expected at most 128, the columns that share a scale, got {getattr(self, name)}"
                )
