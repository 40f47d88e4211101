"""Which versions of transformers the patches support and are tested with."""

import re

import transformers

from opmux.errors import UnsupportedCall

OLDEST = (5, 17)
NEWEST = (5, 23)
"""Both ends are tested whole; docs/users/transformers.md says what was tested of the versions between them."""


def check_transformers(version: str | None = None) -> None:
    """Refuse a version of transformers that the patches do not support.

    Args:
        version: the version to check; None means the installed one.

    Raises:
        UnsupportedCall: if it is below `OLDEST` or above `NEWEST`.
    """
    version = transformers.__version__ if version is None else version
    numbers = re.match(r"(\d+)\.(\d+)", version)
    known = numbers is not None and OLDEST <= (int(numbers[1]), int(numbers[2])) <= NEWEST
    if not known:
        low, high = (".".join(map(str, end)) for end in (OLDEST, NEWEST))
        raise UnsupportedCall(
            f"opmux_transformers: `transformers` expected a version from {low} to {high}, got {version};"
            f' pip install "transformers>={low},<{NEWEST[0]}.{NEWEST[1] + 1}", or see whether a newer'
            " opmux-transformers knows it"
        )
