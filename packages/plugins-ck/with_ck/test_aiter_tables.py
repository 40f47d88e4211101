"""Every table of tuned products in AITER's wheel: which rows are mapped, and that each other one has its reason."""

import collections
import os
import zipfile
from pathlib import Path

from opmux.tuning import BadRow
from opmux_ck.aiter.reader import read

MAPPED = {"a8w8_tuned_gemm.csv": (264, 217)}
"""Rows that are mapped, and rows that are not; in every other table none is mapped."""
ROWS = 4045
"""Rows of all tables that are read."""


def tables(folder: Path) -> list[Path]:
    """The tables, unpacked, with the suffix that a user gives them."""
    found = []
    with zipfile.ZipFile(os.environ["OPMUX_CK_DIR"]) as wheel:
        for name in wheel.namelist():
            if name.startswith("aiter/configs/") and name.endswith(".csv"):
                path = folder / name.removeprefix("aiter/configs/").replace("/", "-").replace(".csv", ".aiter")
                path.write_bytes(wheel.read(name))
                found.append(path)
    return found


def test_every_table(tmp_path) -> None:
    """Tables that were not tuned, and those of other columns, are refused whole."""
    total, refused = 0, collections.Counter[str]()
    for path in tables(tmp_path):
        try:
            rows = list(read(path))
        except ValueError as error:
            refused[str(error).rpartition("; ")[2]] += 1
            continue
        bad = [row for row in rows if isinstance(row, BadRow)]
        assert all(row.reason for row in bad)
        name = f"{path.stem}.csv"
        assert (len(rows) - len(bad), len(bad)) == MAPPED.get(name, (0, len(rows))), name
        total += len(rows)
    assert total == ROWS
    assert set(refused) == {"kernelName, us is missing", "kernelName is missing"}
