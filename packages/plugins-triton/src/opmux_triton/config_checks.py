"""Checks of a config's values, whether they come from a heuristic or from a tuned record."""

from typing import Any


def require_powers_of_two(config: Any, *names: str) -> None:
    """Check fields of a config.

    Raises:
        ValueError: where one is not a power of two (1, 2, 4, ...); the message names it.
    """
    for name in names:
        value = getattr(config, name)
        if value < 1 or value & (value - 1):
            raise ValueError(f"{name} expected a power of two, got {value}")


def require_parts(config: Any, whole: str, part: str) -> None:
    """Check that one field of a config divides another, so that parts of that size leave nothing out.

    Raises:
        ValueError: if it does not; the message names both.
    """
    size, of = getattr(config, part), getattr(config, whole)
    if of % size:
        raise ValueError(f"{part} expected a divisor of {whole} = {of}, got {size}")


def require_at_least(least: int, config: Any, *names: str) -> None:
    """Check fields of a config.

    Raises:
        ValueError: where one is less; the message names it.
    """
    for name in names:
        value = getattr(config, name)
        if value < least:
            raise ValueError(f"{name} expected at least {least}, got {value}")
