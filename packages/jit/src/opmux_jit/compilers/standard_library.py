"""The C++ standard library whose headers a compiler of device code finds: they change what it makes of a source."""

import functools
import re
import subprocess
import tempfile
from pathlib import Path

from opmux_jit.compilers.environment import environment

MACROS = {"__GLIBCXX__": "libstdc++", "_LIBCPP_VERSION": "libc++"}
"""The macros that hold the version: libstdc++'s is the date of its release."""
PATIENCE_S = 20.0


@functools.cache
def standard_library(*command: str) -> str:
    """The library and its version, as ``libstdc++ 20220819``; an empty string where there is none.

    Args:
        *command: a compiler with the options that decide where it looks.
    """
    with tempfile.TemporaryDirectory(prefix="opmux-jit-") as folder:
        asks = Path(folder) / "version.hip"
        asks.write_text("#include <version>\n")
        try:
            done = subprocess.run(
                [*command, "-std=c++20", "-E", "-dM", str(asks)],
                capture_output=True, text=True, errors="replace", timeout=PATIENCE_S, check=False, cwd=folder,
                env=environment(),
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return ""
    stated = dict(re.findall(r"^#define (\w+) (\d+)$", done.stdout, re.MULTILINE))
    return next((f"{name} {stated[macro]}" for macro, name in MACROS.items() if macro in stated), "")
