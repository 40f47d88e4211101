"""Which plugins are installed: entry points, without importing any of them."""

import importlib.metadata
import os

from opmux import policy

ENTRY_POINT_GROUP = "opmux.backends"


def entry_points() -> list[tuple[importlib.metadata.EntryPoint, str, str]]:
    """The entry points that may be loaded, each with the name and the version of its distribution.

    Sorted, so that nothing depends on the order of installation. ``OPMUX_PLUGINS``, where set, is an allow-list.
    """
    allowed = policy.split_names(os.environ.get("OPMUX_PLUGINS")) if "OPMUX_PLUGINS" in os.environ else None
    found = [e for e in installed() if allowed is None or e.name in allowed]
    named = [(e, e.dist.name if e.dist else "?", e.dist.version if e.dist else "?") for e in found]
    return sorted(named, key=lambda item: (item[0].name, item[1], item[0].value))


def installed() -> importlib.metadata.EntryPoints:
    """Every installed entry point of a plugin, whether or not it may be loaded."""
    return importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
