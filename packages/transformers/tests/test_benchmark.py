"""The program of end-to-end figures keeps what other runs wrote to its file."""

import argparse
import contextlib
import gc
import importlib.util
import json
import math
import multiprocessing
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import opmux

RATE = {"tokens_per_second": 1.0, "peak_gib": 0.0}
PROGRAM = Path(__file__).parent.parent / "benchmarks" / "models.py"


@pytest.fixture
def program() -> ModuleType:
    """benchmarks/models.py as a module."""
    spec = importlib.util.spec_from_file_location("opmux_models_benchmark", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def results(models: dict[str, Any], **versions: str) -> dict[str, Any]:
    return {"versions": {"torch": "2", **versions}, "device": "d", "dtype": "t", "steps": 4, "models": models}


BEFORE = {"llama-1b": {"prefill": {"eager": 1, "liger": 1, "opmux": 1}, "training": {"eager": 1}}}


@pytest.mark.parametrize(
    ("run", "rows", "after"),
    [
        ({}, ["eager"], BEFORE),
        (
            {"qwen3-4b": {"prefill": {"eager": 2}}},
            ["eager"],
            {**BEFORE, "qwen3-4b": {"prefill": {"eager": 2}}},
        ),
        (
            {"llama-1b": {"decode-1": {"eager": 2}, "prefill": {"opmux": 2}}},
            ["opmux"],
            {
                "llama-1b": {
                    "prefill": {"eager": 1, "liger": 1, "opmux": 2},
                    "training": {"eager": 1},
                    "decode-1": {"eager": 2},
                }
            },
        ),
        (  # one that this run had and did not come to is not left from another
            {"llama-1b": {"prefill": {"eager": 2}}},
            ["eager", "liger", "opmux"],
            {"llama-1b": {"prefill": {"eager": 2}, "training": {"eager": 1}}},
        ),
    ],
    ids=["nothing run", "another model", "some rows", "all rows"],
)
def test_a_run_replaces_its_own_rows(
    program: ModuleType, run: dict[str, Any], rows: list[str], after: dict[str, Any]
) -> None:
    before = results(BEFORE)
    found = program.merged(before, results(run), rows)
    assert found == results(after)
    assert before == results(BEFORE)


def test_versions_of_all_runs_are_kept(program: ModuleType) -> None:
    found = program.merged(results({}, liger="1"), results({}, tilegym="1"), ["eager"])
    assert found["versions"] == {"torch": "2", "liger": "1", "tilegym": "1"}


def test_differences_are_named(program: ModuleType) -> None:
    here = results({})
    assert program.differences(results({}, liger="1"), here) == []
    assert program.differences(results({}, torch="1"), here) == ["torch 1, not 2"]
    for key in ("device", "dtype", "steps"):
        assert program.differences({**here, key: "x"}, here) == [f"{key} x, not {here[key]}"]


def test_the_file_is_read_and_written(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"tokens_per_second": 2.0, "peak_gib": 0.0}

    def measure(arguments: Any, found: dict[str, Any], save: Any) -> None:
        found["models"] = {"llama-1b": {work: dict.fromkeys(arguments.rows, entry) for work in arguments.work}}
        save()

    monkeypatch.setattr(program, "measure", measure)
    file = tmp_path / "models.json"
    for work, row in (("prefill", "eager"), ("training", "eager"), ("prefill", "opmux")):
        words = ["models.py", "--tiny", "--json", str(file), "--work", work, "--rows", row]
        monkeypatch.setattr(sys, "argv", words)
        program.main()
    written = json.loads(file.read_text())
    assert written["models"] == {
        "llama-1b": {"prefill": {"eager": entry, "opmux": entry}, "training": {"eager": entry}}
    }
    assert "1.00 x eager  1.00 x best other" in capsys.readouterr().out

    file.write_text(json.dumps({**written, "device": "another"}))
    with pytest.raises(SystemExit):
        program.main()
    assert "has results of device another, not cpu" in capsys.readouterr().err


def test_a_row_with_other_gradients_does_not_count(program: ModuleType) -> None:
    table = {"eager": {"rounds": [{"gradient": 2.0}]}}
    assert program.other_gradients(table, {"gradient": 2.05}) is None
    assert program.other_gradients({}, {"gradient": 2.05}) is None
    assert program.other_gradients(table, {"tokens_per_second": 1.0}) is None
    expected = "its gradients have the norm 1.5, those of the unpatched model 2"
    assert program.other_gradients(table, {"gradient": 1.5}) == expected


def test_a_row_that_does_not_answer_is_left_out(program: ModuleType) -> None:
    class Process:
        exitcode = 3

        def join(self, seconds: float) -> None: ...

        def is_alive(self) -> bool:
            return False

    workers = program.Workers("llama-1b", [], argparse.Namespace(limit=0.0, warm=math.inf))
    pipes = {name: multiprocessing.Pipe() for name in ("eager", "liger", "tilegym")}
    workers.running = {name: (Process(), here) for name, (here, _) in pipes.items()}
    pipes["eager"][1].send(("measured", {}))
    pipes["liger"][1].close()
    ended, late = "the process ended with 3", "took longer than 0 s"
    assert workers.ask("prefill", [*pipes]) == {
        "eager": ("measured", {}),
        "liger": ("failed", ended),
        "tilegym": ("failed", late),
    }
    assert workers.left_out == {"liger": ended, "tilegym": late}
    assert workers.running.keys() == {"eager"}
    workers.limit, workers.ready = 60.0, time.monotonic() - program.GRACE  # it did not break off what it was late with
    assert workers.ask_all([("eager", f"{program.UNTIMED}prefill")]) == {
        ("eager", f"{program.UNTIMED}prefill"): ("failed", late)
    }


def test_the_mixture_runs_with_both_experts_functions_and_patched(program: ModuleType) -> None:
    config = program.MODELS[program.MIXTURE]()
    assert (config.num_experts, config.num_experts_per_tok, config.num_hidden_layers) == (128, 8, 6)
    assert program.Settings(False, 4, program.MIXTURE).prefill == 4096
    assert program.Settings(False, 4, "llama-1b").prefill == 2048
    settings = program.Settings(True, 4, program.MIXTURE)
    experts = {}
    for name in ("eager", "eager batched", "opmux"):
        row = program.Row(name, program.MIXTURE, settings)
        experts[name] = row.model.config._experts_implementation
        for work in ("prefill", "decode-1"):
            assert row.run(work)["tokens_per_second"] > 0
    assert experts == {"eager": "grouped_mm", "eager batched": "batched_mm", "opmux": "opmux"}
    compiled = program.Row("compiled deepgemm", program.MIXTURE, settings)
    assert (compiled.static, compiled.model.config._experts_implementation) == (True, "deepgemm")


def test_only_mixtures_have_rows_of_experts_functions(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "Workers", Rows)
    arguments = argparse.Namespace(
        models=["llama-1b", program.MIXTURE], rows=["compiled", "compiled batched", "compiled deepgemm"],
        work=["prefill", "decode-1", "training"], rounds=1, total=60.0, limit=9.0,
    )  # fmt: skip
    found = results({})
    program.measure(arguments, found, lambda: None)
    rows = {model: {work: [*table] for work, table in tables.items()} for model, tables in found["models"].items()}
    assert rows == {
        "llama-1b": {"prefill": ["compiled"], "decode-1": ["compiled"], "training": ["compiled"]},
        program.MIXTURE: {
            "prefill": ["compiled", "compiled deepgemm"],
            "decode-1": ["compiled", "compiled batched", "compiled deepgemm"],
            "training": ["compiled"],
        },
    }


def test_a_turn_of_training_leaves_no_optimiser_behind(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state is twice the model; others have the device next."""

    def optimisers() -> list[Any]:
        held = [one for one in gc.get_objects() if type(one) is torch.optim.AdamW]
        return [one for one in held if id(one) not in before]

    class Pipe:
        def __init__(self) -> None:
            self.asked, self.answers, self.kept = ["training", None], [], []

        def recv(self) -> str | None:
            return self.asked.pop(0)

        def send(self, answer: Any) -> None:
            self.answers.append(answer[0])
            self.kept.append(optimisers())

    before: set[int] = set()
    before = {id(one) for one in optimisers()}
    for failing in (False, True):
        if failing:
            monkeypatch.setattr(torch.optim.AdamW, "zero_grad", lambda self, set_to_none: 1 / 0)
        pipe = Pipe()
        program.work_in_turns("eager", "llama-1b", True, 4, pipe)
        assert pipe.answers == ["ready", "failed" if failing else "measured"]
        assert pipe.kept == [[], []]


def test_a_row_that_warms_up_measures_nothing(program: ModuleType) -> None:
    sent: list[Any] = []
    asked = iter([f"{program.UNTIMED}decode-1", "decode-1", None])
    program.work_in_turns("eager", "llama-1b", True, 4, SimpleNamespace(recv=lambda: next(asked), send=sent.append))
    assert sent[1] == ("measured", {})
    assert set(sent[2][1]) == {"tokens_per_second", "peak_gib"}


def test_a_slow_row_decodes_as_many_tokens_as_fit_into_a_turn(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "PACED", 1)
    few = program.Row("eager", "llama-1b", program.Settings(True, 4, turn=1e-9)).run("decode-8")
    assert few["steps"] == 1
    assert few["tokens_per_second"] > 0
    table: dict[str, Any] = {}
    workers = SimpleNamespace(ask=lambda work, names: {names[0]: ("measured", few)})
    assert program.turn(workers, table, "decode-8", "eager").endswith("tokens/s, 1 tokens decoded")
    assert table["eager"]["steps"] == 1
    program.show({"models": {"llama-1b": {"decode-8": table}}})
    assert ", 1 tokens decoded" in capsys.readouterr().out
    row = program.Row("eager", "llama-1b", program.Settings(True, 4, turn=60.0))
    assert [set(row.run(work)) for work in ("decode-8", "prefill")] == [{"tokens_per_second", "peak_gib"}] * 2


def test_work_that_is_not_ready_in_time_is_broken_off(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a compiler catches the first exception; work that is asked for later, or to be measured, runs."""
    sent: list[Any] = []
    asked = iter([f"{program.UNTIMED}prefill", f"{program.UNTIMED}decode-1", "decode-8", None])
    ran: list[str] = []

    def run(self: Any, work: str) -> dict[str, float]:
        ran.append(work)
        if work.startswith(program.UNTIMED):
            with contextlib.suppress(TimeoutError):
                time.sleep(30)
            time.sleep(30)
        return {}

    monkeypatch.setattr(program.Row, "run", run)
    pipe = SimpleNamespace(recv=lambda: next(asked), send=sent.append)
    program.work_in_turns("eager", "llama-1b", True, 4, pipe, ready=time.monotonic() + 1.0)
    late = (program.LATE, "it was not ready when the turns began")
    assert sent == [("ready", None), late, late, ("measured", {})]
    assert ran == [f"{program.UNTIMED}prefill", "decode-8"]


def test_a_row_that_was_late_with_some_work_has_its_other_turns(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(Rows):
        def ask_all(self, asked: list[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, Any]]:
            return {one: (program.LATE, "late") if one[1].endswith("prefill") else ("measured", {}) for one in asked}

    monkeypatch.setattr(program, "Workers", Late)
    arguments = argparse.Namespace(
        models=["llama-1b"], rows=["liger"], work=["prefill", "decode-1"], rounds=2, total=60.0, limit=9.0
    )
    found = results({})
    program.measure(arguments, found, lambda: None)
    tables = found["models"]["llama-1b"]
    assert tables["prefill"] == {"liger": {"rounds": [], "failed": "late"}}
    assert len(tables["decode-1"]["liger"]["rounds"]) == 2


@pytest.mark.parametrize("fails", [("run",), ("leave",), ("run", "leave")], ids="-".join)
def test_the_first_failure_of_a_turn_is_told(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, fails: tuple[str, ...]
) -> None:
    sent: list[Any] = []
    asked = iter(["prefill", program.PARK, None])
    pipe = SimpleNamespace(recv=lambda: next(asked), send=sent.append)

    def planted(name: str) -> Any:
        def method(self: Any, work: str) -> dict[str, float] | None:
            if name in fails:
                raise RuntimeError(f"planted in {name}")
            return {"tokens_per_second": 1.0} if name == "run" else None

        return method

    for name in ("run", "leave"):
        monkeypatch.setattr(program.Row, name, planted(name))
    program.work_in_turns("eager", "llama-1b", True, 4, pipe)
    assert sent == [("ready", None), ("failed", f"RuntimeError: planted in {fails[0]}")]


made: list[Any] = []


class Rows:
    """Stands for the processes of rows: ``eager`` ends at the last work, ``opmux`` fails beside others."""

    def __init__(self, model_name: str, rows: list[str], arguments: Any) -> None:
        self.running: dict[str, None] = dict.fromkeys(rows)
        self.left_out: dict[str, str] = {}
        self.asked: list[tuple[str, ...]] = []
        made.append(self)

    def ask(self, work: str, names: list[str]) -> dict[str, tuple[str, Any]]:
        self.asked.append((work, *names))
        return dict.fromkeys(names, ("measured", RATE))

    def ask_all(self, asked: list[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, Any]]:
        answers: dict[tuple[str, str], tuple[str, Any]] = dict.fromkeys(asked, ("measured", RATE))
        for name, work in asked:
            if name == "opmux" or (name == "eager" and work == asked[-1][1]):
                answers[name, work] = ("failed", "no memory" if name == "opmux" else "ended")
        if "eager" in self.running:
            self.left_out["eager"] = "ended"
            self.stop("eager")
        return answers

    def tell(self, what: str) -> None:
        self.asked.append((what,))

    def stop(self, name: str) -> None:
        self.running.pop(name)


def test_what_failed_beside_others_has_its_turn(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "Workers", Rows)
    arguments = argparse.Namespace(
        models=["llama-1b"], rows=["eager", "liger", "opmux"], work=["prefill", "decode-1"], rounds=2, total=60.0,
        limit=9.0,
    )  # fmt: skip
    found = results({})
    program.measure(arguments, found, lambda: None)
    for work in arguments.work:  # what a row did before it ended is no reason
        table = found["models"]["llama-1b"][work]
        assert {name: len(entry["rounds"]) for name, entry in table.items()} == {"eager": 0, "liger": 2, "opmux": 2}
        assert table["eager"]["failed"] == "ended"


def test_no_work_begins_after_the_time_is_over(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "Workers", Rows)
    saved: list[str] = []
    arguments = argparse.Namespace(
        models=["llama-1b"], rows=["liger"], work=["prefill"], rounds=2, total=-1.0, limit=9.0
    )
    found = results({})
    program.measure(arguments, found, lambda: saved.append(found["stopped"]))
    assert found["models"] == {"llama-1b": {}}
    assert saved == ["after -1 s"]


def test_every_round_has_all_work_and_training_comes_last(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "Workers", Rows)
    arguments = argparse.Namespace(
        models=["llama-1b"], rows=["liger", "opmux graph", "opmux fp8"], work=["training", "prefill", "decode-8"],
        rounds=2, total=60.0, limit=9.0,
    )  # fmt: skip
    program.measure(arguments, results({}), lambda: None)
    inference = [(work, row) for work in ("prefill", "decode-8") for row in arguments.rows]
    assert made[-1].asked == [*inference * 2, (program.PARK,), *[("training", "liger")] * 2]


def test_files_of_several_runs_are_joined(program: ModuleType, tmp_path: Path) -> None:
    def entry(rate: float) -> dict[str, Any]:
        return {"tokens_per_second": rate, "peak_gib": 1.0}

    parts = [tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.json"]
    parts[0].write_text(json.dumps(results({"llama-1b": {"prefill": {"eager": entry(1), "opmux": entry(2)}}})))
    parts[1].write_text(json.dumps(results({"llama-1b": {"prefill": {"opmux": entry(3)}}}, tilegym="1")))
    parts[2].write_text(json.dumps(results({"qwen3-4b": {"training": {"eager": entry(4)}}})))
    program.join(tmp_path / "all.json", parts, pytest.fail)
    assert json.loads((tmp_path / "all.json").read_text()) == results(
        {
            "llama-1b": {"prefill": {"eager": entry(1), "opmux": entry(3)}},
            "qwen3-4b": {"training": {"eager": entry(4)}},
        },
        tilegym="1",
    )
    refused: list[str] = []
    parts[0].write_text(json.dumps({**results({}), "device": "another"}))
    program.join(tmp_path / "all.json", parts[:1], refused.append)
    assert refused == [f"{parts[0]}: {tmp_path / 'all.json'} has results of device d, not another"]


def test_rows_in_fp8_are_quantised_and_patched(program: ModuleType) -> None:
    settings = program.Settings(tiny=True, steps=4)
    rows = {name: program.Row(name, "llama-8b", settings) for name in ("opmux fp8", "opmux fp8 token", "hf fp8")}
    for name, row in rows.items():
        stored = {p.dtype for path, p in row.model.named_parameters() if path.endswith("proj.weight")}
        assert stored == {torch.float8_e4m3fn}, name
        assert row.model.lm_head.weight.dtype is torch.float32
    for name in ("opmux fp8", "opmux fp8 token"):
        with opmux.trace() as traced:
            found = rows[name].run("decode-8")
        assert found["tokens_per_second"] > 0
        assert {"quantize", "scaled_linear", "paged_attention"} <= {row.op for row in traced.rows}
    others = {*program.PLAIN_ROWS, *program.GRAPH_ROWS, *program.HUB_ROWS, *program.CACHE_ROWS}
    assert {*program.FP8_ROWS, *others} == set(program.ROWS)


def test_rows_that_are_compiled_and_captured_have_the_cache_of_their_kind(program: ModuleType) -> None:
    settings = program.Settings(tiny=True, steps=4)
    kinds = {
        "compiled graph": "StaticCache",
        "opmux compiled graph": "PagedCache",
        "compiled deepgemm graph": "StaticCache",
    }
    for name, kind in kinds.items():
        row = program.Row(name, program.MIXTURE, settings)
        assert type(row.cache(1, 64)).__name__ == kind
        assert row.compiled(None) is not row.model
        if "deepgemm" in name:
            assert row.model.config._experts_implementation == "deepgemm"
        else:
            assert row.run("decode-1")["tokens_per_second"] > 0
        assert not program.fits_work(name, program.MIXTURE, "training")


def test_rows_whose_cache_keeps_codes_decode_only(program: ModuleType) -> None:
    for name in program.CACHE_ROWS:
        works = [work for work in program.WORK if program.fits_work(name, "llama-8b", work)]
        assert works == ["decode-1", "decode-8", "decode-64"]
    row = program.Row(program.CACHE_ROWS[0], "llama-8b", program.Settings(tiny=True, steps=4))
    assert row.cache(8, 64).shared.codes == "fp8"
    with opmux.trace() as traced:
        found = row.run("decode-8")
    assert found["tokens_per_second"] > 0
    assert {"write_kv_cache", "paged_attention"} <= {ran.op for ran in traced.rows}


def test_the_row_that_recomputes_trains_only(program: ModuleType) -> None:
    assert [work for work in program.WORK if program.fits_work("opmux recompute", "llama-1b", work)] == ["training"]
    row = program.Row("opmux recompute", "llama-1b", program.Settings(True, 4, "llama-1b"))
    with opmux.trace() as traced, row.train() as (_, step, *_):
        step()
    calls = {found.op: found.calls for found in traced.rows}
    assert calls["silu_mul"] == 2 * calls["silu_mul_backward"]


def test_only_rows_with_kernels_of_a_hub_import_from_the_given_folders(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    class Process:
        def __init__(self, target: Any, args: tuple[Any, ...], daemon: bool) -> None:
            given[args[0]], self.pipe = args[5], args[4]

        def start(self) -> None:
            self.pipe.send(("ready", None))

    context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=Process)
    monkeypatch.setattr(program.multiprocessing, "get_context", lambda kind: context)
    rows = ["hf fp8", "hf fp8 compiled", "compiled deepgemm", "opmux fp8", "compiled"]
    arguments = argparse.Namespace(limit=9.0, tiny=True, steps=4, hf_path=["/there"], turn=math.inf, warm=math.inf)
    program.Workers("llama-1b", rows, arguments)
    there = {name: ["/there"] for name in rows[:3]}
    assert given == {**there, "opmux fp8": (), "compiled": ()}


def test_a_row_imports_from_its_folders_first(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[list[str]] = []
    monkeypatch.setattr(sys, "path", ["/here"])
    monkeypatch.setattr(program, "Row", lambda *_: paths.append([*sys.path]))
    pipe = SimpleNamespace(recv=lambda: None, send=lambda _: None)
    program.work_in_turns("hf fp8", "llama-1b", True, 4, pipe, ["/there", "/there/too"])
    assert paths == [["/there", "/there/too", "/here"]]


def test_versions_in_the_given_folders_are_told(program: ModuleType, tmp_path: Path) -> None:
    for name, version in (("kernels", "0.16.2"), ("some-gemm", "2.5")):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    told = {
        at: program.environment(argparse.Namespace(tiny=True, steps=4, hf_path=at and [str(tmp_path)]))["versions"]
        for at in ((), "there")
    }
    assert told["there"] == {**told[()], "kernels": "0.16.2", "some-gemm": "2.5"}
