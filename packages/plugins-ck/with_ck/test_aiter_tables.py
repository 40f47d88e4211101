"""Every table of tuned products in AITER's wheel: which rows are mapped, that each other one has its reason, and that
the tiles of mapped rows can be built.
"""

import collections
import os
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from products_of_codes import FP8, check_product_of_codes

from opmux.tuning import BadRow
from opmux_ck.aiter.reader import read
from opmux_ck.gemm.configs import BlockCodesConfig, CodesConfig

MAPPED = {
    "a8w8_tuned_gemm.csv": (264, 217),
    "a8w8_blockscale_tuned_gemm.csv": (351, 429),
    "model_configs-a8w8_blockscale_tuned_gemm_ds_v3.csv": (26, 41),
}
"""Rows that are mapped, and rows that are not; in every other table none is mapped."""
ROWS = 4818
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


def mapped() -> list[Mapping[str, Any]]:
    """Every row that is mapped."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [path for path in tables(Path(folder)) if f"{path.stem}.csv" in MAPPED]
        return [row for path in paths for row in read(path) if not isinstance(row, BadRow)]


def tiles() -> dict[str, tuple[str, CodesConfig, torch.dtype]]:
    """The tiles of mapped rows, with all padding, by name."""
    found = {}
    for row in mapped():
        kind = BlockCodesConfig if "blocks" in row["backend"] else CodesConfig
        config = replace(kind(**row["config"]), store=8, pads_n=True, pads_k=True)
        dtype = torch.int8 if row["dtypes"]["x"] == "i8" else FP8[row["arch"]]
        name = "-".join(map(str, (row["arch"], kind.kernel, *list(asdict(config).values())[:6])))
        found[name] = row["arch"], config, dtype
    return dict(sorted(found.items()))


TILES = tiles()


@pytest.mark.parametrize("name", TILES)
def test_the_tile_of_mapped_rows(name) -> None:
    """AITER's tiles are not all in the space that is tuned here."""
    check_product_of_codes(*TILES[name])
