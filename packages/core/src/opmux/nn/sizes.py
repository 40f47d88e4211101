"""Checks of sizes."""

from opmux.errors import invalid


def check_sizes(module: str, **sizes: int) -> None:
    """Refuse what is not a whole number of 1 or more.

    Raises:
        InvalidArgument: Names the first such argument.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise invalid(module, name, "a whole number, 1 or more", repr(size), "check the model's sizes")
