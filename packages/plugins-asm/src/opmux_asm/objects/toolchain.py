"""The assembler and linker: clang and lld as the package ziglang brings them. Standard library only."""

import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path


class ToolchainError(RuntimeError):
    """The assembler is missing or refused a source; the message has its words."""


def version() -> str:
    """The package and its version, or an empty string where it is not installed."""
    try:
        return f"ziglang {importlib.metadata.version('ziglang')}"
    except importlib.metadata.PackageNotFoundError:
        return ""


def assemble(text: str, arch: str, name: str) -> bytes:
    """The code object of an assembly source.

    Args:
        text: the source.
        arch: gfx942 or gfx950.
        name: what errors call it.

    Raises:
        ToolchainError: the assembler is not installed, or refuses the source.
    """
    if not version():
        raise ToolchainError(
            f"asm: {name} for {arch} is not assembled, and there is no assembler: "
            'install a wheel of opmux-asm, or pip install "opmux-asm[toolchain]"'
        )
    target = ["-triple", "amdgcn-amd-amdhsa", "-target-cpu", arch, "-filetype", "obj"]
    with tempfile.TemporaryDirectory() as folder:
        source, relocatable, linked = (Path(folder, f"{name}.{suffix}") for suffix in ("s", "o", "hsaco"))
        source.write_text(text)
        _run(["clang", "-cc1as", *target, "-o", str(relocatable), str(source)], name, arch)
        _run(["ld.lld", "-shared", "--build-id=none", str(relocatable), "-o", str(linked)], name, arch)
        return linked.read_bytes()


def _run(words: list[str], name: str, arch: str) -> None:
    command = [sys.executable, "-m", "ziglang", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolchainError(f"asm: {words[0]} refused {name} for {arch}:\n{done.stderr[-4000:]}")
