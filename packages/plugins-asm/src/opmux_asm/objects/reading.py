"""Code objects as they are loaded: out of the wheel, checked against its manifest; in a tree, assembled when needed."""

import functools
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from opmux.plugin import BuildFailed
from opmux_asm.objects import build, families, toolchain
from opmux_jit.cache import files

FOLDER = Path(__file__).parent / "built"
"""Where the wheel has them; a tree that is worked on has none."""


@dataclass(frozen=True)
class CodeObject:
    """A code object.

    Attributes:
        code: the ELF file.
        kernels: for each kernel its threads and the letters of its arguments.
    """

    code: bytes
    kernels: dict[str, dict[str, Any]]


@functools.cache
def code_object(family: str, arch: str) -> CodeObject:
    """A family's code object for an arch.

    Raises:
        BuildFailed: the wheel's is missing or not what its manifest states, or there is no assembler.
    """
    if (FOLDER / build.MANIFEST).exists():
        return from_wheel(FOLDER, family, arch)
    try:
        return assembled(family, arch)
    except toolchain.ToolchainError as error:
        raise BuildFailed(str(error)) from None


def from_wheel(folder: Path, family: str, arch: str) -> CodeObject:
    """Read a code object that the build of the wheel wrote, and compare it with the manifest.

    Raises:
        BuildFailed: it is missing, or not what the manifest states.
    """
    name = build.path_of(family, arch)
    try:
        stated = json.loads((folder / build.MANIFEST).read_bytes())["objects"][name]
        code = files.checked(folder / name, stated)
        return CodeObject(code, stated["kernels"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"the manifest has no {error}" if isinstance(error, KeyError) else str(error)
        raise BuildFailed(
            f"asm: {name} is not what the wheel's manifest states: {reason}\n"
            f"  folder:    {folder}\n"
            "  try:       pip install --force-reinstall --no-deps opmux-asm"
        ) from None


def assembled(family: str, arch: str) -> CodeObject:
    """Write and assemble a family, or take what was kept of the same writer, kernels and toolchain.

    Raises:
        ToolchainError: there is no assembler, or it refuses the source.
    """
    key = hashlib.sha256(f"{written_by()} {toolchain.version()} {family} {arch}".encode()).hexdigest()
    folder = platformdirs.user_cache_path("opmux") / "asm"
    kept = folder / f"{key}.json"
    if files.writable_by_others(folder) is None:
        try:
            stated = files.unsealed(kept.read_bytes())
            return CodeObject(files.checked(folder / f"{key}.hsaco", stated["code"]), stated["kernels"])
        except (OSError, ValueError, KeyError):
            pass  # not there, or damaged: assembled again
    text, kernels = families.source(family, arch)
    code = toolchain.assemble(text, arch, family)
    try:
        files.make_folder(folder)
        _publish(folder / f"{key}.hsaco", code)
        _publish(kept, files.sealed({"code": build.listed(code), "kernels": kernels}))
    except OSError:
        pass  # a cache that cannot be written costs the next process the time to assemble
    return CodeObject(code, kernels)


@functools.cache
def written_by() -> str:
    """A checksum of the writer and of the kernels: what they emit depends on nothing else."""
    hashed = hashlib.sha256()
    for folder in ("writer", "kernels", "objects"):
        for path in sorted((FOLDER.parent.parent / folder).glob("*.py")):
            hashed.update(path.name.encode() + path.read_bytes())
    return hashed.hexdigest()


def _publish(path: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.replace(name, path)
