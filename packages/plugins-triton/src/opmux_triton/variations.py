"""Variations of a config, for the spaces that `opmux tune` measures. Loads no Triton."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

Config = TypeVar("Config")


def variations(base: Config, **choices: Iterable[Any]) -> Iterator[Config]:
    """Every combination of values for some fields of a config; those that its own checks refuse are left out.

    Args:
        base: the values of the other fields.
        **choices: the values of each field.
    """
    for values in itertools.product(*choices.values()):
        try:
            yield replace(base, **dict(zip(choices, values, strict=True)))  # type: ignore[type-var]
        except ValueError:
            continue


def around(value: int, least: int = 1, most: int = 1 << 20) -> list[int]:
    """A power of two with half and twice of it, within bounds."""
    return [size for size in (value // 2, value, 2 * value) if least <= size <= most]
