"""Hatch's hook: compiles the kernels that calls of models launch into the wheel, where the compiler is installed.

A release is built where opmux-cutile's `compiler` extra and opmux-jit are installed. Elsewhere, as in the isolated
environment in which pip builds from a clone, the wheel has no cubins, and kernels are compiled at first use.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CubinsHook(BuildHookInterface[Any]):
    """Adds ``built`` to a wheel, which is of every platform: the code runs on the GPU."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return  # a tree that is worked on compiles at first use, from what the sources then are
        sys.path.insert(0, str(Path(self.root, "src")))
        os.environ["OPMUX_PLUGINS"] = "cutile"
        try:
            from opmux_cutile.shipping import kernels
            from opmux_jit.compilers import tile
        except ImportError as missing:
            self.app.display_warning(f"no cubins in the wheel: {missing}")
            return
        finally:
            sys.path.pop(0)
        if tile.find() is None:
            self.app.display_warning('no cubins in the wheel: the compiler is not there ("opmux-cutile[compiler]")')
            return
        folder = Path(self.root, "build", "cubins")
        shutil.rmtree(folder, ignore_errors=True)
        for line in kernels.build(folder, kernels.ARCHS, os.cpu_count() or 1):
            self.app.display_info(line)
        build_data["force_include"][str(folder)] = "opmux_cutile/built"
