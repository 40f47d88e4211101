"""Compilers that are programs: nvcc, hipcc, and clang for HIP. For plugins that need their headers or libraries."""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opmux_jit.compilers.compiler import failure
from opmux_jit.compilers.environment import environment
from opmux_jit.compilers.nvrtc import write_source
from opmux_jit.compilers.source import Source
from opmux_jit.compilers.standard_library import standard_library

ANY_ARCH = "gfx942"
"""Of AMD's, for questions whose answer does not depend on it."""
PATIENCE_S = 20.0
"""How long a program may take to say its version."""


@dataclass(frozen=True)
class Kind:
    """What the compilers of one name have in common.

    Attributes:
        vendor: whose archs it compiles for.
        homes: variables with the folder of an installation, whose ``bin`` has the program.
        default: the usual folder of an installation.
        pattern: finds the version in what ``--version`` prints.
        options: from an arch to the options that make machine code of it.
    """

    name: str
    program: str
    vendor: str
    homes: tuple[str, ...]
    default: str
    pattern: str
    options: tuple[str, ...]


KINDS = (
    Kind("nvcc", "nvcc", "nvidia", ("CUDA_HOME", "CUDA_PATH"), "/usr/local/cuda", r"release (?:[\d.]+, V)?([\d.]+)",
         ("-cubin", "-arch={arch}", "-std=c++17")),
    Kind("hipcc", "hipcc", "amd", ("ROCM_PATH", "HIP_PATH"), "/opt/rocm", r"HIP version: ([\d.]+)",
         ("--genco", "--no-gpu-bundle-output", "--offload-arch={arch}", "-O3", "-std=c++17")),
    Kind("clang", "clang++", "amd", ("LLVM_PATH",), "/opt/rocm/llvm", r"clang version ([\d.]+)",
         ("-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "--offload-arch={arch}", "-nogpuinc",
          "-nogpulib", "-O3", "-std=c++17")),
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """One installed compiler program."""

    kind: Kind
    path: Path
    version: str

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def library(self) -> str:
        """The C++ standard library whose headers it finds; of compilers for AMD's archs."""
        if self.kind.vendor != "amd":
            return ""
        options = (option.format(arch=ANY_ARCH) for option in self.kind.options if option != "--genco")
        return standard_library(str(self.path), *options)

    def refusal(self, source: Source) -> str | None:
        """Why it cannot take the source's arch, or None; whether it knows the arch shows when it runs."""
        if source.vendor != self.kind.vendor:
            return f"{self.name} is used for {self.kind.vendor}'s archs, not {source.arch}"
        return None

    def compile(self, source: Source, folder: Path) -> bytes:
        """Compile in the folder.

        Raises:
            CompileFailed: with the command and everything that it printed.
        """
        write_headers(source, folder)
        out = folder / "out.bin"
        path = write_source(source, folder)
        places = [*([folder / "headers"] if source.headers else []), *source.include_dirs]
        command = [
            str(self.path), *(option.format(arch=source.arch) for option in self.kind.options), *source.flags,
            *(f"-I{place}" for place in places), "-o", str(out), str(path),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False, cwd=folder, env=environment()
            )
        except OSError as error:
            raise failure(self, source, f"{' '.join(command)}\n{error}", path) from None
        if done.returncode or not out.is_file() or not out.stat().st_size:
            said = f"{' '.join(command)}\nexit status {done.returncode}\n{done.stdout}{done.stderr}"
            raise failure(self, source, said, path)
        return out.read_bytes()


def write_headers(source: Source, folder: Path) -> None:
    """Write the headers that a source has in memory to the folder's ``headers``."""
    for name, text in source.headers.items():
        header = folder / "headers" / name
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(text, encoding="utf-8")


def find(kind: Kind) -> Program | None:
    """The installed compiler of a kind: in the folder that a variable names, on the path, in the usual folder."""
    homes = [os.environ[v] for v in kind.homes if os.environ.get(v)]
    places: Sequence[str | None] = [*(f"{home}/bin" for home in homes), None, f"{kind.default}/bin"]
    for place in places:
        path = shutil.which(kind.program, path=place)
        if path and (version := _version(path, kind.pattern)):
            return Program(kind, Path(path), version)
    return None


@functools.cache
def _version(path: str, pattern: str) -> str | None:
    """What it says its version is; None where it does not run."""
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(pattern, said.stdout)
    return match[1] if match else None
