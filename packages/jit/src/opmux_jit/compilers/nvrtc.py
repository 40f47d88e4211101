"""NVRTC, NVIDIA's compiler as a library: called in this process, without a toolkit.

It is found in the wheel ``nvidia-cuda-nvrtc`` (torch's CUDA builds bring it), in a toolkit, or where the loader
looks. It always compiles to machine code, never to PTX: drivers refuse PTX of a newer toolkit and take its cubins.

Source: NVRTC documentation, "API".
"""

import ctypes
import functools
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opmux_jit.compilers.compiler import failure
from opmux_jit.compilers.source import Source
from opmux_jit.errors import CompilerMissing

_FILE = re.compile(r"libnvrtc\.so\.(\d+)(?:\.(\d+))?$")
_WHOLE = re.compile(r"libnvrtc\.so\.(\d+\.\d+\.\d+)$")
_WHEEL = re.compile(r"nvidia_cuda_nvrtc(?:_cu\d+)?-(\d+(?:\.\d+)+)\.dist-info$")
_SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
_COMPILE_ERROR = 6
OLDEST = (12, 0)
"""The oldest NVRTC that is used: the first that knows sm_90a."""

DEFAULT_FLAGS = ("--std=c++17",)


class _NoOutput(Exception):
    """NVRTC did not hand over what it made; the message says why."""


class Nvrtc:
    """One NVRTC library."""

    name = "nvrtc"
    library = ""

    def __init__(self, path: Path) -> None:
        """Load the library.

        Raises:
            CompilerMissing: where it cannot be loaded or is too old.
        """
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path))
            major, minor = ctypes.c_int(), ctypes.c_int()
            self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        except (OSError, AttributeError) as error:
            raise CompilerMissing(f"nvrtc: {path} cannot be loaded: {error}") from None
        self.version = stated_version(path) or f"{major.value}.{minor.value}"
        if (major.value, minor.value) < OLDEST:
            wanted = ".".join(map(str, OLDEST))
            raise CompilerMissing(
                f"nvrtc: {path} is version {self.version}, {wanted} or newer is needed; "
                'pip install -U "nvidia-cuda-nvrtc"'
            )
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    @functools.cached_property
    def archs(self) -> frozenset[int]:
        """The numbers of the archs that it compiles for: 90 stands for sm_90 and sm_90a."""
        count = ctypes.c_int()
        self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._library.nvrtcGetSupportedArchs(numbers)
        return frozenset(numbers)

    def refusal(self, source: Source) -> str | None:
        """Why it cannot take the source's arch, or None."""
        if source.vendor != "nvidia":
            return f"nvrtc compiles for NVIDIA's archs, not {source.arch}"
        number = int(source.arch.removeprefix("sm_").rstrip("af"))
        if number not in self.archs:
            newest, oldest = max(self.archs), min(self.archs)
            return f"nvrtc {self.version} compiles for sm_{oldest} to sm_{newest}, not {source.arch}"
        return None

    def compile(self, source: Source, folder: Path) -> bytes:
        """Compile to a cubin. The source is written to the folder only where compiling fails.

        Raises:
            CompileFailed: with NVRTC's whole log.
        """
        library, program = self._library, ctypes.c_void_p()
        names = [name.encode() for name in source.headers]
        texts = [text.encode() for text in source.headers.values()]
        array = ctypes.c_char_p * len(names)
        file_name = f"{source.name}{source.suffix}"
        created = library.nvrtcCreateProgram(
            ctypes.byref(program), source.text.encode(), file_name.encode(), len(names), array(*texts), array(*names)
        )
        if created:
            raise failure(self, source, self._said(created), write_source(source, folder))
        try:
            options = [f"--gpu-architecture={source.arch}", *DEFAULT_FLAGS, *source.flags]
            options += [f"--include-path={place}" for place in source.include_dirs]
            encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            result = library.nvrtcCompileProgram(program, len(options), encoded)
            if result:
                log = self._log(program) if result == _COMPILE_ERROR else ""
                said = log.strip("\0\n") or f"{self._said(result)}; options: {' '.join(options)}"
                raise failure(self, source, said, write_source(source, folder))
            try:
                return self._bytes(program, "CUBIN")
            except _NoOutput as problem:
                raise failure(self, source, str(problem), write_source(source, folder)) from None
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _said(self, code: int) -> str:
        return str(self._library.nvrtcGetErrorString(code).decode())

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._ask(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        if not size.value:
            raise _NoOutput(f"nvrtcGet{what}Size: it has 0 bytes")
        held = ctypes.create_string_buffer(size.value)
        self._ask(f"nvrtcGet{what}", program, held)
        return held.raw

    def _ask(self, call: str, *arguments: Any) -> None:
        code = getattr(self._library, call)(*arguments)
        if code:
            raise _NoOutput(f"{call}: {self._said(code)}")

    def _log(self, program: ctypes.c_void_p) -> str:
        try:
            return self._bytes(program, "ProgramLog").decode("utf-8", "replace")
        except _NoOutput:
            return ""


def write_source(source: Source, folder: Path) -> Path:
    """Write a source into a folder, for the compiler or for whoever reads an error."""
    path = folder / f"{source.name}{source.suffix}"
    path.write_text(source.text, encoding="utf-8")
    return path


def candidates() -> Iterator[Path]:
    """Where an NVRTC may be: wheels first, the newest first; then toolkits; then the system's loader."""
    wheels: list[Path] = []
    for place in sys.path:
        wheels += Path(place or ".").glob("nvidia/*/lib/libnvrtc.so.*")
    toolkits: list[Path] = []
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            toolkits += Path(home).glob("lib64/libnvrtc.so.*")
    for found in (wheels, toolkits):
        fit = [path for path in dict.fromkeys(found) if _FILE.search(path.name)]
        yield from sorted(fit, key=_numbers, reverse=True)
    yield from map(Path, _SONAMES)


def _numbers(path: Path) -> tuple[int, int]:
    match = _FILE.search(path.name)
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)


def stated_version(path: Path) -> str | None:
    """The version of a library, patch release included, by the names of files; None where they do not say.

    The library itself states no patch release, and takes tens of milliseconds to load.
    """
    major = str(_numbers(path)[0])
    real = _WHOLE.search(path.resolve().name)
    if real is not None:
        return real[1]
    if len(path.parents) < 4:
        return None
    try:
        names = [entry.name for entry in os.scandir(path.parents[3])]
    except OSError:
        return None
    found = {match[1] for name in names if (match := _WHEEL.match(name)) and match[1].split(".")[0] == major}
    return found.pop() if len(found) == 1 else None


@functools.cache
def likely_version() -> str | None:
    """The version of the NVRTC that `find` will find, without loading it; None where files do not say."""
    first = next(candidates())
    version = stated_version(first)
    if version is None or tuple(map(int, version.split(".")[:2])) < OLDEST:
        return None
    return version


@functools.cache
def find() -> Nvrtc | None:
    """The first NVRTC that loads and is new enough, or None."""
    for path in candidates():
        try:
            return Nvrtc(path)
        except CompilerMissing:
            continue
    return None
