"""The shapes of the calls in a trace: counted by a cheap key while it is open, written to a file when it ends."""

from collections import Counter
from pathlib import Path
from typing import Any

import torch

from opmux.callpath.op import OPS, Op
from opmux.errors import InvalidArgument
from opmux.shapes.files import write_shapes
from opmux.shapes.point import Point
from opmux.signatures.validation import check_call

_Form = tuple[torch.dtype, tuple[int, ...]]
_Key = tuple[str, tuple[_Form | None, ...], tuple[tuple[str, Any], ...]]


class RecordedShapes:
    """Counts of calls that are alike in dtypes, shapes and options."""

    def __init__(self) -> None:
        self._counts: Counter[_Key] = Counter()

    def count(self, op: Op, tensors: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Count one call; one without any element is left out."""
        if all(t is None or t.numel() for t in tensors):
            forms = tuple(None if t is None else (t.dtype, tuple(t.shape)) for t in tensors)
            given = tuple((n, tuple(v) if isinstance(v, list) else v) for n, v in options.items() if n != "out")
            self._counts[op.name, forms, given] += 1

    def points(self) -> list[Point]:
        """The calls as points, most frequent first."""
        merged: dict[str, Point] = {}
        for (name, forms, given), count in self._counts.most_common():
            op = OPS[name]
            made = [None if f is None else torch.empty(f[1], dtype=f[0], device="meta") for f in forms]
            named = op.names(tuple(made))
            dims, options = check_call(op.signature, named, dict(given))
            point = Point.of_call(op, named, dims, options, count)
            before = merged.get(point.key)
            # Calls that differ in a star dim alone, as (2, 3) and (6,), are one point.
            merged[point.key] = (
                point if before is None else Point.of_call(op, named, dims, options, count + before.count)
            )
        return sorted(merged.values(), key=lambda p: (-p.count, p.key))

    def write(self, path: Path) -> None:
        """Write the points.

        Raises:
            InvalidArgument: where the system refuses the file.
        """
        try:
            write_shapes(path, self.points())
        except OSError as error:
            raise InvalidArgument(f"trace: `record_shapes` cannot be written: {error}; choose another file") from None
