"""Reads AITER's tables. Rows are data: numbers and names are matched, nothing is evaluated."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from opmux.dtypes import short_name_of
from opmux.tuning import BadRow
from opmux_ck.aiter.names import Unmapped, config_of
from opmux_ck.archs import FP8
from opmux_ck.gemm.configs import SCALE_BLOCK, BlockCodesConfig

SUFFIX = ".aiter"
"""The suffix that a user gives a table: the core reads ``.csv`` itself."""
ARCHS = {"304": "gfx942", "256": "gfx950"}
"""By compute units, the arch of the machine that a row was measured on."""
COLUMNS = ("cu_num", "M", "N", "K", "kernelName", "splitK", "us", "errRatio")
OF_EXPERTS = "kernelName1"
"""A column of the tables of fused mixtures of experts, whose rows have two kernels."""
MOST_DIGITS = 9


def read(path: Path) -> Iterator[Mapping[str, Any] | BadRow]:
    """The rows of a table of products of 8-bit codes, as tuned records; a `BadRow` with its reason for each other row.

    Mapped are row-wise products of int8 and fp8, and products of fp8 with scales of blocks. The times are of AITER's
    own kernels, not of this package's. So a row compares nothing: it picks no backend, and gives this one its tile.

    Raises:
        ValueError: the file is no such table, or no text.
    """
    with path.open(encoding="utf-8-sig") as file:
        # AITER quotes nothing, so a comma ends a field; module `csv` would refuse a whole file for one long field.
        columns = [name.strip() for name in next(file, "").split(",")]
        for line, text in enumerate(file, 2):
            if not text.strip():
                continue
            fields = dict.fromkeys(columns, "") | dict(zip(columns, map(str.strip, text.split(",")), strict=False))
            try:
                yield _record(fields) | {"line": line}
            except Unmapped as reason:
                yield BadRow(line, str(reason))


def _record(row: Mapping[str, str]) -> dict[str, Any]:
    """A row as a tuned record.

    Raises:
        ValueError: the table has other columns.
        Unmapped: the row has no counterpart here.
    """
    if OF_EXPERTS in row:
        raise Unmapped("opmux has no op for fused mixtures of experts")
    missing = [name for name in ("kernelName", "us") if name not in row]
    if missing:
        raise ValueError(f"expected AITER's columns {', '.join(COLUMNS)}; {', '.join(missing)} is missing")
    if "libtype" in row and row["libtype"] != "ck":
        raise Unmapped(f"the kernel is of {row['libtype'][:20]!r}, not of CK")
    n, k = _number(row, "N"), _number(row, "K")
    config = config_of(row["kernelName"], n, k)
    units = row.get("cu_num", "")
    if units not in ARCHS:
        known = " or ".join(f"{number} ({arch})" for number, arch in ARCHS.items())
        raise Unmapped(f"`cu_num` expected {known}, got {units[:20]!r}")
    if _number(row, "splitK", least=0):
        raise Unmapped("splitK: CK's product with scales does not cut k")
    m, arch = _number(row, "M"), ARCHS[units]
    sizes = {"batch": 1, "m": m, "k": k, "n": n, "m_blocks": m, "k_blocks": 1, "w_rows": n, "w_blocks": 1}
    blocks = isinstance(config, BlockCodesConfig)
    if blocks:
        steps = -(-k // SCALE_BLOCK)
        sizes |= {"k_blocks": steps, "w_rows": -(-n // SCALE_BLOCK), "w_blocks": steps}
    codes = _codes(row, arch, FP8[arch] if blocks else "int8")
    return {
        "op": "scaled_linear",
        "arch": arch,
        "dtypes": {"x": codes, "w": codes, "x_scale": "f32", "w_scale": "f32"},
        "options": {"out_dtype": "bf16"},
        "dims": sizes,
        "backend": f"ck:{'blocks' if blocks else 'channels'}_{arch}",
        "config": asdict(config),
        "time_us": row["us"],
        "error": row.get("errRatio", ""),
        "compared": 1,
        "note": "AITER's kernel, and its share of wrong elements",
    }


def _codes(row: Mapping[str, str], arch: str, usual: str) -> str:
    """The short name of the codes' dtype: the column ``q_dtype_w``, or what the family usually has."""
    known = {f"torch.{name}": name for name in ("int8", FP8[arch])}
    given = row.get("q_dtype_w") or f"torch.{usual}"
    if given not in known:
        raise Unmapped(f"`q_dtype_w` expected {' or '.join(known)} on {arch}, got {given[:30]!r}")
    return short_name_of(getattr(torch, known[given]))


def _number(row: Mapping[str, str], name: str, least: int = 1) -> int:
    text = row.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS and int(text) >= least):
        raise Unmapped(f"`{name}` expected a number from {least} on, got {text[:20]!r}")
    return int(text)
