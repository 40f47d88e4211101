"""From machine code to instructions. Encodings: CDNA3 ISA, chapter 12 "Microcode formats"; CDNA4's for VOP3PX2."""

import struct
from dataclasses import dataclass, field

from opmux_emulator.isa.matrix import shape_of
from opmux_emulator.isa.opcodes import opcodes

VGPR = 256
"""Operand codes from here are vector registers."""
AGPR = 512
"""Operand codes from here are accumulation registers, until :func:`resolve` puts them behind the vector ones."""
VCC, LITERAL, SDWA, DPP = 106, 255, 249, 250
SC0, NT, SC1, TO_LDS, OFFEN, IDXEN, GDS = 1, 2, 4, 8, 16, 32, 64
READS_ITS_RESULT = ("v_fmac_", "v_mac_", "v_dot2c_", "v_dot4c_", "v_dot8c_", "v_pk_fmac_")
WITH_CARRY = frozenset({"v_addc_co_u32", "v_subb_co_u32", "v_subbrev_co_u32"})
WITH_SCALAR_RESULT = frozenset({"v_readlane_b32", "v_readfirstlane_b32"})
CARRY_OUT = frozenset({281, 282, 283, 284, 285, 286, 480, 481, 488, 489})
"""Opcodes of VOP3 with a scalar destination beside the vector one."""


@dataclass
class Instruction:
    """A decoded instruction. Operand codes as in the machine code; -1 where there is none.

    Attributes:
        pc: byte offset in the code.
        size: bytes.
        source: codes of up to four sources. Of memory: address, data, scalar base or descriptor, scalar offset.
        immediate: the simm16, or the byte offset of a memory access; ``immediate1`` the second one of ds_read2.
        error: why it cannot be executed, where that is so.
    """

    pc: int
    size: int
    encoding: str
    name: str
    dst: int = -1
    sdst: int = -1
    source: list[int] = field(default_factory=lambda: [-1, -1, -1, -1])
    literal: int = 0
    neg: int = 0
    abs: int = 0
    omod: int = 0
    clamp: int = 0
    opsel: int = 0
    opsel_hi: int = 0
    neg_hi: int = 0
    variant: int = 0
    dpp: int = 0
    row_mask: int = 15
    bank_mask: int = 15
    bound: int = 0
    dst_sel: int = 6
    dst_unused: int = 0
    src_sel: list[int] = field(default_factory=lambda: [6, 6])
    sext: int = 0
    immediate: int = 0
    immediate1: int = 0
    flags: int = 0
    cbsz: int = 0
    abid: int = 0
    blgp: int = 0
    target: int = -1
    scale: list[int] = field(default_factory=lambda: [-1, -1])
    error: str = ""


def signed(value: int, width: int) -> int:
    """A two's complement field."""
    return value - (1 << width) if value >> (width - 1) & 1 else value


def format_of(word: int) -> str:
    """The encoding that the first word announces; empty where none does."""
    if word >> 31 == 0:
        return {0x3F: "VOP1", 0x3E: "VOPC"}.get(word >> 25, "VOP2")
    if word >> 30 == 2:
        special = {0x17D: "SOP1", 0x17E: "SOPC", 0x17F: "SOPP"}.get(word >> 23)
        return special or ("SOPK" if word >> 28 == 0xB else "SOP2")
    if word >> 26 == 0x34:
        return "VOP3P" if word >> 23 == 0x1A7 else "VOP3"
    if word >> 26 == 0x37:
        return ("FLAT", "SCRATCH", "GLOBAL", "")[word >> 14 & 3]
    return {0x30: "SMEM", 0x36: "DS", 0x38: "MUBUF", 0x3A: "MTBUF"}.get(word >> 26, "")


OPCODE = {  # lowest bit and width of the opcode
    "SOP1": (8, 8), "SOP2": (23, 7), "SOPC": (16, 7), "SOPP": (16, 7), "SOPK": (23, 5), "SMEM": (18, 8), "VOP1": (9, 8),
    "VOP2": (25, 6), "VOPC": (17, 8), "VOP3": (16, 10), "VOP3P": (16, 7), "DS": (17, 8), "MUBUF": (18, 7),
    "MTBUF": (15, 4), "FLAT": (18, 7), "SCRATCH": (18, 7), "GLOBAL": (18, 7),
}  # fmt: skip
LONG = frozenset({"SMEM", "VOP3", "VOP3P", "DS", "MUBUF", "MTBUF", "FLAT", "SCRATCH", "GLOBAL"})


