"""Building the interpreter with a C++ compiler. Imports nothing of this package: the wheel's build uses it too."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent
UNITS = ("scalar", "vector", "memory", "lds", "matrix", "rules", "run")
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
NAME = "interpreter.so"


class BuildError(RuntimeError):
    """The interpreter could not be built; the message has the compiler's words."""


def digest() -> str:
    """What the sources are, so that a library built from others is not used."""
    hashed = hashlib.sha256(repr((FLAGS, UNITS, machine_flags())).encode())
    for path in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
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
            "opmux-emulator: no C++ compiler found to build the interpreter: install one (g++ or clang++), "
            'set CXX, or pip install "ziglang"'
        ) from None
    return [sys.executable, "-m", "ziglang", "c++"]


def build(target: Path) -> Path:
    """Compile the interpreter to ``target``, which appears whole or not at all.

    Raises:
        BuildError: no compiler, or it fails.
    """
    command = [*compiler(), *FLAGS, *machine_flags()]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:

        def compile_unit(unit: str) -> str:
            out = f"{folder}/{unit}.o"
            run([*command, "-c", str(SOURCES / f"{unit}.cpp"), "-o", out])
            return out

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            objects = list(pool.map(compile_unit, UNITS))
        made = f"{folder}/{NAME}"
        run([*command, "-shared", *objects, "-o", made])
        os.replace(made, target)
    return target


def run(command: list[str]) -> None:
    """Run the compiler; what it says is the error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"opmux-emulator: building the interpreter failed: {' '.join(command)}\n{done.stderr[-4000:]}")
