"""Write ``src/opmux_emulator/isa/opcodes.json``: which opcode of which encoding has which mnemonic, per arch.

Two sources, both of kept tools; nothing is typed by hand:

- gfx90a and gfx942: LLVM's disassembler is asked about every opcode of every encoding (``llvm-mc-19 -disassemble``).
- gfx950: what gfx942 has, and what AMD's machine-readable ISA of CDNA4 adds, through the tables that tinygrad
  generates from it (``pip install tinygrad==0.14.0``; MIT, as AMD's XML files are).

Run: ``python packages/emulator/scripts/make_opcode_table.py``. It needs Debian's ``llvm-19``.
"""

import json
import re
import subprocess
from pathlib import Path

TABLE = Path(__file__).parents[1] / "src" / "opmux_emulator" / "isa" / "opcodes.json"

# encoding: (fixed bits of the first word, lowest bit of the opcode, number of opcodes, bytes). Operand fields hold
# harmless values: v0, s0.
PROBES = {
    "SOP1": (0b101111101 << 23, 8, 256, 4),
    "SOPC": (0b101111110 << 23, 16, 128, 4),
    "SOPP": (0b101111111 << 23, 16, 128, 4),
    "SOPK": (0b1011 << 28, 23, 29, 4),
    "SOP2": (0b10 << 30, 23, 96, 4),
    "SMEM": (0b110000 << 26 | 1 << 17, 18, 256, 8),
    "VOP1": (0b0111111 << 25 | 0x100, 9, 256, 4),
    "VOPC": (0b0111110 << 25 | 0x100, 17, 256, 4),
    "VOP2": (0x100, 25, 62, 4),
    "VOP3": (0b110100 << 26, 16, 0x380, 8),  # VOP3P is above
    "VOP3P": (0b110100111 << 23, 16, 128, 8),
    "DS": (0b110110 << 26, 17, 256, 8),
    "MUBUF": (0b111000 << 26, 18, 128, 8),
    "MTBUF": (0b111010 << 26 | 14 << 19 | 4 << 23, 15, 16, 8),
    "FLAT": (0b110111 << 26, 18, 128, 8),
    "SCRATCH": (0b110111 << 26 | 1 << 14, 18, 128, 8),
    "GLOBAL": (0b110111 << 26 | 2 << 14, 18, 128, 8),
}
SECOND_WORD = {  # operands of the second word
    "SMEM": [0],
    "VOP3": [0x04020100 | 0x100, 0x04000000 | (0x100 << 9) | 0x100, 0],
    "VOP3P": [0x100 | (0x100 << 9) | (0x100 << 18), 0x18000000 | 0x100 | (0x100 << 9), 0x18000100],
    "DS": [0],
    "MUBUF": [0],
    "MTBUF": [0],
    "FLAT": [0x007F0000, 0],
    "SCRATCH": [0x007F0000, 0],
    "GLOBAL": [0x007F0000, 0],
}


def disassemble(arch: str, encodings: list[bytes]) -> list[str | None]:
    """What llvm-mc makes of each encoding; None where it is invalid, or is two instructions."""
    lines = []
    for index, code in enumerate(encodings):
        # s_setprio INDEX before each tells the answers apart; one that lacks a literal swallows the s_nop after it.
        lines.append(" ".join(f"0x{b:02x}" for b in (0xBF8F0000 | index).to_bytes(4, "little")))
        lines.append(" ".join(f"0x{b:02x}" for b in code))
        lines.append("0x77 0x00 0x80 0xbf")
    command = ["llvm-mc-19", "-triple=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-disassemble", "-show-encoding"]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    answers: dict[int, list[tuple[str, int]]] = {}
    current: list[tuple[str, int]] = []
    for line in done.stdout.splitlines():
        words = line.split()
        if words[:2] == ["s_nop", "0x77"]:
            continue
        if words and words[0] == "s_setprio" and not (words[1] == "0" and 0 in answers):
            current = answers.setdefault(int(words[1], 0), [])
        elif words and not words[0].startswith("."):
            current.append((words[0], line.partition("encoding:")[2].count("0x")))
    # Of an invalid opcode the disassembler skips one word and may read the next as an instruction: shorter than asked.
    whole = {k: found[0][0] for k, found in answers.items() if len(found) == 1 and found[0][1] == len(encodings[k])}
    return [whole.get(k) for k in range(len(encodings))]


def probe(arch: str) -> dict[str, dict[int, str]]:
    """The mnemonics of an arch by encoding and opcode, from LLVM."""
    table: dict[str, dict[int, str]] = {}
    for encoding, (fixed, low, count, _) in PROBES.items():
        table[encoding] = {}
        literal = [0x3F800000] if encoding in ("VOP2", "SOPK") else []  # v_madmk_f32, s_setreg_imm32_b32
        for second in SECOND_WORD.get(encoding, [None]) + literal:
            codes, opcodes = [], []
            for opcode in range(count):
                if second in literal and opcode in table[encoding]:
                    continue
                opcodes.append(opcode)
                word = (fixed | opcode << low).to_bytes(4, "little")
                codes.append(word if second is None else word + second.to_bytes(4, "little"))
            if encoding == "SMEM":  # those without operands want the immediate flag off
                codes += [code[:2] + bytes([code[2] & ~2]) + code[3:] for code in codes]
                opcodes += opcodes
            for opcode, name in zip(opcodes, disassemble(arch, codes), strict=True):
                if name is not None:
                    table[encoding].setdefault(opcode, re.sub(r"_(e32|e64|sdwa|dpp)$", "", name))
    return table


def of_cdna4() -> dict[str, dict[int, str]]:
    """The mnemonics of gfx950 by encoding and opcode, from AMD's ISA description."""
    from tinygrad.runtime.autogen.amd.cdna import enum

    table: dict[str, dict[int, str]] = {}
    for encoding in [*PROBES, "VOP3SD", "VOP3PX2"]:
        into = table.setdefault("VOP3" if encoding == "VOP3SD" else encoding, {})
        for member in getattr(enum, f"{encoding}Op"):
            into[member.value] = re.sub(r"_(e32|e64)$", "", member.name.lower())
    return table


def main() -> None:
    """Write the table."""
    gfx90a, gfx942, cdna4 = probe("gfx90a"), probe("gfx942"), of_cdna4()
    table: dict[str, dict[str, dict[str, str]]] = {}
    for encoding, added in cdna4.items():
        of_90a, of_942 = gfx90a.get(encoding, {}), gfx942.get(encoding, {})
        added = {o: n for o, n in added.items() if "xf32" not in n}  # tinygrad adds these for gfx942
        of_950 = {**added, **{o: n for o, n in of_942.items() if o in added}}
        rows = table.setdefault(encoding, {})
        for opcode in sorted({*of_90a, *of_942, *of_950}):
            names = {"gfx90a": of_90a.get(opcode), "gfx942": of_942.get(opcode), "gfx950": of_950.get(opcode)}
            rows[str(opcode)] = {arch: name for arch, name in names.items() if name is not None}
    lines = []
    for encoding, rows in table.items():
        inner = ",\n".join(f"    {json.dumps(o)}: {json.dumps(names)}" for o, names in rows.items())
        lines.append(f"  {json.dumps(encoding)}: {{\n{inner}\n  }}")
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{TABLE}: {sum(map(len, table.values()))} opcodes")


if __name__ == "__main__":
    main()
