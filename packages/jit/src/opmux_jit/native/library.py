"""The launcher as Python sees it: loaded once, built first where no wheel brought it."""

import functools
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import platformdirs

from opmux_jit.native import build


def path_of_launcher() -> Path:
    """The extension: the wheel's where it was built from these very sources, else one built here and kept.

    Raises:
        build.BuildError: it is to be built and cannot be.
    """
    name = build.file_name()
    brought = build.SOURCES / name
    if brought.exists():
        return brought
    kept = platformdirs.user_cache_path("opmux") / "launcher" / name
    return kept if kept.exists() else build.build(kept)


@functools.cache
def launcher() -> ModuleType:
    """The loaded extension.

    Raises:
        build.BuildError: it is to be built and cannot be.
        ImportError: it cannot be loaded.
    """
    path, name = path_of_launcher(), f"opmux_jit.native.{build.MODULE}"
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[name] = module
    return module
