"""Instructions, and which registers each reads and writes."""

from dataclasses import dataclass

from opmux_asm.writer.registers import Register

Operand = Register | int | float | str


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        name: the mnemonic.
        operands: in the assembler's order; strings and numbers stand as they are.
        modifiers: what follows the operands, as ``offen offset:16``.
        note: a comment at the end of its line.
    """

    name: str
    operands: tuple[Operand, ...] = ()
    modifiers: str = ""
    note: str = ""

    @property
    def unit(self) -> str:
        """Which unit it goes to: ``valu``, ``trans``, ``mfma``, ``vmem``, ``lds``, ``smem`` or ``salu``."""
        name = self.name
        if name.startswith("v_mfma"):
            return "mfma"
        if name.startswith(TRANSCENDENTAL):
            return "trans"
        if name.startswith("v_"):
            return "valu"
        if name.startswith(("buffer_", "global_", "flat_")):
            return "vmem"
        if name.startswith("ds_"):
            return "lds"
        return "smem" if name.startswith(("s_load_", "s_buffer_load_")) else "salu"

    @property
    def is_load(self) -> bool:
        """Whether its result arrives later, to be waited for."""
        return "_load_" in self.name or self.name.startswith(("ds_read", "ds_bpermute", "ds_permute", "ds_swizzle"))

    @property
    def is_to_lds(self) -> bool:
        """Whether it loads from memory into LDS."""
        return "_load_lds_" in self.name or (self.name.startswith("buffer_load") and "lds" in self.modifiers.split())

    @property
    def written(self) -> tuple[Register, ...]:
        """The registers that it writes."""
        return tuple(o for o in self.operands[: self._results] if isinstance(o, Register))

    @property
    def read(self) -> tuple[Register, ...]:
        """The registers that it reads."""
        first = 0 if self._reads_result else self._results
        return tuple(o for o in self.operands[first:] if isinstance(o, Register))

    @property
    def _results(self) -> int:
        if self.is_to_lds or self.name.startswith(NO_RESULT) or "_store_" in self.name:
            return 0
        return 2 if self.name.startswith(TWO_RESULTS) else 1

    @property
    def _reads_result(self) -> bool:
        return self.name.startswith(("v_fmac", "v_mac", "v_pk_fmac", "v_dot2c")) or "_dpp" in self.name

    def __str__(self) -> str:
        line = f"  {self.name} {', '.join(map(shown, self.operands))} {self.modifiers}".rstrip()
        return f"{line:<62} // {self.note}" if self.note else line


TRANSCENDENTAL = ("v_rsq_f", "v_rcp_", "v_exp_f", "v_log_f", "v_sqrt_f", "v_sin_", "v_cos_")
NO_RESULT = (
    "s_cmp_", "s_bitcmp", "s_cbranch", "s_branch", "s_barrier", "s_waitcnt", "s_nop", "s_endpgm", "s_setprio",
    "ds_write", "ds_add_u", "s_sleep", "s_setreg", "v_cmpx", "s_sendmsg", "buffer_wb", "buffer_inv",
)  # fmt: skip
TWO_RESULTS = ("v_add_co_", "v_addc_co_", "v_sub_co_", "v_subb_co_", "v_mad_u64_u32", "v_div_scale", "v_swap_")


def shown(operand: Operand) -> str:
    """An operand as the assembler reads it; large whole numbers in hexadecimal."""
    if isinstance(operand, int) and not -16 <= operand <= 64:
        return hex(operand)
    return str(operand)
