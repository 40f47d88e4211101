"""The launcher as Python sees it: loaded once, built first where no wheel brought it."""

import functools
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import platformdirs

from opmux_jit.cache import files
from opmux_jit.native import build


def path_of_launcher() -> Path:
    """The extension: the wheel's where it was built from these very sources, else one built here and kept.

    What was kept is used only if its checksum is right and nobody else can write to its folder.

    Raises:
        build.BuildError: it is to be built and cannot be.
    """
    name = build.file_name()
    brought = build.SOURCES / name
    if brought.exists():
        return brought
    kept = platformdirs.user_cache_path("opmux") / "launcher" / name
    refusal = files.writable_by_others(kept.parent)
    if refusal is not None:
        raise build.BuildError(f"opmux-jit: the launcher cannot be kept: {refusal}")
    return kept if _is_whole(kept) else _built(kept)


def is_built() -> bool:
    """Whether `launcher` needs no compiler."""
    name = build.file_name()
    kept = platformdirs.user_cache_path("opmux") / "launcher" / name
    return (build.SOURCES / name).exists() or (files.writable_by_others(kept.parent) is None and _is_whole(kept))


def _is_whole(kept: Path) -> bool:
    try:
        files.checked(kept, files.unsealed(_manifest(kept).read_bytes())[kept.name])
    except (OSError, ValueError, KeyError):
        return False
    return True


def _built(kept: Path) -> Path:
    try:
        files.make_folder(kept.parent)
        build.build(kept)
        manifest = _manifest(kept)
        temporary = manifest.with_name(f".{manifest.name}.{os.getpid()}")
        files.write_file(temporary, files.sealed(files.listed({kept.name: kept.read_bytes()})))
        temporary.rename(manifest)
    except OSError as error:
        raise build.BuildError(f"opmux-jit: the launcher cannot be kept in {kept.parent}: {error}") from None
    return kept


def _manifest(kept: Path) -> Path:
    return kept.with_suffix(".json")


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
