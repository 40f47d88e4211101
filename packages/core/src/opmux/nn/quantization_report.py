"""What `quantize_` did to a model, as data and as a table."""

from collections.abc import Callable
from dataclasses import dataclass, field

from opmux.errors import invalid
from opmux.tables import text_table

CONVERTED, LEFT = "converted", "left"


@dataclass(frozen=True)
class QuantizedRow:
    """One linear layer.

    Attributes:
        module: Its path in the model; of a layer that is in several places, the first.
        status: ``"converted"`` or ``"left"``.
        reason: Why it was left; a remark if it was converted.
        shape: ``(out_features, in_features)``.
        error: The root mean square of what quantisation changes in its result, over that of the result, on the inputs
            of the calibration; None without a calibration, or if it was not called.
    """

    module: str
    status: str
    reason: str = ""
    shape: tuple[int, int] = (0, 0)
    error: float | None = None


@dataclass
class QuantizationReport:
    """What was converted, what was left, and how much it changes.

    Attributes:
        rows: One for each linear layer.
        output_error: The root mean square of the change of the model's result on the calibration, over that of the
            result; None without a calibration.
        bytes_before: Size of all parameters before.
        bytes_after: Size of all parameters afterwards.
        notes: Remarks on the model as a whole.
        active: False after `undo`.
    """

    rows: list[QuantizedRow] = field(default_factory=list)
    output_error: float | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    notes: list[str] = field(default_factory=list)
    active: bool = True
    _put_back: Callable[[], None] | None = field(default=None, repr=False)

    def converted(self) -> list[QuantizedRow]:
        """The rows of the layers that were converted."""
        return [row for row in self.rows if row.status == CONVERTED]

    def left(self) -> list[QuantizedRow]:
        """The rows of the layers that were left."""
        return [row for row in self.rows if row.status == LEFT]

    def undo(self) -> None:
        """Put the original layers back, the very same objects.

        Raises:
            InvalidArgument: If they were not kept, or have been put back already.
        """
        if not self.active:
            nothing = "there is nothing to undo"
            raise invalid("QuantizationReport.undo", "self", "a report in force", "one undone", nothing)
        if self._put_back is None:
            raise invalid(
                "QuantizationReport.undo", "self", "a report with the original layers", "one without",
                "pass keep=True to quantize_, which keeps them in memory",
            )  # fmt: skip
        self._put_back()
        self.active, self._put_back = False, None

    def __str__(self) -> str:
        state = "" if self.active else ", undone"
        layers = "linear layer" if len(self.converted()) == 1 else "linear layers"
        lines = [
            f"{len(self.converted())} {layers} converted, {len(self.left())} left{state}: "
            f"{_size(self.bytes_before)} of parameters before, {_size(self.bytes_after)} after"
        ]
        header = ("layer", "shape", "error", "")
        cells = [
            (
                r.module,
                "x".join(map(str, r.shape)),
                "" if r.error is None else f"{r.error:.2%}",
                _said(r),
            )
            for r in self.rows
        ]
        lines.append(text_table(header, cells, right=(1, 2)))
        if self.output_error is not None:
            lines.append(f"error of the model's result: {self.output_error:.2%}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _said(row: QuantizedRow) -> str:
    return f"{row.status}: {row.reason}" if row.reason else row.status


def _size(count: int) -> str:
    """A number of bytes in the largest binary unit of which there is one."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.1f} {unit}"
    return f"{count} bytes"
