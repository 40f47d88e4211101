"""Hatch's hook: writes and assembles every kernel into the wheel, sources and manifest beside the code objects."""

import shutil
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ObjectsHook(BuildHookInterface[Any]):
    """Adds ``objects/built`` to a wheel, which is of every platform: the code runs on the GPU."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return  # a tree that is worked on assembles at first use, from what the sources then are
        sys.path.insert(0, str(Path(self.root, "src")))
        try:
            from opmux_asm.objects import build
        finally:
            sys.path.pop(0)
        folder = Path(self.root, "build", "objects")
        shutil.rmtree(folder, ignore_errors=True)
        build.build(folder)
        build_data["force_include"][str(folder)] = "opmux_asm/objects/built"
