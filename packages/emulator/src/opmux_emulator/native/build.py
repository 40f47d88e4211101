"""Building the native libraries with a C++ compiler. Imports nothing of this package: the wheel's build uses it too."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent
# No contraction: where the hardware rounds twice, so must this. x86-64-v3 has fused multiply-add and half conversion.
FLAGS = (
    "-std=c++17",
    "-O2",
    "-ftree-vectorize",
    "-fvect-cost-model=dynamic",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fwrapv",
    "-fPIC",
    "-fno-semantic-interposition",
)
UNKNOWN_TO_ZIG = ("-ftree-vectorize", "-fvect-cost-model=dynamic", "-fno-semantic-interposition")
GIVEN_TO_ZIG = {"-march=x86-64-v3": "-march=x86_64_v3"}


@dataclass(frozen=True)
class Library:
    """A native library: what its file is called, where its sources lie, and how it is linked."""

    name: str
    what: str
    folder: Path
    units: tuple[str, ...]
    flags: tuple[str, ...] = ()


INTERPRETER = Library(
    "interpreter.so", "the interpreter", SOURCES,
    (  # the longest to compile come first
        "comparisons", "memory_atomics", "floats", "integers", "scalar", "lds", "run",
        "small_floats", "conversions", "packed", "lanes", "division", "matrix", "memory", "lds_rules",
        "sources", "destinations", "accesses", "addresses", "lds_lanes", "control", "scalar_memory", "rules",
    ),
    ("-fvisibility=hidden",),
)  # fmt: skip
HIP = Library(
    "libamdhip64.so",
    "the HIP library",
    SOURCES.parent / "hip",
    (
        "errors",
        "settings",
        "memory",
        "copies",
        "streams",
        "device",
        "service",
        "images",
        "modules",
        "launch",
        "launches",
    ),
    (
        "-fvisibility=hidden",
        "-ldl",
        "-lpthread",
        "-Wl,-soname,libamdhip64.so.7",
        "-Wl,--version-script,{folder}/versions.map",
    ),
)


class BuildError(RuntimeError):
    """A library could not be built; the message has the compiler's words."""


def digest(library: Library = INTERPRETER) -> str:
    """What the sources and flags are, so that a library built from others is not used."""
    flags = repr((FLAGS, library.units, library.flags, machine_flags(), sources(library)))
    return hashlib.sha256(flags.encode()).hexdigest()[:16]


def sources(library: Library) -> str:
    """What the sources are. The HIP library knows its own, and compares them with those of its service."""
    hashed = hashlib.sha256()
    for path in sorted(
        {p for pattern in ("*.cpp", "*.h", "*.map") for p in (*library.folder.glob(pattern), *SOURCES.glob("*.h"))}
    ):
        hashed.update(path.name.encode() + path.read_bytes())
    return hashed.hexdigest()[:16]


def machine_flags() -> tuple[str, ...]:
    """Instructions that may be used: those of every x86-64 server since 2013, else the compiler's default."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    try:
        known = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    return ("-march=x86-64-v3",) if all(f" {flag} " in known for flag in ("avx2", "fma", "f16c", "bmi2")) else ()


def compiler() -> list[str]:
    """The command of a C++ compiler: ``$CXX``, then what is on the path, then zig's from pip.

    Raises:
        BuildError: there is none.
    """
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and shutil.which(name):
            return [name]
    try:
        subprocess.run([sys.executable, "-m", "ziglang", "version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        raise BuildError(
            "opmux-emulator: no C++ compiler found to build its libraries: install one (g++ or clang++), "
            'set CXX, or pip install "ziglang"'
        ) from None
    return [sys.executable, "-m", "ziglang", "c++"]


def build(target: Path, library: Library = INTERPRETER) -> Path:
    """Compile a library to ``target``, which appears whole or not at all.

    Raises:
        BuildError: no compiler, or it fails.
    """
    command = compiler()
    flags = [*FLAGS, *machine_flags(), *(f for f in library.flags if f.startswith("-f"))]
    flags.append(f'-DOPMUX_SOURCES="{sources(library)}"')
    command += [GIVEN_TO_ZIG.get(f, f) for f in flags if f not in UNKNOWN_TO_ZIG] if "ziglang" in command else flags
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:

        def compile_unit(unit: str) -> str:
            out = f"{folder}/{unit}.o"
            run([*command, "-c", str(library.folder / f"{unit}.cpp"), "-o", out], library)
            return out

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            objects = list(pool.map(compile_unit, library.units))
        made = f"{folder}/{library.name}"
        linking = [flag.format(folder=library.folder) for flag in library.flags]
        run([*command, "-shared", *objects, *linking, "-o", made], library)
        os.replace(made, target)
    return target


def run(command: list[str], library: Library) -> None:
    """Run the compiler; what it says is the error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"opmux-emulator: building {library.what} failed: {' '.join(command)}\n{done.stderr[-4000:]}")
