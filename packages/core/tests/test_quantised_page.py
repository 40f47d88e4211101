"""The page of 8-bit codes: what it says of drawn products, and of caches with a seed that tuning did not use."""

import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
FIGURES = ROOT / "docs" / "benchmarks"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """scripts/quantised_page.py."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import quantised_page

    yield quantised_page
    sys.modules.pop("quantised_page", None)


@pytest.fixture
def page(program: ModuleType, tmp_path: Path) -> Callable[..., str]:
    """Makes the page of the figures that are there, some replaced; of models, only those given."""

    def made(**others: Any) -> str:
        shutil.copytree(FIGURES / "data", tmp_path / "data")
        for models in ("models_fp8", "models_fp8_own", "mixture", "models_codes"):
            (tmp_path / "data" / "quantised" / f"{models}.json").unlink(missing_ok=True)
        for name, content in others.items():
            (tmp_path / "data" / "quantised" / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        text: str = program.quantised_page(tmp_path)
        return text

    return made


def drawn(group: str, took: float, other: float, torch: float | None) -> dict[str, Any]:
    point = {"op": "scaled_linear", "dims": {"m": 3, "n": 5}}
    times = {"a": [took, 0, 0, 7], "b": [other, 0, 0, 7]}
    peers = {} if torch is None else {"torch._scaled_mm": [torch, 0, 0, 7], "torch eager": [9 * torch, 0, 0, 7]}
    return {"group": group, "point": point, "chosen": "a", "opmux": times, "torch": peers}


def test_drawn_products_are_compared_with_the_best_of_torch(page: Callable[..., str]) -> None:
    rows = [drawn("one", 10.0, 5.0, 9.0), drawn("one", 10.0, 20.0, 16.0), drawn("two", 4.0, 8.0, None)]
    later = {"seed": 79, "rows": [drawn("three", 10.0, 5.0, 9.0)]}
    before = [*rows, {**rows[0], "chosen": "gone"}, drawn("three", 10.0, 5.0, 99.0)]
    text = page(choice={"seed": 78, "rows": before}, choice_grouped=later)
    assert "## The choice on drawn products" in text
    assert "- one, geomean of 2 drawn calls: 1.20, wanted 1.00" in text
    assert "- one, least of 2 drawn calls: 0.90, **missed** 0.92: " in text
    assert "| `one` | 2 | 2 | 1.20 | 0.90 | 1 | 1.414 | 2.00 |" in text
    assert "| `two` | 1 | 0 | - | - | - | 1.000 | 1.00 |" in text
    assert "| `three` | 1 | 1 | 0.90 | 0.90 | 1 | 2.000 | 2.00 |" in text, "a later run replaces the group"
    assert "Seed 78, and 79 for `three`;" in text
    assert "| 1.60 | scaled_linear m=3 n=5 | a | 10 | 16 |" in text


def test_caches_with_another_seed_have_a_target_and_rows_of_their_own(page: Callable[..., str]) -> None:
    times = {"triton": [9.0, 10.0, 11.0], "copy": [8.0, 9.0, 10.0]}
    cases = [{"title": "a shape", "kv_bytes": 3e8, "times_us": times}]
    text = page(paged_fp8_unseen={"cases": cases})
    words = (
        "- paged decode on fp8 caches from 200 MB, least of 1 shapes, a seed that tuning did not use: 0.90, wanted 0.85"
    )
    assert words in text
    assert "| 0.90 | a shape | 10 | 30 |" in text


def grouped(op: str, rows: int, *, figure: bool = True, **times: float) -> dict[str, Any]:
    named = {name.replace("_", " "): took for name, took in times.items()}
    return {"op": op, "groups": 2, "rows": rows, "n": 1000, "k": 1000, "figure": figure, "times": named}


def test_grouped_products_have_the_faster_kernel_and_gradients_the_later_run(page: Callable[..., str]) -> None:
    coded, gradient = "scaled_grouped_linear", "grouped_weight_grad"
    many = grouped(coded, 1000, portable_chosen=8.0, hopper_chosen=4.0, hopper_1=1.0, torch_rows=6.0)
    few = grouped(coded, 10, portable_chosen=1.0, hopper_chosen=0.5, torch_rows=3.0)
    few["configs"] = {"hopper chosen": {"config": {"few": True}}}  # the portable kernel by another way
    later = {"copy_tbps": 4.0, "rows": [many, few, grouped(gradient, 9, portable_chosen=5.0, torch=4.0)]}
    before = [
        grouped(gradient, 9, portable_chosen=9.0, torch=1.0),
        grouped(gradient, 3, portable_chosen=4.0, torch=5.0),
    ]
    text = page(grouped=later, grouped_gradients={"rows": before})
    section = text.partition("## Grouped products\n")[2].partition("\n## ")[0]
    assert "- scaled_grouped_linear, geomean of 2 shapes: 2.12, wanted 1.00" in section
    assert "- grouped_weight_grad, geomean of 2 shapes: 1.00, wanted 1.00" in section
    words = "- 8-bit codes in groups of up to 20 rows, least of 1 shapes: over a copy's speed: 0.52, **missed** 0.85: "
    assert words in section, "2.06 MB in 1 us, of 4 TB/s"
    assert "| 1.50 | `scaled_grouped_linear` | 2 x 1000, 1000, 1000 | 4 | Gluon | 1000 | 8 | 6 |" in section
    assert "| 3.00 | `scaled_grouped_linear` | 2 x 10, 1000, 1000 | 1 | portable |" in section
    assert "| 0.80 | `grouped_weight_grad` | 2 x 9, 1000, 1000 | 5 | portable |" in section
    assert section.count("grouped_weight_grad`") == 2


def scaled(m: int, *, figure: bool = True, **times: float) -> dict[str, Any]:
    named = {name.replace("_", " "): took for name, took in times.items()}
    named = {name.replace("mm", "_scaled_mm"): took for name, took in named.items()}
    ran = {"opmux": "some:kernel", "opmux triton": "triton"}
    return {
        "blocks": "square",
        "m": m,
        "n": 1000,
        "k": 1000,
        "figure": figure,
        "chosen": "64x64",
        "times": named,
        "ran": ran,
    }


def section_of(text: str, title: str) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_scaled_products_have_what_is_chosen_and_what_triton_alone_runs(page: Callable[..., str]) -> None:
    rows = [
        scaled(4, opmux=4.0, opmux_triton=5.0, mm=5.0, portable=9.0, **{"64x64": 1.0}),
        scaled(8, opmux=8.0, opmux_triton=10.0, mm=7.0, portable=10.0, **{"64x64": 1.0}),
        scaled(2, figure=False, opmux=2.0, opmux_triton=5.0, mm=1.8, portable=9.0, **{"64x64": 1.0}),
        scaled(1, opmux=2.0, opmux_triton=4.0, portable=9.0, **{"64x64": 1.0}),
    ]
    section = section_of(page(scaled={"rows": rows}), "Scaled products")
    name = "scaled_linear, 1x128 with 128x128"
    assert f"- {name}, geomean of 3 shapes: 0.63, **missed** 1.00: " in section
    assert f"- chosen: {name}, geomean of 3 shapes: 0.99, **missed** 1.00: " in section, "1.25, 0.875 and 0.9"
    assert f"- chosen: {name}, least of 3 shapes: 0.88, **missed** 0.92: " in section
    assert f"- {name}, m 8, n 1000, k 1000: 0.70, below 1.00: " in section
    assert f"- chosen: {name}, m 8, n 1000, k 1000: 0.88, below 0.98: " in section
    assert section.count(", below ") == 2, "none for shapes that reach it, or were drawn, or that torch refuses"
    assert "| 1.00 | 1x128 with 128x128 | 4, 1000, 1000 | 5 | 1.6 | 5 | 9 | `some:kernel` | 4 | 1.25 |" in section
    assert "| refused | 1x128 with 128x128 | 1, 1000, 1000 | 4 | 0.5 | - | 9 | `some:kernel` | 2 | refused |" in section


def test_grouped_products_have_what_is_chosen_beside_what_triton_alone_runs(page: Callable[..., str]) -> None:
    op = "scaled_masked_grouped_linear"
    called = grouped(op, 1000, portable_chosen=8.0, hopper_chosen=4.0, torch_rows=6.0, opmux=5.0, opmux_triton=7.5)
    called["ran"] = {"opmux": "deepgemm", "opmux triton": "triton:hopper"}
    same = grouped(op, 800, portable_chosen=8.0, torch_rows=6.0, opmux=8.2, opmux_triton=8.0)
    same["ran"] = dict.fromkeys(("opmux", "opmux triton"), "triton")
    before = grouped(op, 900, portable_chosen=8.0, hopper_chosen=4.0, torch_rows=6.0)
    data = {"copy_tbps": 4.0, "backends": ["deepgemm", "triton"], "rows": [called, before, same]}
    section = section_of(page(grouped=data, grouped_gradients={"rows": []}), "Grouped products")
    assert f"- {op}, geomean of 3 shapes: 0.97, **missed** 1.00: " in section
    assert f"- chosen: {op}, geomean of 2 shapes: 0.94, **missed** 1.00: " in section
    assert f"- {op}, 2 x 800, 1000, 1000: 0.75, below 1.00: " in section
    assert f"chosen: {op}, 2 x" not in section, "one reaches it, the other is triton's, of which there is a line"
    assert (
        "with deepgemm, triton installed. Single shapes have one where they are slower than torch's by more than 2 %."
        in section
    )
    assert f"- {op}, 2 x 1000, 1000, 1000: 0.80, below 1.00: reason not found yet" in section
    assert f"| 0.80 | `{op}` | 2 x 1000, 1000, 1000 | 7.5 | Gluon | 533 | 8 | 6 | `deepgemm` | 5 | 1.20 |" in section
    assert f"| 1.50 | `{op}` | 2 x 900, 1000, 1000 | 4 | Gluon | 900 | 8 | 6 | - | - | - |" in section


def test_a_reason_may_be_for_all_names_that_begin_as_its_own(program: ModuleType) -> None:
    about = {"reasons": {"a product": "of many", "a product, 3 x 5": "of one", "another": "of none"}}
    assert [*program._single("a product, 3 x 5, of rows", 0.994, 1.0, about)] == [
        "- a product, 3 x 5, of rows: 0.99, below 1.00: of one"
    ]
    assert [*program._single("a product, 3 x 7", 0.9, 1.0, about)] == ["- a product, 3 x 7: 0.90, below 1.00: of many"]
    assert [*program._single("a product, 3 x 7", 0.996, 1.0, about)] == []
    (line,) = program._target("a produce", 0.5, 1.0, about)
    assert line.endswith("reason not found yet")


def test_caches_show_what_a_call_takes_before_it_reads_much(page: Callable[..., str]) -> None:
    medians = {"triton": 30.0, "copy": 16.0, "one key": 20.0, "small copy": 9.0}
    times = {name: [0.0, took, 99.0] for name, took in medians.items()}
    case = {"title": "a shape", "kv_bytes": 3e7, "times_us": times, "kernels": [{"us": 14.25}, {"us": 3.0}]}
    section = section_of(page(paged_fp8={"cases": [case]}), "Paged decode on fp8 caches")
    assert "- paged decode on fp8 caches below 200 MB, least of 1 shapes: 0.53, **missed** 0.85: " in section
    assert "| 0.53 | a shape | 30 | 1 | 20 | 14.2 + 3 | 0.70 |" in section


def test_the_picture_has_a_row_for_each_kind_of_call(program: ModuleType) -> None:
    drawn = program.quantised_plot(FIGURES)
    kinds = (
        "scaled_linear, 1x128 with 128x128: over _scaled_mm  (",
        "grouped_weight_grad: over torch  (",
        "losses: over Liger  (",
    )
    for kind in kinds:
        assert f">{kind}" in drawn
    assert drawn == program.quantised_plot(FIGURES)


def test_a_picture_leaves_out_kinds_without_a_call_and_tells_misses_apart(program: ModuleType) -> None:
    from strips_plot import MISSED, Strip, strips_plot

    drawn = strips_plot("said", [Strip("one", [0.5, math.nan, 1.5], 1.0), Strip("of no call", [math.nan], 1.0)])
    assert ">one  (2)</text>" in drawn
    assert "of no call" not in drawn
    missed = Strip("one", [1.5, 1.6], 1.0)
    assert drawn.count(MISSED.colour.lower()) > strips_plot("said", [missed]).count(MISSED.colour.lower())


def models(**works: Mapping[str, Any]) -> dict[str, Any]:
    """What the program of whole models writes: rates by row, or why there is none."""
    made = {
        work.replace("_", "-"): {
            row: {"tokens_per_second": value, "peak_gib": 2.25, "rounds": []} if isinstance(value, float) else value
            for row, value in rows.items()
        }
        for work, rows in works.items()
    }
    versions = {"torch": "2.11.0", "transformers": "5.17.0"}
    return {"versions": versions, "device": "a GPU", "dtype": "bfloat16", "steps": 256, "models": {"a-model": made}}


def test_quantised_models_are_compared_with_bfloat16_and_with_transformers_own(page: Callable[..., str]) -> None:
    prefill = {"compiled": 100.0, "opmux": 110.0, "hf fp8": 60.0, "opmux fp8": 121.0, "opmux fp8 token": 132.0}
    decode = {"compiled": 100.0, "opmux graph": 110.0, "hf fp8": {"failed": "too | slow. Or so"}, "opmux fp8": 121.0}
    text = page(models_fp8=models(prefill=prefill, decode_8=decode, decode_1={"opmux fp8": 5.0}))
    section = text.partition("## Models\n")[2]
    assert "- a-model, prefill 2048: fp8 over bfloat16, best rows: 1.20, wanted 1.20" in section
    words = "fp8 over transformers' own, not compiled, as compiled it was not measured: 2.20, wanted 1.20"
    assert f"- a-model, prefill 2048: {words}" in section
    missed = "- a-model, decode 256, batch 8: fp8 over bfloat16, best rows: 1.10, **missed** 1.35: reason not found yet"
    assert missed in section
    assert section.count("- a-model") == 3
    assert "a GPU, torch 2.11.0, transformers 5.17.0." in section
    assert "| 1.32 | a-model | prefill 2048 | opmux fp8 token | 132 | 2.2 |  |" in section
    assert "| - | a-model | decode 256, batch 8 | hf fp8 | - | - | failed: `too / slow` |" in section
    assert "| - | a-model | decode 256, batch 1 | opmux fp8 | 5 | 2.2 |  |" in section


def test_a_run_with_transformers_own_kernels_is_compared_in_itself(page: Callable[..., str]) -> None:
    """Its rows in fp8 are not divided by those in bfloat16 of another run, nor by rows that failed there."""
    before = {"compiled": 100.0, "hf fp8": {"failed": "no kernels"}, "opmux fp8": 130.0}
    slow = {"tokens_per_second": 50.0, "peak_gib": 2.25, "steps": 30, "rounds": []}
    own = models(decode_8={"hf fp8": slow, "hf fp8 compiled": 100.0, "opmux fp8 graph": 115.0})
    text = page(models_fp8=models(decode_8=before), models_fp8_own={**own, "versions": {"some-gemm": "2.5"}})
    section = text.partition("## Models\n")[2]
    assert "- a-model, decode 256, batch 8: fp8 over transformers' own, best rows: 1.15, **missed** 1.20: " in section
    assert section.count("- a-model") == 2
    assert "a GPU, some-gemm 2.5." in section
    assert "| - | a-model | decode 256, batch 8 | hf fp8 compiled | 100 | 2.2 |  |" in section
    assert "| - | a-model | decode 256, batch 8 | hf fp8 | 50 | 2.2 | 30 tokens decoded |" in section


def test_a_patched_mixture_is_compared_with_the_best_experts_function(page: Callable[..., str]) -> None:
    prefill = {"eager": 50.0, "eager batched": 80.0, "compiled": {"left_out": "no compiler"}, "opmux": 100.0}
    section = page(mixture=models(prefill=prefill)).partition("## Models\n")[2]
    assert "- a-model, prefill 4096: patched over transformers' best experts function: 1.25, wanted 1.20" in section
    assert section.count("- a-model") == 1
    assert "| 0.62 | a-model | prefill 4096 | eager | 50 | 2.2 |  |" in section
    assert "| - | a-model | prefill 4096 | compiled | - | - | left out: `no compiler` |" in section


def test_models_with_codes_in_the_cache_have_rows_and_no_targets(page: Callable[..., str]) -> None:
    decode = {"opmux graph": 100.0, "opmux codes graph": 106.0, "opmux fp8 codes graph": 150.0}
    section = page(models_codes=models(decode_64=decode)).partition("## Models\n")[2]
    assert "- a-model" not in section
    assert "| - | a-model | decode 256, batch 64 | opmux codes graph | 106 | 2.2 |  |" in section


def test_without_models_there_is_no_section(page: Callable[..., str]) -> None:
    assert "## Models" not in page()
