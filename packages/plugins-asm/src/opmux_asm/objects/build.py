"""Building all code objects into a folder, with their sources and a manifest. Standard library only."""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from opmux_asm.kernels import ARCHS
from opmux_asm.objects import families, toolchain

MANIFEST = "manifest.json"


def listed(data: bytes) -> dict[str, Any]:
    """A file as the manifest states it."""
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def build(folder: Path) -> Path:
    """Write ``ARCH/FAMILY.s`` and ``.hsaco`` of every family, and the manifest, which is written last.

    The manifest has, for each code object, its checksum and size, those of its source, and how its kernels are
    launched.

    Raises:
        ToolchainError: the assembler is missing or refuses a source.
    """
    pairs = [(family, arch) for arch in ARCHS for family in families.FAMILIES]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        stated = pool.map(lambda pair: one(folder, *pair), pairs)
        objects = {path_of(*pair): facts for pair, facts in zip(pairs, stated, strict=True)}
    manifest = {"toolchain": toolchain.version(), "objects": objects}
    path = folder / MANIFEST
    path.write_text(json.dumps(manifest, indent=1, sort_keys=True))
    return path


def path_of(family: str, arch: str) -> str:
    """A code object's path in the folder."""
    return f"{arch}/{family}.hsaco"


def one(folder: Path, family: str, arch: str) -> dict[str, Any]:
    """Write a family's files; what the manifest says of it."""
    text, launches = families.source(family, arch)
    code = toolchain.assemble(text, arch, family)
    path = folder / path_of(family, arch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(code)
    path.with_suffix(".s").write_text(text)
    return {**listed(code), "source": listed(text.encode()), "kernels": launches}
