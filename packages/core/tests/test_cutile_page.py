"""The page of the CUDA Tile backend: shares of peers, targets with reasons of misses, conformance, what failed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]

ABOUT = """
[cutile]
text = "The text."
commands = ["the command"]

[cutile.reasons]
"rotary embedding, of a copy" = "Here is why."
"""


def line(part: str, op: str, call: str, work: float, **microseconds: float) -> dict[str, Any]:
    return {"part": part, "op": op, "call": call, "work": work, "microseconds": microseconds}


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes the page of lines."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import cutile_page

    def made(*lines: dict[str, Any], host: Any = (), report: Any = None, drawn: Any = None) -> str:
        (tmp_path / "data").mkdir()
        about = {"device": "D", "torch": "2", "cuda": "13", "date": "2000-01-01"}
        data = about | {"lines": lines, "host": list(host)}
        (tmp_path / "data" / "cutile.json").write_text(json.dumps(data), encoding="utf-8")
        (tmp_path / "data" / "about.toml").write_text(ABOUT, encoding="utf-8")
        if report:
            (tmp_path / "data" / "cutile-conformance.json").write_text(json.dumps(report), encoding="utf-8")
        if drawn:
            (tmp_path / "data" / "cutile-choice.json").write_text(json.dumps(drawn), encoding="utf-8")
        text: str = cutile_page.cutile_page(tmp_path)
        return text

    made.plot = lambda: cutile_page.cutile_plot(tmp_path)  # type: ignore[attr-defined]
    yield made
    sys.modules.pop("cutile_page", None)


def test_speeds_are_shares_of_their_peers(page: Any) -> None:
    text = page(
        line("memory", "rms_norm", "a", 4e8, cutile=100.0, copy=95.0, triton=200.0),
        line("linear", "linear", "8192x8192x8192", 1e12, cutile=1250.0, cublas=1000.0),
    )
    assert "| `rms_norm` a | 4 | 4.21 | 0.95 | 2 | 2.00 |" in text
    assert "| `linear` 8192x8192x8192 | 800 | 1000 | 0.80 |\n" in text
    assert "- norms, gates and their gradients, of a copy, the least: 0.95, wanted 0.92" in text
    assert "- large linear layers, of cuBLASLt, the least: 0.80, **missed** 0.97: reason not found yet" in text
    assert "- quantisation, of a copy: not measured" in text


def test_the_picture_has_a_row_for_each_peer(page: Any) -> None:
    page(
        line("memory", "rms_norm", "a", 4e8, cutile=100.0, copy=95.0),
        line("attention", "attention", "b", 1e12, cutile=1250.0, cudnn=1000.0, tilegym=2600.0),
    )
    drawn = page.plot()
    for kind in (
        "calls that move data: over a copy  (1)",
        "attention: over cuDNN  (1)",
        "attention: over TileGym  (1)",
    ):
        assert f">{kind}</text>" in drawn
    assert "decoding" not in drawn


def test_each_kind_of_call_has_its_target(page: Any) -> None:
    text = page(
        line("memory", "apply_rope", "a", 1e6, cutile=2.0, copy=1.0),
        line("memory", "rms_norm_backward", "a", 1e6, cutile=4.0, copy=1.0),
        line("memory", "rms_norm_quantize", "a", 1e6, cutile=1.0, copy=1.0),
        line("scaled", "scaled_linear", "8192x8192x8192 blocks", 1e12, cutile=1000.0),
        line("decode", "paged_attention", "b float8_e4m3fn", 1e6, cutile=9.0, copy=1.0),
        line("decode", "paged_attention", "b bfloat16", 1e6, cutile=1.0, copy=0.9),
        host=[{"op": "linear", "call": "c", "microseconds": {"cutile": 4.0, "triton": 5.0}}],
    )
    assert "- rotary embedding, of a copy, the least: 0.50, **missed** 0.92: Here is why." in text
    assert "- gradients of norms, of a copy, the least: 0.25, **missed** 0.92" in text
    assert "- quantisation, of a copy, the least: 1.00, wanted 0.92" in text
    assert "- 8-bit products with scales of blocks, of TileGym's 664 TFLOPS, the least: 1.51, wanted 1.00" in text
    assert "- decoding from paged caches of bfloat16, of a copy, the least: 0.90, wanted 0.85" in text
    assert "- host time: Triton's over this backend's, the least: 1.25, wanted 1.00" in text
    assert "| `linear` c | 4.00 | 5.00 |" in text


def test_tilegyms_own_calls_are_peers(page: Any) -> None:
    text = page(
        line("memory", "rms_norm", "a", 4e8, cutile=100.0, copy=95.0, tilegym=105.0),
        line("attention", "attention", "a", 1e12, cutile=1250.0, cudnn=1000.0, tilegym=3750.0),
        line("scaled", "scaled_linear", "a blocks", 1e12, cutile=1000.0, tilegym=900.0),
    )
    assert "| `rms_norm` a | 4 | 4.21 | 0.95 | 3.81 | 1.05 |" in text
    assert "- calls that move data, of TileGym's own, the least: 1.05, wanted 1.00" in text
    assert "- attention, of TileGym's own, the least: 3.00, wanted 2.00" in text
    assert "- 8-bit products with scales of blocks, of TileGym's own, the least: 0.90, **missed** 1.00" in text


def test_conformance_and_what_failed_are_told(page: Any) -> None:
    report = {"passed": 5, "failed": 2, "skipped": 1, "ops": [
        {"op": "rms_norm", "claimed": 4, "failures": []}, {"op": "linear", "claimed": 3, "failures": [{}, {}]},
    ]}  # fmt: skip
    text = page({"part": "linear", "op": "linear", "call": "a", "failed": "out of time\nmore"}, report=report)
    assert "5 cases passed, 2 failed, 1 were skipped with a reason." in text
    assert "| `linear` | 3 | 2 |" in text
    assert "- `linear` a: out of time\n" in text


def test_the_choice_is_shown_by_groups(page: Any) -> None:
    rows = [
        {"group": "a", "chosen": "cutile", "opmux": {"cutile": [12.0], "triton": [10.0]}},
        {"group": "b", "chosen": "triton", "opmux": {"cutile": [9.0], "triton": [9.9]}},
        {"group": "b", "chosen": "triton", "opmux": {"cutile": [9.0], "triton": [8.0]}},
        {"group": "b", "chosen": "vendor", "opmux": {"cutile": [9.0]}},
    ]
    versions = {"torch": "2", "opmux-triton": "1", "opmux-cutile": "1", "opmux-deepgemm": "1"}
    text = page(drawn={"seed": 7, "device": "NVIDIA H200", "versions": versions, "rows": rows})
    wanted = "an H200 with `opmux-cutile`, `opmux-deepgemm` and `opmux-triton` installed"
    assert f"Calls drawn by seed 7, which no tuning saw, on {wanted}" in text
    assert "| a | 1 | 0 | 1 | 1.200 | 1.20 |" in text
    assert "| b | 2 | 1 | 0 | 1.049 | 1.10 |" in text
    assert "| all | 3 | 1 | 1 | 1.097 | 1.20 |" in text
