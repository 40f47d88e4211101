"""Which toolchains this machine has: looked up, never imported; plugins add those that they know."""

import importlib.metadata
import os
import re
import shutil
import subprocess
from pathlib import Path

from opmux.errors import PLUGIN_FAULTS
from opmux.log import logger
from opmux.plugins import loading

_TRITON = ("triton", "triton-rocm", "pytorch-triton", "pytorch-triton-rocm", "triton-windows")
"""The distributions that bring the module ``triton``."""

_COMPILERS = {
    "nvcc": (("CUDA_HOME", "CUDA_PATH"), "/usr/local/cuda", r"release ([\d.]+)"),
    "hipcc": (("ROCM_PATH", "HIP_PATH"), "/opt/rocm", r"HIP version: ([\d.]+)"),
}
"""Name -> variables with its installation folder, the default folder, and the pattern of its version text."""

_PATIENCE_S = 20.0


def toolchains() -> list[dict[str, str | None]]:
    """Triton, nvcc, hipcc and what plugins look for: name, version and path, each None if it is not known."""
    found: list[dict[str, str | None]] = [{"name": "triton", "version": _triton_version(), "path": None}]
    for name, (variables, default, pattern) in _COMPILERS.items():
        path = _path_of(name, variables, default)
        found.append({"name": name, "version": _version_of(path, pattern) if path else None, "path": path})
    return found + _of_plugins()


def _of_plugins() -> list[dict[str, str | None]]:
    """What the plugins' own functions find; one that fails is reported and hides no other."""
    found: list[dict[str, str | None]] = []
    for plugin in loading.loaded_plugins():
        for look in plugin.toolchains:
            try:
                found += [{key: tool[key] for key in ("name", "version", "path")} for tool in look()]
            except PLUGIN_FAULTS as error:
                logger.warning("plugin %s: looking for its toolchains failed: %r", plugin.name, error)
    return found


def _triton_version() -> str | None:
    for distribution in _TRITON:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _path_of(name: str, variables: tuple[str, ...], default: str) -> str | None:
    homes = [os.environ[v] for v in variables if os.environ.get(v)] + [default]
    return next(
        (
            path
            for place in (None, *(str(Path(home) / "bin") for home in homes))
            if (path := shutil.which(name, path=place))
        ),
        None,
    )


def _version_of(path: str, pattern: str) -> str | None:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(pattern, said.stdout)
    return match[1] if match else None
