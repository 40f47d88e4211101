"""Mnemonics by arch, encoding and opcode, from the table that ``scripts/make_opcode_table.py`` writes."""

import functools
import json
from collections.abc import Mapping
from importlib import resources

ARCHS = ("gfx90a", "gfx942", "gfx950")
"""The archs that can be executed."""


@functools.cache
def opcodes(arch: str) -> Mapping[str, Mapping[int, str]]:
    """``{encoding: {opcode: mnemonic}}`` of an arch."""
    table = json.loads(resources.files(__package__).joinpath("opcodes.json").read_text())
    return {
        encoding: {int(opcode): names[arch] for opcode, names in rows.items() if arch in names}
        for encoding, rows in table.items()
    }
