"""The page of host times: targets and what misses them, a table for each part, and nothing for parts not measured."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]

ABOUT = """
[host]
text = "The text."

[host.reasons]
"decode without a graph, over torch.compile" = "Here is why."
"""


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes the page of parts."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import host_page

    def made(**parts: Any) -> str:
        (tmp_path / "data").mkdir()
        data = {"device": "D", "torch": "2", "triton": "3", "date": "2000-01-01"}
        data["parts"] = {name.replace("_", "-"): part for name, part in parts.items()}  # type: ignore[assignment]
        (tmp_path / "data" / "host_times.json").write_text(json.dumps(data), encoding="utf-8")
        (tmp_path / "data" / "about.toml").write_text(ABOUT, encoding="utf-8")
        text: str = host_page.host_page(tmp_path)
        return text

    yield made
    sys.modules.pop("host_page", None)


def test_calls_by_every_way(page: Any) -> None:
    native = {"rms_norm": {"call": 5.5, "bound": 4.0, "kernel[grid]": 19.0, "cuLaunchKernel": 2.9}}
    own = {"rms_norm": {"call": 11.2, "bound": 9.1, "kernel[grid]": 19.4}, "x, decode": {"call": 20.0}}
    text = page(calls={"us": native}, calls_triton={"us": own})
    assert "D and its host, torch 2, triton 3, 2000-01-01." in text
    assert "The text." in text
    assert "| planned `rms_norm`, us | 5.5 | under 6 | met |" in text
    assert "| `rms_norm` | 5.5 | 4.0 | 11.2 | 19.4 | 2.9 |" in text
    assert "| `x`, decode | - | - | 20.0 | - | - |" in text
    assert "Targets missed" not in text
    assert "With a gradient due" not in text


def test_gradients_over_torchs(page: Any) -> None:
    us = {"opmux forward": 30.0, "torch forward": 40.0, "opmux backward": 150.0, "torch backward": 120.0}
    text = page(gradients={"us": {"linear": us}})
    assert "| `linear` with a gradient due, forward, over torch | 0.75 | at most 1 | met |" in text
    assert "| `linear` with a gradient due, backward, over torch | 1.25 | at most 1 | missed |" in text
    assert "| `linear` | backward | 150.0 | - | 120.0 |" in text
    assert "- `linear` with a gradient due, backward, over torch: reason not found yet" in text


def test_decode_and_its_reason(page: Any) -> None:
    rows = {"opmux": {"tokens_per_s": 80.0}, "torch.compile": {"tokens_per_s": 100.0}}
    text = page(decode={"phases": {"decode 8, no graph": {"rows": rows}, "decode 8, graph": {"rows": rows}}})
    assert "| decode without a graph, over torch.compile | 0.80 | least 0.9 | missed |" in text
    assert "- decode without a graph, over torch.compile: Here is why." in text
    assert "| decode 8, graph | torch.compile | 100 |" in text


def test_the_first_token_cold_warm_and_with_a_bundle(page: Any) -> None:
    cold = {"imports": 3.0, "first token": 9.0, "second batch shape, alone": 4.0}
    warm, bundle = cold | {"first token": 5.0}, cold | {"first token": 6.0}
    text = page(first_token={"cold": cold, "warm": warm, "bundle": bundle, "prebuild": {"seconds": 26.7, "triton": 12}})
    assert "| first token with a bundle, over a warm cache | 1.20 | at most 1.3 | met |" in text
    assert "| cold | 3.00 | - | - | 9.00 | 4.00 |" in text
    assert "`opmux prebuild` made the bundle, 12 kernels, in 27 s." in text


def test_new_shapes_with_and_without_waiting(page: Any) -> None:
    wait = {"shapes": 50, "worst_ms": 2000.0, "median_first_ms": 900.0, "all_first_s": 45.0}
    background = wait | {"worst_ms": 20.0, "built_s": 44.0, "still_awaited": 3}
    text = page(background={"wait": wait, "background": background})
    assert "| wait | 50 | 2000 | 900 | 45 | - |" in text
    assert "| background | 50 | 20 | 900 | 45 | 44 |" in text
    assert "At the end 3 shapes still waited for their builds." in text
    assert "The worst call in the background takes 0.01 of the time of the worst one that waits." in text
