"""Expressions in definitions, as text over dims and options: relations beyond shapes, and counts of operations.

The text comes from the author of a definition, never from a caller; it cannot reach any builtin.
"""

import functools
from collections.abc import Mapping
from types import CodeType
from typing import Any


@functools.cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, f"<{expression}>", "eval")


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression, with these values for its names."""
    return eval(_compiled(expression), {"__builtins__": {}}, dict(names))
