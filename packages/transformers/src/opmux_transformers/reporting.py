"""What a patch did, as data and as a table: which modules were replaced, which were left, and why."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from io import StringIO
from typing import Any

REPLACED = "replaced"
LEFT = "left"


@dataclass(frozen=True)
class Row:
    """What happened to one module.

    Attributes:
        kind: What was looked for: ``"norm"``, ``"attention"``, ...; ``"model"`` for the model as a whole.
        module: Its path in the model, ``""`` for the model itself.
        status: ``"replaced"`` or ``"left"``.
        op: The ops that compute it now, such as ``"rms_norm"``; empty if it was left.
        reason: Why it was left; a remark if it was replaced.
        class_name: The module's class.
    """

    kind: str
    module: str
    status: str
    op: str = ""
    reason: str = ""
    class_name: str = ""


@dataclass
class Report:
    """The rows of a patch, and notes on the model.

    Attributes:
        model: The model's class.
        family: The model's type, as transformers' configurations name it.
        transformers: The installed version.
        rows: One for each module that was judged.
        notes: Remarks on the model as a whole.
        active: Whether the patch is in force; False after `unpatch`.
    """

    model: str
    family: str
    transformers: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    active: bool = True

    def add(self, kind: str, module: str, op: str = "", reason: str = "", class_name: str = "") -> None:
        """Add a row: replaced if an op is named, left otherwise."""
        self.rows.append(Row(kind, module, REPLACED if op else LEFT, op, reason, class_name))

    def counts(self) -> dict[str, dict[str, int]]:
        """How many of each kind were replaced and left: ``{"norm": {"replaced": 5, "left": 0}}``."""
        found: dict[str, dict[str, int]] = {}
        for row in self.rows:
            found.setdefault(row.kind, {REPLACED: 0, LEFT: 0})[row.status] += 1
        return found

    def replaced(self, kind: str) -> int:
        """How many of a kind were replaced."""
        return self.counts().get(kind, {}).get(REPLACED, 0)

    def left(self, kind: str | None = None) -> list[Row]:
        """The rows of the modules that were left, of one kind or of all."""
        return [row for row in self.rows if row.status == LEFT and kind in (None, row.kind)]

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        return {
            "model": self.model,
            "family": self.family,
            "transformers": self.transformers,
            "active": self.active,
            "counts": self.counts(),
            "rows": [asdict(row) for row in self.rows],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        """The table as text."""
        from rich.console import Console

        text = StringIO()
        Console(file=text, width=160, color_system=None, highlight=False).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def __rich__(self) -> Any:
        """The table: one line for each kind and for each reason."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        state = "" if self.active else ", undone"
        table = Table(box=None, pad_edge=False, show_header=True, header_style="dim", padding=(0, 2, 0, 0))
        table.title, table.title_justify, table.title_style = f"{self.model} ({self.family}){state}", "left", "bold"
        for column in ("kind", "replaced", "left", "by or why", "where"):
            number = column in ("replaced", "left")
            table.add_column(column, justify="right" if number else "left", no_wrap=number)
        for kind, status, what, paths in self._groups():
            count = str(len(paths))
            colour = "green" if status == REPLACED else "yellow"
            cells = (kind, count if status == REPLACED else "", count if status == LEFT else "", what, _summary(paths))
            table.add_row(*(Text(cell, colour if i in (1, 2) else "") for i, cell in enumerate(cells)))
        return Group(table, *(Text(f"note: {note}") for note in self.notes))

    def _groups(self) -> Iterable[tuple[str, str, str, list[str]]]:
        groups: dict[tuple[str, str, str], list[str]] = {}
        for row in self.rows:
            what = f"{row.op} ({row.reason})" if row.op and row.reason else row.op or row.reason
            groups.setdefault((row.kind, row.status, what), []).append(row.module)
        order = list(self.counts())
        for (kind, status, what), paths in sorted(
            groups.items(), key=lambda g: (order.index(g[0][0]), g[0][1] == LEFT)
        ):
            yield kind, status, what, paths


def _summary(paths: list[str]) -> str:
    """The first path, with how many more there are."""
    first = paths[0] or "the model"
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"
