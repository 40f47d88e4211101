"""Checks of sizes and of tensors, shared by the modules."""

from typing import Any

from torch import Tensor

from opmux.errors import invalid


def check_sizes(module: str, **sizes: int) -> None:
    """Reject sizes that are not positive whole numbers.

    Raises:
        InvalidArgument: For the first such argument, by name.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise invalid(module, name, "a whole number, 1 or more", repr(size), "check the model's sizes")


def check_tensors(module: str, **values: Any) -> None:
    """Reject arguments that are no tensors.

    Raises:
        InvalidArgument: For the first such argument, by name.
    """
    for name, value in values.items():
        if not isinstance(value, Tensor):
            got = "None" if value is None else f"a {type(value).__name__}"
            raise invalid(module, name, "a torch.Tensor", got, "convert it with torch.as_tensor")
