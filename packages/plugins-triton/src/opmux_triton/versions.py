"""Whether this package runs with the installed Triton."""

import importlib.metadata

from opmux.plugin import PluginError

OLDEST = (3, 6)
"""The oldest Triton whose kernel language and launcher these kernels were run with."""
NEWEST_MAJOR = 3


def check_triton() -> None:
    """Refuse a Triton that these kernels were not made for; reads the installed metadata, and imports nothing.

    Raises:
        PluginError: if no Triton is installed, or one before 3.6, or a later major version.
    """
    try:
        found = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        raise PluginError('needs triton 3.6 or newer, none is installed: pip install "triton>=3.6,<4"') from None
    if not _is_supported(found):
        raise PluginError(f'needs triton 3.6 or newer (and below 4), found {found}: pip install "triton>=3.6,<4"')


def _is_supported(version: str) -> bool:
    numbers = tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in version.split(".")[:2])
    return numbers[0] == NEWEST_MAJOR and numbers >= OLDEST
