"""Near matches: what a mistyped name probably meant. Never suggests a package that is not opmux's own."""

import difflib
from collections.abc import Iterable

PACKAGES = {name: f"opmux-{name}" for name in ("triton", "vendor", "deepgemm", "cutile", "asm", "ck")}
"""Backend -> the package of this project that brings it."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that is closest to a word; None where none is close."""
    found = difflib.get_close_matches(word, sorted(set(known)), 1)
    return found[0] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean rms_norm? ``, ready to stand before another remedy; empty where no known name is close."""
    found = nearest(word, known)
    return f"did you mean {found}? " if found else ""


def backend_remedy(name: str, registered: Iterable[str]) -> str:
    """What to do about a backend or ``backend:name`` that no plugin registers.

    Args:
        name: what was asked for.
        registered: every backend and full name of an implementation that is registered.
    """
    registered = set(registered)
    backend = name.partition(":")[0]
    if backend in PACKAGES and backend not in registered:
        return f"pip install {PACKAGES[backend]}, or see `opmux backends`"
    known = {*registered, *PACKAGES}
    found = nearest(name, known) or nearest(backend, known)
    if found is None:
        return "see `opmux backends`"
    if found in registered:
        return f"did you mean {found}? see `opmux backends`"
    return f"did you mean {found}, which needs pip install {PACKAGES[found]}? see `opmux backends`"