class Decoder:
    """Decodes the code of one arch."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.names = opcodes(arch)

    def decode(self, code: bytes) -> list[Instruction]:
        """Every instruction of a stretch of code, in order."""
        found, pc = [], 0
        while pc + 4 <= len(code):
            instruction = self.one(code, pc)
            found.append(instruction)
            pc += instruction.size
        return found

    def one(self, code: bytes, pc: int) -> Instruction:
        """The instruction at a byte offset. What is no instruction comes as one word with ``error`` set."""
        (word,) = struct.unpack_from("<I", code, pc)
        if self.arch == "gfx950" and word >> 16 == 0xD3AC and pc + 16 <= len(code):
            return self.scaled(code, pc, word)
        encoding = format_of(word)
        if not encoding:
            return Instruction(pc, 4, "", "", error=f"no instruction of {self.arch} begins with {word:#010x}")
        low, width = OPCODE[encoding]
        opcode = word >> low & ((1 << width) - 1)
        name = self.names[encoding].get(opcode, "")
        size = 8 if encoding in LONG else 4
        if not name:
            error = f"{self.arch} has no {encoding} instruction with opcode {opcode} ({word:#010x})"
            return Instruction(pc, min(size, len(code) - pc), encoding, "", error=error)
        if pc + size > len(code):
            return Instruction(pc, 4, encoding, name, error="the code ends within this instruction")
        i = Instruction(pc, size, encoding, name)
        second = struct.unpack_from("<I", code, pc + 4)[0] if pc + 8 <= len(code) else 0
        getattr(self, f"_{encoding.lower()}")(i, word, second, opcode)
        if i.size > 4 and pc + i.size > len(code):
            i.error = "the code ends within this instruction"
        return i

    def scaled(self, code: bytes, pc: int, word: int) -> Instruction:
        """VOP3PX2: a matrix instruction with scales (CDNA4 ISA)."""
        second, third, fourth = struct.unpack_from("<III", code, pc + 4)
        name = self.names["VOP3PX2"].get(third >> 16 & 127, "")
        i = Instruction(pc, 16, "VOP3PX2", name)
        if not name:
            i.error = f"{self.arch} has no scaled matrix instruction with opcode {third >> 16 & 127}"
            return i
        self._vop3p(i, third, fourth, 0)
        i.scale = [second & 511, second >> 9 & 511]
        i.opsel, i.opsel_hi = word >> 11 & 3, second >> 27 & 3
        return i

    # Scalar formats.

    def _literal(self, i: Instruction, second: int) -> None:
        if LITERAL in i.source:
            i.literal, i.size = second, 8

    def _sop1(self, i: Instruction, word: int, second: int, _: int) -> None:
        i.dst, i.source[0] = word >> 16 & 127, word & 255
        self._literal(i, second)

    def _sop2(self, i: Instruction, word: int, second: int, _: int) -> None:
        i.dst, i.source[:2] = word >> 16 & 127, [word & 255, word >> 8 & 255]
        self._literal(i, second)

    def _sopc(self, i: Instruction, word: int, second: int, _: int) -> None:
        i.source[:2] = [word & 255, word >> 8 & 255]
        self._literal(i, second)

    def _sopk(self, i: Instruction, word: int, second: int, _: int) -> None:
        i.dst, i.immediate = word >> 16 & 127, signed(word & 0xFFFF, 16)
        if i.name == "s_setreg_imm32_b32":
            i.literal, i.size = second, 8
        if i.name == "s_call_b64":
            i.target = i.pc + 4 + 4 * i.immediate

    def _sopp(self, i: Instruction, word: int, second: int, _: int) -> None:
        i.immediate = word & 0xFFFF
        if i.name.startswith(("s_branch", "s_cbranch")):
            i.target = i.pc + 4 + 4 * signed(i.immediate, 16)

    def _smem(self, i: Instruction, word: int, second: int, _: int) -> None:
        i.dst, i.source[0] = word >> 6 & 127, (word & 63) * 2
        if word >> 17 & 1:
            i.immediate = signed(second & 0x1FFFFF, 21)
        elif not word >> 14 & 1:
            i.source[1] = second & 127
        if word >> 14 & 1:
            i.source[1] = second >> 25 & 127

    # Vector formats.

    def _variant(self, i: Instruction, second: int) -> None:
        """SDWA, DPP or a literal, as the first source announces."""
        if i.source[0] == DPP:
            i.variant, i.size = 1, 8
            i.source[0] = VGPR + (second & 255)
            i.dpp, i.bound = second >> 8 & 511, second >> 19 & 1
            i.neg = (second >> 20 & 1) | (second >> 22 & 1) << 1
            i.abs = (second >> 21 & 1) | (second >> 23 & 1) << 1
            i.bank_mask, i.row_mask = second >> 24 & 15, second >> 28
        elif i.source[0] == SDWA:
            i.variant, i.size = 2, 8
            i.source[0] = (second & 255) + (0 if second >> 23 & 1 else VGPR)
            i.src_sel = [second >> 16 & 7, second >> 24 & 7]
            i.sext = (second >> 19 & 1) | (second >> 27 & 1) << 1
            i.neg = (second >> 20 & 1) | (second >> 28 & 1) << 1
            i.abs = (second >> 21 & 1) | (second >> 29 & 1) << 1
            if second >> 31 and i.source[1] >= VGPR:
                i.source[1] -= VGPR
            if i.encoding == "VOPC":
                i.sdst = second >> 8 & 127 if second >> 15 & 1 else VCC
            else:
                i.dst_sel, i.dst_unused = second >> 8 & 7, second >> 11 & 3
                i.clamp, i.omod = second >> 13 & 1, second >> 14 & 3
        else:
            self._literal(i, second)

    def _vop1(self, i: Instruction, word: int, second: int, _: int) -> None:
        i.dst, i.source[0] = VGPR + (word >> 17 & 255), word & 511
        if i.name == "v_readfirstlane_b32":
            i.dst -= VGPR
        self._variant(i, second)
        if i.name == "v_accvgpr_mov_b32":
            i.dst, i.source[0] = i.dst - VGPR + AGPR, i.source[0] - VGPR + AGPR

    def _vop2(self, i: Instruction, word: int, second: int, _: int) -> None:
        i.dst, i.source[:2] = VGPR + (word >> 17 & 255), [word & 511, VGPR + (word >> 9 & 255)]
        if i.name.endswith(("mk_f32", "mk_f16", "ak_f32", "ak_f16")):
            i.literal, i.size = second, 8
            i.source[:3] = [i.source[0], LITERAL, i.source[1]] if "mk_" in i.name else [*i.source[:2], LITERAL]
            return
        self._variant(i, second)
        self._implicit(i)

    def _implicit(self, i: Instruction) -> None:
        """Operands that the encoding does not name."""
        if i.name.startswith(READS_ITS_RESULT):
            i.source[2] = i.dst
        if i.encoding == "VOP2" and (i.name == "v_cndmask_b32" or i.name in WITH_CARRY):
            i.source[2] = VCC
        if i.encoding == "VOP2" and "_co_" in i.name:
            i.sdst = VCC

    def _vopc(self, i: Instruction, word: int, second: int, _: int) -> None:
        i.sdst, i.source[:2] = VCC, [word & 511, VGPR + (word >> 9 & 255)]
        self._variant(i, second)

    def _vop3(self, i: Instruction, word: int, second: int, opcode: int) -> None:
        i.dst = VGPR + (word & 255)
        i.source[:3] = [second & 511, second >> 9 & 511, second >> 18 & 511]
        i.clamp, i.omod, i.neg = word >> 15 & 1, second >> 27 & 3, second >> 29
        if opcode in CARRY_OUT:
            i.sdst = word >> 8 & 127
        else:
            i.abs, i.opsel = word >> 8 & 7, word >> 11 & 15
        if opcode < 256:
            i.sdst, i.dst = word & 255, -1
        if i.name in WITH_SCALAR_RESULT:
            i.dst -= VGPR
        self._implicit(i)

    def _vop3p(self, i: Instruction, word: int, second: int, _: int) -> None:
        i.dst = VGPR + (word & 255)
        i.source[:3] = [second & 511, second >> 9 & 511, second >> 18 & 511]
        i.clamp, i.neg = word >> 15 & 1, second >> 29
        if i.name.startswith(("v_mfma", "v_smfmac")):
            i.cbsz, i.abid, i.blgp = word >> 8 & 7, word >> 11 & 15, second >> 29
            i.neg = i.clamp = 0
            accumulates, acc = word >> 15 & 1, second >> 27 & 3
            if accumulates:
                i.dst += AGPR - VGPR
            for k, flag in enumerate((acc & 1, acc >> 1, accumulates)):
                if flag and i.source[k] >= VGPR:
                    i.source[k] += AGPR - VGPR
            if i.name.startswith("v_smfmac"):
                i.error = f"{i.name}: sparse matrix instructions are not executed yet"
            return
        i.neg_hi, i.opsel = word >> 8 & 7, word >> 11 & 7
        i.opsel_hi = (second >> 27 & 3) | (word >> 14 & 1) << 2
        if i.name.startswith("v_accvgpr_read"):
            i.source[0] += AGPR - VGPR
        if i.name.startswith("v_accvgpr_write"):
            i.dst += AGPR - VGPR

    # Memory formats.

    def _ds(self, i: Instruction, word: int, second: int, _: int) -> None:
        vector = AGPR if word >> 25 & 1 else VGPR
        i.source[:3] = [VGPR + (second & 255), vector + (second >> 8 & 255), vector + (second >> 16 & 255)]
        i.dst = vector + (second >> 24)
        if "read2" in i.name or "write2" in i.name or "xchg2" in i.name:
            i.immediate, i.immediate1 = word & 255, word >> 8 & 255
        else:
            i.immediate = word & 0xFFFF
        if word >> 16 & 1:
            i.error = f"{i.name} gds: these archs have no global data share"

    def _flat(self, i: Instruction, word: int, second: int, _: int) -> None:
        vector = AGPR if second >> 23 & 1 else VGPR
        i.source[:2] = [VGPR + (second & 255), vector + (second >> 8 & 255)]
        i.dst = vector + (second >> 24)
        i.immediate = signed(word & 0x1FFF, 13) if i.encoding != "FLAT" else word & 0xFFF
        saddr = second >> 16 & 127
        if i.encoding != "FLAT" and saddr != 127:
            i.source[2] = saddr
        vector_address = word >> 13 & 1 if self.arch != "gfx90a" else saddr == 127
        if i.encoding == "SCRATCH" and not vector_address:
            i.source[0] = -1
        to_lds = "_load_lds_" in i.name or (self.arch == "gfx90a" and i.encoding == "GLOBAL" and word >> 13 & 1)
        i.flags = (word >> 16 & 1) * SC0 | (word >> 17 & 1) * NT | (word >> 25 & 1) * SC1 | to_lds * TO_LDS

    _global = _scratch = _flat

    def _mubuf(self, i: Instruction, word: int, second: int, _: int) -> None:
        vector = AGPR if second >> 23 & 1 else VGPR
        i.dst = vector + (second >> 8 & 255)
        i.source = [VGPR + (second & 255), i.dst, (second >> 16 & 31) * 4, second >> 24]
        i.immediate = word & 0xFFF
        i.flags = (word >> 14 & 1) * SC0 | (word >> 15 & 1) * SC1 | (word >> 17 & 1) * NT
        i.flags |= (word >> 12 & 1) * OFFEN | (word >> 13 & 1) * IDXEN | (word >> 16 & 1) * TO_LDS

    def _mtbuf(self, i: Instruction, word: int, second: int, _: int) -> None:
        i.error = f"{i.name}: typed buffer accesses are not executed"


def resolve(code: int, accum_offset: int) -> int:
    """An operand code with accumulation registers behind the vector ones, where the descriptor puts them."""
    return VGPR + accum_offset + code - AGPR if code >= AGPR else code


def columns(i: Instruction, op: int, target: int, accum_offset: int) -> list[int]:
    """The row that ``native/machine.h`` reads: the fields of its ``Inst``, in order."""
    shape = shape_of(i.name, i.cbsz, i.blgp)
    m, k, blocks, a, b = shape or (0, 0, 0, 0, 0)
    literal = signed(i.literal, 32)
    source = [resolve(code, accum_offset) for code in i.source]
    # fmt: off
    return [
        op, i.size, 1 if i.encoding == "VOP3" else 0, resolve(i.dst, accum_offset), i.sdst, *source, literal, i.neg,
        i.abs, i.omod, i.clamp, i.opsel, i.opsel_hi, i.neg_hi, i.variant, i.dpp, i.row_mask, i.bank_mask, i.bound,
        i.dst_sel, i.dst_unused, *i.src_sel, i.sext, i.immediate, i.immediate1, i.flags, i.cbsz, i.abid, i.blgp, target,
        i.pc, m, m, k, blocks, a, b, 0, *i.scale,
    ]
    # fmt: on
