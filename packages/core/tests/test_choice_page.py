"""The page of the choice: speedups and regret by group, targets missed with their reasons, and every call."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]

ABOUT = """
[choice]
commands = ["the command"]
text = "The text."

[choice.reasons.choice]
norms = "Here is why."

[choice.copies.timed]
50 = 40.0
100 = 80.0
200 = 170.0

[choice.by_rows.choice]
"its own rows" = "Here is why too."
"""


def call(group: str, op: str, took: float, best: float, torch: float, **fields: Any) -> dict[str, Any]:
    """A row whose choice is triton, with vendor:x beside it."""
    sizes = {"dims": {"tokens": 64, "hidden": 128, **fields.pop("dims", {})}, "options": fields.pop("options", {})}
    times = {"opmux": {"triton": [took, 1, 1, 9], "vendor:x": [best, 1, 1, 9]}, "torch": {"eager": [torch, 1, 1, 9]}}
    named = {"group": group, "chosen": "triton", "why": "12.0 us (predicted, from 6 rows)", "failed": {}}
    return {
        "key": f"{op} {took} {best}",
        **named,
        **times,
        "point": {"op": op, **sizes},
        "source": "predicted, from 6 rows",
        **fields,
    }


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes the page, or with ``plot`` the picture, of rows."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import choice_page
    import choice_plot

    assert isinstance(choice_page, ModuleType)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "about.toml").write_text(ABOUT, encoding="utf-8")

    def made(*rows: dict[str, Any], plot: bool = False, **head: Any) -> str:
        data = {"title": "", "device": "D", "versions": {"torch": "2", "triton": "3"}, "date": "2000-01-01", "seed": 5,
                "rows_of": {"D": 7}, "copy_gbps": 1000.0, **head, "rows": rows}  # fmt: skip
        (tmp_path / "data" / "choice.json").write_text(json.dumps(data), encoding="utf-8")
        text: str = choice_plot.choice_plot(tmp_path) if plot else choice_page.choice_page(tmp_path)
        return text

    yield made
    for name in ("choice_page", "choice_plot"):
        sys.modules.pop(name, None)


def test_a_group_has_its_speedup_and_its_regret(page: Any) -> None:
    text = page(call("norms", "rms_norm", 10.0, 10.0, 12.0), call("norms", "rms_norm", 10.0, 12.0, 30.0))
    assert "## D\n\nD, bfloat16, torch 2, triton 3, 2000-01-01, seed 5.\nMeasured rows in force: 7 of D." in text
    assert "| norms | 2 | 1.90 | 1.20 | geomean 1.2, least 0.95 | 1.000 | 1.00 | 2 of 2 | - |" in text
    assert "Regret over all calls: geomean 1.000, worst 1.00." in text
    assert "- norms" not in text
    row = "| 1.20 | rms_norm tokens=64 hidden=128 | triton | 10 | triton | 10 | eager | 12 | 12.0 us (predicted"
    assert row in text


def test_what_is_missed_is_said_with_its_reason(page: Any) -> None:
    rows = [call("norms", "rms_norm", 12.0, 10.0, 11.0), call("linear-batch", "linear", 10.0, 12.0, 9.0)]
    text = page(*rows, call("attention-64", "attention", 10.0, 11.0, 12.0, whole={"opmux": 12.0, "torch": 10.0}))
    assert (
        "- norms: speedup 0.92 where 1.2 is wanted; speedup below 0.95 in 1 of 1, 0.92 at worst; "
        "regret 1.200 where 1.02 is wanted; regret 1.20 at worst where 1.1 is wanted. Reason: Here is why." in text
    )
    assert "- `linear`, m 17 to 512: speedup 0.90 where 1.02 is wanted" in text
    assert "Reason: reason not found yet" in text
    assert "- `attention`, head_dim 64: a whole call takes 1.20 of torch's where 1.1 is wanted. Reason: " in text
    assert (
        "| `attention`, head_dim 64 | 1 | 1.20 | 1.20 | geomean 1.05, least 0.95 | 1.000 | 1.00 | 1 of 1 | 1.20 |"
        in text
    )


def test_from_the_rows_of_another_device_more_regret_is_allowed(page: Any) -> None:
    rows = [call("norms", "rms_norm", 10.8, 10.0, 20.0), call("norms", "rms_norm", 10.0, 10.0, 20.0)]
    assert "- norms: regret 1.039 where 1.02 is wanted" in page(*rows)
    assert "- norms: regret" not in page(*rows, rows_of={"E": 7})
    assert "- norms: regret 1.077 where 1.05" in page(call("norms", "rms_norm", 14.0, 13.0, 20.0), rows_of={"E": 7})


def test_what_other_rows_would_choose_has_its_regret(page: Any) -> None:
    rows = [call("norms", "rms_norm", 12.0, 10.0, 13.0), call("linear-batch", "linear", 10.0, 12.0, 15.0)]
    chosen = {"rms_norm 12.0 10.0": "vendor:x", "linear 10.0 12.0": "vendor:x"}
    text = page(*rows, rows_of={"E": 7}, by_rows={"its own rows": {"rows_of": {"D": 3}, "chosen": chosen}})
    assert "### Chosen by its own rows\n\nThe same calls and times, chosen by its own rows (3 of D)." in text
    assert "| norms | 1 | 1.000 | 1.00 | 1.200 | 1.20 | 1.30 | 1.30 |" in text
    assert "| `linear`, m 17 to 512 | 1 | 1.200 | 1.20 | 1.000 | 1.00 | 1.25 | 1.25 |" in text
    assert "| all | 2 | 1.095 | 1.20 | 1.095 | 1.20 | 1.27 | 1.25 |" in text
    assert (
        "- Regret where 1.02, and 1.1 at worst, are wanted: `linear`, m 17 to 512 1.200 (1.20 at worst). "
        "Reason: Here is why too." in text
    )
    elsewhere = page(*rows, by_rows={"others": {"rows_of": {"E": 3}, "chosen": chosen}})
    assert "- Regret where 1.05 is wanted: `linear`, m 17 to 512 1.200 (1.20 at worst). Reason: reason not" in elsewhere


def test_a_choice_that_failed_is_said(page: Any) -> None:
    row = call("norms", "rms_norm", 10.0, 10.0, 20.0)
    del row["opmux"]["triton"]
    assert "- norms: the choice failed in 1 of 1. Reason: Here is why." in page(row)


def test_decoding_is_compared_with_a_copy(page: Any) -> None:
    dims = {"batch": 8, "kv_heads": 1, "head_dim": 128, "value_dim": 128}
    row = call("decode-few", "paged_attention", 100.0, 100.0, 900.0, dims=dims, options={"max_seqlen_k": 16384})
    text = page(row)
    assert "Paged decoding reads keys and values, as a fraction of what a large copy moves (1000 GB/s):" in text
    assert "| 1 or 2 | 50 to 200 MB | 1 | 0.67 | 0.67 |" in text


def test_decoding_is_compared_with_a_copy_of_as_many_bytes_where_some_were_timed(page: Any) -> None:
    dims = {"batch": 8, "kv_heads": 1, "head_dim": 128, "value_dim": 128}  # 67.1 MB, between two copies
    row = call("decode-few", "paged_attention", 100.0, 100.0, 900.0, dims=dims, options={"max_seqlen_k": 16384})
    text = page(row, device="timed")
    assert "| 1 or 2 | 50 to 200 MB | 1 | 0.67 | 0.67 | 0.54 | 0.54 |" in text
    assert "rate over the large copy's: 50 MB 40 us (1.25), 100 MB 80 us (1.25), 200 MB 170 us (1.18)." in text
    larger = call("decode-few", "paged_attention", 400.0, 400.0, 900.0, dims=dims, options={"max_seqlen_k": 65536})
    assert "| 1 or 2 | from 200 MB | 1 | 0.67 | 0.67 | 0.58 | 0.58 |" in page(larger, device="timed")


def test_the_picture_has_a_panel_for_each_op(page: Any) -> None:
    drawn = page(call("norms", "rms_norm", 10.0, 10.0, 12.0), plot=True)
    assert drawn.startswith("<?xml")
    for words in ("triton chosen", "D, torch 2", "linear_backward", "norms"):
        assert words in drawn
    assert drawn == page(call("norms", "rms_norm", 10.0, 10.0, 12.0), plot=True)
