"""Size checks shared by the modules."""

from opmux.errors import invalid


def check_sizes(module: str, **sizes: int) -> None:
    """Reject sizes that are not positive whole numbers.

    Raises:
        InvalidArgument: For the first such argument, by name.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise invalid(module, name, "a whole number, 1 or more", repr(size), "check the model's sizes")
