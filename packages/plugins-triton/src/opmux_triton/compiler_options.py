"""The options of Triton's compiler that a config sets. Loads no Triton."""

from dataclasses import dataclass

from opmux_triton.config_checks import require_at_least, require_powers_of_two

_NAMES = ("num_warps", "num_stages", "maxnreg", "matrix_instr_nonkdim", "waves_per_eu")


@dataclass(frozen=True, kw_only=True)
class CompilerOptions:
    """What configs of kernels with a software pipeline have in common.

    Attributes:
        num_warps: warps of a program.
        num_stages: blocks in flight at a time, the current one included.
        maxnreg: NVIDIA: registers that a thread has at most; None for the compiler's choice.
        matrix_instr_nonkdim: AMD: rows and columns of a matrix instruction, 16 or 32; None for the compiler's choice.
        waves_per_eu: AMD: wavefronts that each SIMD is to have room for; None for the compiler's choice.
    """

    num_warps: int
    num_stages: int
    maxnreg: int | None = None
    matrix_instr_nonkdim: int | None = None
    waves_per_eu: int | None = None

    def __post_init__(self) -> None:
        require_powers_of_two(self, "num_warps")
        require_at_least(1, self, "num_stages")
        if self.maxnreg is not None:
            require_at_least(24, self, "maxnreg")

    def compiler_options(self) -> dict[str, int]:
        """The options that are set, as a launch takes them."""
        return {name: value for name in _NAMES if (value := getattr(self, name)) is not None}
