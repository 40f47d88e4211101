"""Instructions as text, close to the assembler's: for reports. Register ranges are shown by their first register."""

from opmux_emulator.isa.decode import AGPR, LITERAL, VGPR, Instruction

SPECIAL = {
    102: "flat_scratch_lo", 103: "flat_scratch_hi", 106: "vcc_lo", 107: "vcc_hi", 124: "m0", 126: "exec_lo",
    127: "exec_hi", 235: "src_shared_base", 236: "src_shared_limit", 237: "src_private_base", 238: "src_private_limit",
    240: "0.5", 241: "-0.5", 242: "1.0", 243: "-1.0", 244: "2.0", 245: "-2.0", 246: "4.0", 247: "-4.0",
    248: "0.15915494", 251: "vccz", 252: "execz", 253: "scc",
}  # fmt: skip


def operand(code: int, literal: int = 0) -> str:
    """A register, a constant or the literal."""
    if code >= AGPR:
        return f"a{code - AGPR}"
    if code >= VGPR:
        return f"v{code - VGPR}"
    if code == LITERAL:
        return f"{literal:#x}"
    if 128 <= code <= 192:
        return str(code - 128)
    if 193 <= code <= 208:
        return str(192 - code)
    return SPECIAL.get(code, f"s{code}" if code < 102 else f"ttmp{code - 108}" if 108 <= code < 124 else f"src{code}")


def text_of(i: Instruction) -> str:
    """``mnemonic operands``; what decoding could not read says so."""
    if not i.name:
        return f"({i.error})"
    codes = [code for code in (i.sdst, i.dst, *i.source) if code >= 0]
    if i.encoding == "SOPP":
        return i.name if i.target >= 0 else f"{i.name} {i.immediate:#x}"
    if i.name == "s_set_gpr_idx_on":
        return f"{i.name} {operand(i.source[0])}, {i.source[1]:#x}"
    shown = ", ".join(operand(code, i.literal) for code in codes)
    offset = f" offset:{i.immediate}" if i.immediate else ""
    return f"{i.name} {shown}{offset}".strip()
