"""Expressions in definitions: relations that no shape can say, and counts of operations, as text over dims and options.

The text is that of a definition's author, never a caller's; no builtin can be reached from it.
"""

import functools
from collections.abc import Mapping
from types import CodeType
from typing import Any


@functools.cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, f"<{expression}>", "eval")


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression where its names mean these."""
    return eval(_compiled(expression), {"__builtins__": {}}, dict(names))
