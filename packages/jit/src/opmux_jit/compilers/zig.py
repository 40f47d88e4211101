"""The clang of the package ziglang: a compiler for AMD's archs that pip installs.

Zig's command line passes clang through but does not let it start a linker for code objects, so that compiling,
assembling and linking are three programs. No headers or libraries of ROCm come with it: a source brings the HIP headers
that it includes, and calls no device library.
"""

import importlib.metadata
import importlib.util
import subprocess
from dataclasses import dataclass
from pathlib import Path

from opmux_jit.compilers.compiler import failure
from opmux_jit.compilers.environment import environment
from opmux_jit.compilers.nvrtc import write_source
from opmux_jit.compilers.programs import ANY_ARCH, write_headers
from opmux_jit.compilers.source import Source
from opmux_jit.compilers.standard_library import standard_library

NAME = "zig"
OPTIONS = (
    "-x", "hip", "--cuda-device-only", "--offload-arch={arch}", "-nogpuinc", "-nogpulib", "-O3", "-std=c++17",
)  # fmt: skip
"""Machine code is asked for as assembly, `-S`, which the next steps take."""


@dataclass(frozen=True)
class Zig:
    """An installed package ziglang.

    Attributes:
        path: the program ``zig``.
        version: of the package, which pins its clang.
    """

    path: Path
    version: str
    name: str = NAME

    @property
    def library(self) -> str:
        """The C++ standard library whose headers it finds."""
        options = (option.format(arch=ANY_ARCH) for option in OPTIONS)
        return standard_library(str(self.path), "clang", *options, self._own_headers)

    @property
    def _own_headers(self) -> str:
        return f"-isystem{self.path.parent / 'lib' / 'include'}"

    def refusal(self, source: Source) -> str | None:
        """Why it cannot take the source's arch, or None."""
        if source.vendor != "amd":
            return f"{NAME} is used for amd's archs, not {source.arch}"
        return None

    def compile(self, source: Source, folder: Path) -> bytes:
        """Compile in the folder.

        Raises:
            CompileFailed: with the command of the step that failed and everything that it printed; also where the
                source calls a function that nothing defines.
        """
        write_headers(source, folder)
        path = write_source(source, folder)
        places = [*([folder / "headers"] if source.headers else []), *source.include_dirs]
        assembly, relocatable, out = folder / "out.s", folder / "out.o", folder / "out.bin"
        steps = (
            ("clang", *(option.format(arch=source.arch) for option in OPTIONS), *source.flags,
             *(f"-I{place}" for place in places), self._own_headers, "-S", "-o",
             assembly, path),
            ("clang", "--target=amdgcn-amd-amdhsa", f"-mcpu={source.arch}", "-c", "-o", relocatable, assembly),
            ("ld.lld", "-shared", "--build-id=none", "-z", "defs", "-o", out, relocatable),
        )  # fmt: skip
        for step in steps:
            self._run([str(self.path), *map(str, step)], source, path, folder)
        return out.read_bytes()

    def _run(self, command: list[str], source: Source, path: Path, folder: Path) -> None:
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False, cwd=folder, env=environment()
            )
        except OSError as error:
            raise failure(self, source, f"{' '.join(command)}\n{error}", path) from None
        if done.returncode:
            said = f"{' '.join(command)}\nexit status {done.returncode}\n{done.stdout}{done.stderr}"
            raise failure(self, source, said, path)


def find() -> Zig | None:
    """The installed package, or None."""
    found = importlib.util.find_spec("ziglang")
    places = found.submodule_search_locations if found is not None else None
    if not places:
        return None
    path = Path(next(iter(places))) / "zig"
    try:
        version = importlib.metadata.version("ziglang")
    except importlib.metadata.PackageNotFoundError:
        return None
    return Zig(path, version) if path.is_file() else None
