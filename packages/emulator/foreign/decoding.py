"""All code objects of the wheel: loaded and decoded, and what of them has no semantics here."""

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from opmux_emulator import CodeObjectError, Program
from opmux_emulator.isa.matrix import shape_of
from opmux_emulator.native import library as native


@dataclass
class Decoded:
    """What was found: how often each mnemonic occurs, in how many files one without semantics, and what failed."""

    files: int = 0
    mnemonics: Counter[str] = field(default_factory=Counter)
    without: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    @property
    def instructions(self) -> int:
        return self.mnemonics.total()


def decode(path: Path) -> tuple[Counter[str], list[str]]:
    """The mnemonics of a file's code, up to its last s_endpgm, and its errors."""
    try:
        program = Program.load(path)
        _ = program.kernel()
        _, code = program.code
    except CodeObjectError as error:
        return Counter(), [f"{path.name}: {error}"]
    end = max((k for k, i in enumerate(code) if i.name == "s_endpgm"), default=len(code) - 1)
    errors = [f"{path.name}: {i.error}" for i in code[: end + 1] if i.error]
    return Counter(i.name for i in code[: end + 1] if i.name), errors


def decode_all(folder: Path, processes: int) -> Decoded:
    """Decode every file under a folder."""
    known, found = native.operations(), Decoded()
    with ProcessPoolExecutor(processes) as pool:
        for mnemonics, errors in pool.map(decode, sorted(folder.rglob("*.co")), chunksize=16):
            found.files += 1
            found.mnemonics += mnemonics
            found.failed += errors
            found.without.update(n for n in mnemonics if n not in known and shape_of(n) is None)
    return found
