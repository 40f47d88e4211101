"""The ``OPMUX_`` variables of the environment: value, meaning, and what is wrong with them."""

import os
from collections.abc import Callable
from pathlib import Path

from opmux.arch import known_arch
from opmux.errors import OpmuxError
from opmux.near import did_you_mean
from opmux.plugins import discovery, loading
from opmux.policy import BUILDS, ENVIRONMENT, FALSE_WORDS, TRUE_WORDS, split_names


def variables() -> list[dict[str, str | None]]:
    """Every variable that opmux reads, set or not, and every other variable with its prefix that is set."""
    listed = []
    for name, meaning in ENVIRONMENT.items():
        value = os.environ.get(name)
        judge = _JUDGES.get(name)
        problem = judge(value) if judge is not None and value else None
        listed.append({"name": name, "value": value, "meaning": meaning, "problem": problem})
    for name in sorted(os.environ):
        if name.startswith("OPMUX_") and name not in ENVIRONMENT:
            problem = f"opmux reads no such variable; {did_you_mean(name, ENVIRONMENT)}".rstrip("; ")
            listed.append({"name": name, "value": os.environ[name], "meaning": None, "problem": problem})
    return listed


def _unknown(names: str, known: set[str], what: str) -> str | None:
    strangers = [name for name in split_names(names) if name not in known]
    return f"{what} {', '.join(strangers)}" if strangers else None


def _backends(value: str) -> str | None:
    return _unknown(value, set(loading.known_names()), "not registered:")


def _plugins(value: str) -> str | None:
    installed = {e.name for e in discovery.installed()}
    return _unknown(value, installed, "not installed:")


def _arch(value: str) -> str | None:
    try:
        known_arch(value)
    except OpmuxError as error:
        return str(error)
    return None


def _folder(value: str) -> str | None:
    return None if Path(value).is_dir() else "no such folder"


def _bundles(value: str) -> str | None:
    gone = [part for part in value.split(os.pathsep) if part.strip() and not Path(part).is_dir()]
    return f"no such folder: {', '.join(gone)}" if gone else None


def _level(value: str) -> str | None:
    levels = ("debug", "info", "warning", "error")
    return None if value.strip().lower() in levels else f"expected one of {', '.join(levels)}"


def _switch(value: str) -> str | None:
    return None if value.strip().lower() in TRUE_WORDS + FALSE_WORDS else "expected 0 or 1"


def _how_to_build(value: str) -> str | None:
    return None if value.strip().lower() in BUILDS else f"expected {' or '.join(BUILDS)}"


_JUDGES: dict[str, Callable[[str], str | None]] = {
    "OPMUX_PREFER": _backends,
    "OPMUX_DISABLE": _backends,
    "OPMUX_PLUGINS": _plugins,
    "OPMUX_ARCH": _arch,
    "OPMUX_TUNED": _folder,
    "OPMUX_BUNDLES": _bundles,
    "OPMUX_BUILD": _how_to_build,
    "OPMUX_NO_JIT": _switch,
    "OPMUX_NATIVE_LAUNCH": _switch,
    "OPMUX_LOG": _level,
    "OPMUX_STRICT": _switch,
    "OPMUX_CHECK": _switch,
}
