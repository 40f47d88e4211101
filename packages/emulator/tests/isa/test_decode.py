"""Decoding: the instructions of Triton's code objects are those of the assembly that Triton prints."""

import re

import pytest
import triton_kernels
from compiling import compile_kernel, program_of

from opmux_emulator.isa.decode import Decoder, Instruction
from opmux_emulator.isa.opcodes import ARCHS
from opmux_emulator.isa.text import operand, text_of

REGISTER = re.compile(r"\b([sva])(?:\[(\d+)(?::\d+)?\]|(\d+))\b")


def printed(assembly: str) -> list[tuple[str, set[str]]]:
    """Mnemonics and first registers of each operand, from the compiler's text."""
    found = []
    for line in assembly.splitlines():
        words = line.split(";")[0].split("//")[0].strip()
        if re.match(r"(s|v|ds|global|flat|scratch|buffer)_\w+", words) and not words.endswith(":"):
            mnemonic, _, rest = words.partition(" ")
            registers = {m[1] + (m[2] or m[3]) for m in REGISTER.finditer(rest)}
            found.append((re.sub(r"_(e32|e64|sdwa|dpp)$", "", mnemonic), registers))
    return found


def registers_of(i: Instruction) -> set[str]:
    codes = [c for c in (i.dst, i.sdst, *i.source) if c >= 0]
    return {operand(c) for c in codes}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ["add", "gemm", "softmax"])
def test_the_compilers_own_text(arch: str, name: str) -> None:
    cases = {
        "add": ({"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}, {"BLOCK": 1024}),
        "gemm": (
            {"a": "*fp16", "b": "*fp16", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"},
            {"BM": 64, "BN": 64, "BK": 64},
        ),
        "softmax": ({"x": "*bf16", "out": "*fp32", "columns": "i32"}, {"BLOCK": 1024}),
    }
    compiled = compile_kernel(getattr(triton_kernels, name), arch, *cases[name])
    expected = printed(compiled.asm["amdgcn"])
    _, code = program_of(compiled).code
    # The linker pads the entry with s_nop.
    expected = [line for line in expected if line[0] != "s_nop"]
    code = [i for i in code if i.name != "s_nop"]
    assert len(expected) > 20
    for (mnemonic, registers), instruction in zip(expected, code, strict=False):
        assert mnemonic.removesuffix("_b32") == instruction.name.removesuffix("_b32"), text_of(instruction)
        assert registers <= registers_of(instruction), (mnemonic, registers, text_of(instruction))


@pytest.mark.parametrize("arch", ARCHS)
def test_an_unknown_opcode_is_said(arch: str) -> None:
    (found,) = Decoder(arch).decode((0xBF7F0000 | 0x7F << 16).to_bytes(4, "little"))
    assert found.error == f"{arch} has no SOPC instruction with opcode 127 (0xbf7f0000)"


def test_another_archs_opcode_is_unknown() -> None:
    permlane = (0x7E00B300 | 0x101).to_bytes(4, "little")  # v_permlane16_swap_b32
    assert Decoder("gfx950").decode(permlane)[0].name == "v_permlane16_swap_b32"
    assert Decoder("gfx942").decode(permlane)[0].error == "gfx942 has no VOP1 instruction with opcode 89 (0x7e00b301)"


def test_code_that_ends_within_an_instruction() -> None:
    (found,) = Decoder("gfx942").decode((0xD1CB0000).to_bytes(4, "little"))  # v_fma_f32 without its second word
    assert found.error == "the code ends within this instruction"
