"""Hatch's hook: builds the native libraries into the wheel where a C++ compiler is installed, beside their sources."""

import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "src/opmux_emulator/native"


class InterpreterHook(BuildHookInterface[Any]):
    """Adds ``native/DIGEST-interpreter.so`` and ``-libamdhip64.so`` to a wheel, which is then of this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return  # a tree that is worked on builds at first use, from what the sources then are
        spec = importlib.util.spec_from_file_location("interpreter_build", Path(self.root, PACKAGE, "build.py"))
        if spec is None or spec.loader is None:
            raise RuntimeError(f"{PACKAGE}/build.py cannot be loaded")
        build = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = build
        spec.loader.exec_module(build)
        for library in (build.INTERPRETER, build.HIP):
            name = f"{build.digest(library)}-{library.name}"
            try:
                made = build.build(Path(self.root, "build", name), library)
            except build.BuildError as error:
                self.app.display_warning(f"the wheel has no built libraries: {error}")
                return
            build_data["force_include"][str(made)] = f"opmux_emulator/native/{name}"
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["pure_python"] = False
