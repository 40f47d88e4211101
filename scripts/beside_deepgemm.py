"""Part of the page of the products for Hopper GPUs: DeepGEMM itself, in turns with this backend.

``data/deepgemm-itself.json`` is what packages/plugins-deepgemm/benchmarks/beside_deepgemm.py measured; table
``deepgemm_itself`` of ``about.toml`` has the command and the text.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from page_parts import number, ratio, table

from opmux.bench.plots.summary import geometric_mean

ITSELF = "deepgemm-itself.json"
PARTS = {
    "fp8 4096": "4096 rows",
    "fp8 128": "128 rows",
    "fp8 1": "one row",
    "added": "added to float32",
    "ragged k": "gradients of grouped weights, added to float32",
    "contiguous": "groups one after the other",
    "masked": "masked groups",
    "bf16 4096": "bfloat16, 4096 rows",
    "bf16 128": "bfloat16, 128 rows",
    "bf16 1": "bfloat16, one row",
}
"""What the page calls the parts."""


def beside_deepgemm(folder: Path) -> Iterator[str]:
    """The section of the page in the folder of figures."""
    data = json.loads((folder / "data" / ITSELF).read_text(encoding="utf-8"))
    about = tomllib.loads((folder / "data" / "about.toml").read_text(encoding="utf-8"))["deepgemm_itself"]
    yield from ("## DeepGEMM itself", "")
    yield (
        f"{data['device']}, DeepGEMM {data['deepgemm']}, torch {data['torch']}, CUDA {data['cuda']}, {data['date']}, "
        "`docs/benchmarks/data/deepgemm-itself.json`."
    )
    yield from ("", about["text"].strip(), "", "```", *about["commands"], "```", "")
    rows = [
        [PARTS[part], str(len(shares)), ratio(geometric_mean(shares)), ratio(min(shares)), ratio(max(shares))]
        for part, shares in _by_part(data["lines"]).items()
    ]
    yield from table(["lines", "number", "of DeepGEMM's speed, geometric mean", "least", "most"], rows, left=(0,))
    yield from table(["rows; n, k", "unit", "DeepGEMM", "opmux", "ratio"], map(_row, data["lines"]), left=(0, 1))


def _share(line: Mapping[str, Any]) -> float:
    return float(line["microseconds"]["deepgemm"] / line["microseconds"]["opmux"])


def _by_part(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    found = {part: [_share(line) for line in lines if line["part"] == part] for part in PARTS}
    return {part: shares for part, shares in found.items() if shares}


def _row(line: Mapping[str, Any]) -> list[str]:
    many, spent = line["m"] >= 128, line["microseconds"]
    amount = line["operations"] / 1e6 if many else line["bytes"] / 1e3
    rows = f"{line['groups']} x {line['m']}" if line["groups"] else str(line["m"])
    speeds = [number(amount / spent[name], 4) for name in ("deepgemm", "opmux")]
    name = f"{PARTS[line['part']]}: {rows}; {line['n']}, {line['k']}"
    return [name, "TFLOPS" if many else "GB/s", *speeds, ratio(_share(line))]
