"""Hatch's hook: builds the launcher into the wheel where a C++ compiler is installed; its source travels along."""

import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "src/opmux_jit/native"


class LauncherHook(BuildHookInterface[Any]):
    """Adds ``native/_launcher-DIGEST.SUFFIX`` to a wheel, which is then for this Python on this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return  # a tree that is worked on builds at first use, from what the sources then are
        spec = importlib.util.spec_from_file_location("launcher_build", Path(self.root, PACKAGE, "build.py"))
        if spec is None or spec.loader is None:
            raise RuntimeError(f"{PACKAGE}/build.py cannot be loaded")
        build = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = build
        spec.loader.exec_module(build)
        try:
            made = build.build(Path(self.root, "build", build.file_name()))
        except build.BuildError as error:
            self.app.display_warning(f"the wheel has no built launcher: {error}")
            return
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["force_include"][str(made)] = f"opmux_jit/native/{made.name}"
        build_data["tag"] = f"{python}-{python}-{platform}"
        build_data["pure_python"] = False
