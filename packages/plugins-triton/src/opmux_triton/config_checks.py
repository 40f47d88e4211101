"""What the values of a config must keep to, whoever gives them: heuristics, or a tuned record."""

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


def require_at_least(least: int, config: Any, *names: str) -> None:
    """Check fields of a config.

    Raises:
        ValueError: where one is less; the message names it.
    """
    for name in names:
        value = getattr(config, name)
        if value < least:
            raise ValueError(f"{name} expected at least {least}, got {value}")
