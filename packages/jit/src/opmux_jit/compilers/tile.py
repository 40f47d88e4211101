"""NVIDIA's compiler of CUDA Tile: kernels in cuda.tile Python, to cubins, without a GPU or a driver.

Two steps, each in a process of its own: the package ``cuda-tile`` translates the Python source to Tile IR, and the
program ``tileiras`` compiles that. The process that asks imports nothing of either.

The flags of a source are ``--kernel=NAME``, a ``--parameter=JSON`` for each parameter of the kernel in order, and
``--hint=NAME=NUMBER``; see `tile_translation` for what they say.
"""

import functools
import importlib.metadata
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from opmux_jit.compilers import tile_translation
from opmux_jit.compilers.compiler import failure
from opmux_jit.compilers.nvrtc import write_source
from opmux_jit.compilers.source import Source

NAME = "cutile"
PYTHON_PART, ASSEMBLER = "cuda-tile", "nvidia-cuda-tileiras"
PARTS = (ASSEMBLER, "nvidia-cuda-nvcc", "nvidia-nvvm")
"""Packages that ``tileiras`` runs out of; all of one release."""
TRANSLATION = 1
"""The revision of `tile_translation`, raised where it makes other Tile IR than before."""
REMEDY = 'pip install "opmux-cutile[compiler]"'
NOT_INHERITED = (
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_ROOT",
    "CUDA_TILE_DUMP_TILEIR",
    "CUDA_TILE_DUMP_BYTECODE",
    "CUDA_TILE_TESTING_DISABLE_TOKEN_ORDER",
    "CUDA_TILE_TESTING_DISABLE_DIV",
    "EXPERIMENTAL_CUDA_TILE_DEBUG_BUILD",
)
"""Variables that change what the compiler does. An older toolkit at one of the first three makes it fail."""
PATIENCE_S = 300.0
"""How long one kernel may take to compile."""


@dataclass(frozen=True)
class Tile:
    """The installed compiler.

    Attributes:
        path: the program ``tileiras``.
        version: of ``cuda-tile`` and of ``tileiras``.
        mixed: what is wrong with its parts, or empty.
        library: what else decides its code: ptxas (of ``nvidia-cuda-nvcc``), libnvvm, and the translation.
    """

    path: Path
    version: str
    mixed: str = ""
    library: str = ""

    @property
    def name(self) -> str:
        return NAME

    @property
    def bytecode(self) -> str:
        """The version of Tile IR: that of the release of ``tileiras``."""
        return ".".join(self.version.rpartition("-")[2].split(".")[:2])

    def refusal(self, source: Source) -> str | None:
        """Why it cannot take the source, or None; whether it knows the arch shows when it runs."""
        if source.language != NAME:
            return f"it compiles cuda.tile Python, not {source.language}"
        return self.mixed or None

    def compile(self, source: Source, folder: Path) -> bytes:
        """Compile in the folder.

        Raises:
            CompileFailed: with the command and everything that it printed.
        """
        path, bytecode, cubin = write_source(source, folder), folder / "out.tileirbc", folder / "out.cubin"
        translate = [
            sys.executable, "-P", tile_translation.__file__, str(path), str(bytecode), f"--arch={source.arch}",
            f"--bytecode={self.bytecode}", *source.flags,
        ]  # fmt: skip
        assemble = [str(self.path), str(bytecode), "-o", str(cubin), "--gpu-name", source.arch, "-O3"]
        self._run(translate, bytecode, source, path)
        self._run(assemble, cubin, source, path)
        return cubin.read_bytes()

    def _run(self, command: list[str], made: Path, source: Source, path: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False, cwd=path.parent,
                env=environment, timeout=PATIENCE_S,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise failure(self, source, f"{' '.join(command)}\n{error}", path) from None
        if done.returncode or not made.is_file() or not made.stat().st_size:
            said = f"{' '.join(command)}\nexit status {done.returncode}\n{done.stdout}{done.stderr}"
            raise failure(self, source, said, path)


@functools.cache
def versions() -> dict[str, str] | None:
    """The versions of the packages that the compiler consists of; None where one is missing."""
    try:
        return {name: importlib.metadata.version(name) for name in (PYTHON_PART, *PARTS)}
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def find() -> Tile | None:
    """The installed compiler, or None. Its packages are looked for, not a toolkit's program."""
    found = versions()
    if found is None:
        return None
    path = next((f.locate() for f in importlib.metadata.files(ASSEMBLER) or () if f.name == "tileiras"), None)
    if path is None:
        return None
    library = f"nvcc {found['nvidia-cuda-nvcc']}, nvvm {found['nvidia-nvvm']}, translation {TRANSLATION}"
    return Tile(Path(str(path)), f"{found[PYTHON_PART]}-tileiras-{found[ASSEMBLER]}", mixture(found), library)


def mixture(found: dict[str, str]) -> str:
    """What is wrong where the parts are of different releases; otherwise empty."""
    releases = {found[name].rsplit(".", 1)[0] for name in PARTS}
    if len(releases) == 1:
        return ""
    said = ", ".join(f"{name} {found[name]}" for name in PARTS)
    return f"its parts are of different releases ({said}); install one release of all: {REMEDY}"
