"""Building the launcher with a C++ compiler. Imports nothing of this package: the wheel's build uses it too."""

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent
MODULE = "_launcher"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-s", "-fvisibility=hidden", "-Wall", "-Wextra")


class BuildError(RuntimeError):
    """The launcher could not be built; the message has the compiler's words."""


def digest() -> str:
    """What the sources are, so that an extension built from others is not used."""
    hashed = hashlib.sha256(repr((FLAGS, sysconfig.get_config_var("EXT_SUFFIX"))).encode())
    for path in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        hashed.update(path.name.encode() + path.read_bytes())
    return hashed.hexdigest()[:16]


def file_name() -> str:
    """The extension's file, for these sources and this Python."""
    return f"{MODULE}-{digest()}{sysconfig.get_config_var('EXT_SUFFIX')}"


def compiler() -> str:
    """The name of a C++ compiler: ``$CXX``, else what is on the path.

    Raises:
        BuildError: there is none.
    """
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and shutil.which(name):
            return name
    raise BuildError("opmux-jit: no C++ compiler found to build the launcher: install g++ or clang++, or set CXX")


def build(target: Path) -> Path:
    """Compile the launcher to ``target``, which appears whole or not at all.

    Raises:
        BuildError: no compiler, no pybind11, or compiling fails.
    """
    try:
        import pybind11
    except ModuleNotFoundError:
        raise BuildError('opmux-jit: building the launcher needs pybind11: pip install "opmux-jit[native]"') from None
    folders = [pybind11.get_include(), sysconfig.get_paths()["include"]]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = f"{folder}/{MODULE}.so"
        sources = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
        # The system's headers are not held to the warnings.
        command = [compiler(), *FLAGS, *(f"-isystem{f}" for f in folders), *sources, "-o", made, "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = f"{' '.join(command)}\n{done.stderr[-4000:]}"
            raise BuildError(f"opmux-jit: building the launcher failed: {said}")
        os.replace(made, target)
    return target
