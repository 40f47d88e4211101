"""`run_conformance`: the report, its counts, its repro lines, and what is wrong use."""

import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from backends import backends, implementation, plugin
from torch import Tensor

import opmux
from opmux.arch import arch_of, cpu_plays
from opmux.errors import InvalidArgument, UnknownBackend
from opmux.plugin import Dtype, Implementation, MultipleOf
from opmux.plugins.loading import temporary_plugin
from opmux.testing import cases_of, run_case, run_conformance
from opmux.testing.execution import device_for

reference = opmux.rms_norm.reference


def bad_row(x: Tensor, weight: Tensor, **options: Any) -> Tensor:
    y = reference(x, weight, **options)
    if y.dim() > 1 and y.shape[0]:
        y[0] = 7.0
    return y


def test_the_report_is_as_documented() -> None:
    report = run_conformance("reference", ["rms_norm", "linear"], "interpreter")
    assert list(report) == ["backend", "version", "passed", "failed", "skipped", "ops", "not_loaded", "environment"]
    assert (report["backend"], report["version"]) == ("reference", opmux.__version__)
    assert [o["op"] for o in report["ops"]] == ["rms_norm", "linear"]
    for of_op in report["ops"]:
        assert list(of_op) == ["op", "cases", "claimed", "coverage", "max_error", "failures", "skips", "not_run"]
        assert list(of_op["max_error"]) == ["global", "row", "element"]
        assert all(0 < error <= 1 for error in of_op["max_error"].values())
    assert report["passed"] == sum(o["cases"] for o in report["ops"])
    assert json.loads(json.dumps(report)) == report
    environment = report["environment"]
    assert environment["profile"] == "interpreter"
    assert environment["torch"] == torch.__version__
    assert environment["constraints_not_broken"] == []
    assert (environment["arch"] == "cpu") == ("graph capture" in environment["not_checked"])


def test_failures_say_what_and_how_to_see_it_again() -> None:
    with backends(kernel=implementation(bad_row)):
        report = run_conformance("kernel", ["rms_norm"], "interpreter")
        (of_op,) = report["ops"]
        failed = {f["case"] for f in of_op["failures"]}
        assert report["failed"] == len(failed) > 3
        assert report["passed"] + report["failed"] + report["skipped"] == of_op["cases"]
        first = of_op["failures"][0]
        assert list(first) == ["case", "check", "message", "repro"]
        assert first["repro"] == (
            f"python -c \"from opmux.testing import run_case; run_case('kernel', 'rms_norm', '{first['case']}')\""
        )
        program, flag, code = shlex.split(first["repro"])
        assert (program, flag) == ("python", "-c")
        with pytest.raises(AssertionError) as caught:
            exec(code, {})
    text = str(caught.value)
    assert text.startswith(f"rms_norm on kernel fails case {first['case']}\n  element bound: `y`[0")
    assert text.endswith(f"again: {first['repro']}")


@contextlib.contextmanager
def as_on(arch: str) -> Iterator[None]:
    with cpu_plays(arch):
        yield


def test_everything_runs_within_the_context_that_was_named() -> None:
    """Here or in processes of their own: what is claimed, and what a repro line says, follow from it."""
    seen = []

    def on_gfx942(x: Tensor, weight: Tensor, **options: Any) -> Tensor:
        seen.append(arch_of(x.device).name)
        return bad_row(x, weight, **options)

    within = f"{__name__}:as_on(gfx942)"
    with backends(kernel=Implementation(op="rms_norm", target=on_gfx942, archs=("gfx9*",))):
        report = run_conformance("kernel", ["rms_norm"], "interpreter", within=within)
        first = report["ops"][0]["failures"][0]
        assert first["repro"].endswith(f"'{first['case']}', within='{within}')\"")
        with pytest.raises(AssertionError, match="element bound"):
            exec(shlex.split(first["repro"])[2], {})
    assert set(seen) == {"gfx942"}
    assert (report["environment"]["arch"], report["environment"]["within"]) == ("gfx942", within)
    assert run_conformance("reference", ["rms_norm"], "interpreter")["environment"]["within"] == ""


def test_a_context_that_is_not_there() -> None:
    with pytest.raises(InvalidArgument) as caught:
        run_conformance("reference", ["rms_norm"], "interpreter", within="opmux.nowhere:on")
    assert str(caught.value) == (
        "conformance: `within` expected module:function or module:function(text), got 'opmux.nowhere:on': "
        "No module named 'opmux.nowhere'"
    )


def test_the_repro_line_runs_in_a_shell() -> None:
    case = cases_of("rms_norm", "small")[0].id
    code = f"from opmux.testing import run_case; run_case('reference', 'rms_norm', '{case}')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.startswith(f"rms_norm {case}: passed on reference; error over bound: element 0.")
    assert run.stderr == ""


def test_what_is_not_claimed_is_a_skip_with_the_declared_reason() -> None:
    kernel = Implementation(
        op="rms_norm", target=reference, when=(Dtype("x", "bfloat16", "float32"), MultipleOf("hidden", 8))
    )
    with temporary_plugin(plugin(kernel), "kernel"):
        report = run_conformance("kernel", None, "small")
    (of_op,) = report["ops"]
    assert of_op["failures"] == []
    assert report["skipped"] == sum(of_op["skips"].values()) == of_op["cases"] - of_op["claimed"]
    assert of_op["coverage"] == of_op["claimed"] / of_op["cases"] < 1
    assert of_op["skips"]["x is float16, takes bfloat16, float32"] > 1
    assert any(reason.endswith(" is not a multiple of 8") for reason in of_op["skips"])
    assert of_op["skips"]["not deterministic (deterministic=False)"] == 2


def test_several_implementations_of_a_backend_each_give_their_reason() -> None:
    narrow = Implementation(op="rms_norm", name="a", target=reference, when=(Dtype("x", "bfloat16"),))
    wide = Implementation(op="rms_norm", name="b", target=reference, when=(Dtype("x", "float32"),))
    with temporary_plugin(plugin(narrow, wide), "kernel"):
        whole = run_conformance("kernel", None, "interpreter")
        one = run_conformance("kernel:a", None, "interpreter")
    reasons = list(whole["ops"][0]["skips"])
    assert "kernel:a: x is float16, takes bfloat16; kernel:b: x is float16, takes float32" in reasons
    assert one["ops"][0]["claimed"] < whole["ops"][0]["claimed"]
    assert one["backend"] == "kernel:a"


def test_other_numerics_are_not_held_to_the_bounds() -> None:
    fast = Implementation(op="rms_norm", target=bad_row, numerics="a row of sevens")
    with temporary_plugin(plugin(fast), "kernel"):
        report = run_conformance("kernel", None, "interpreter")
    assert list(report["ops"][0]["skips"]) == ["different numerics are declared (a row of sevens)"]


def test_a_run_without_a_case_fails() -> None:
    elsewhere = Implementation(op="rms_norm", target=reference, archs=("gfx90a",))
    with temporary_plugin(plugin(elsewhere), "kernel"):
        report = run_conformance("kernel", None, "interpreter")
    assert (report["passed"], report["failed"]) == (0, 1)
    (failure,) = report["ops"][0]["failures"]
    assert failure["check"] == "claims"
    assert failure["message"].startswith(
        f"no case ran: kernel claims none of {report['ops'][0]['cases']} cases (archs: "
    )


def test_an_op_that_the_backend_does_not_implement_is_skipped_whole() -> None:
    with backends(kernel=implementation(reference)):
        report = run_conformance("kernel", ["rms_norm", "linear"], "interpreter")
    assert report["failed"] == 0
    assert report["ops"][1]["coverage"] == 0
    assert list(report["ops"][1]["skips"]) == ["the backend does not implement this op"]
    assert report["ops"][1]["max_error"] == {"global": None, "row": None, "element": None}


def test_progress_is_told_after_each_case() -> None:
    told: list[tuple[str, int, int]] = []
    report = run_conformance(
        "reference", ["silu_mul", "linear"], "interpreter", lambda op, done, total: told.append((op, done, total))
    )
    total = sum(o["cases"] for o in report["ops"])
    assert [done for _, done, _ in told] == list(range(1, total + 1))
    assert {t for *_, t in told} == {total}
    assert list(dict.fromkeys(op for op, *_ in told)) == ["silu_mul", "linear"]


def test_constraints_that_no_case_breaks_are_told() -> None:
    kernel = Implementation(op="rms_norm", target=reference, when=(MultipleOf("hidden", 1),))
    with temporary_plugin(plugin(kernel), "kernel"):
        report = run_conformance("kernel", None, "interpreter")
    (told,) = report["environment"]["constraints_not_broken"]
    assert told.startswith("rms_norm: kernel: MultipleOf(")


def test_a_target_that_raises_is_a_finding() -> None:
    def broken(*tensors: Tensor, **options: Any) -> Tensor:
        raise RuntimeError("no such instruction")

    with backends(kernel=implementation(broken)):
        report = run_conformance("kernel", None, "interpreter")
    assert report["passed"] == 0
    assert {f["check"] for f in report["ops"][0]["failures"]} == {"runs"}
    assert "RuntimeError: no such instruction" in report["ops"][0]["failures"][0]["message"]


def test_a_target_that_cannot_be_imported_is_a_finding() -> None:
    with backends(kernel=Implementation(op="rms_norm", target="no_such_package.norm:rms_norm")):
        report = run_conformance("kernel", None, "interpreter")
    (first, *_) = report["ops"][0]["failures"]
    assert first["check"] == "runs"
    assert "No module named 'no_such_package'" in first["message"]


def test_what_is_not_installed_is_a_skip() -> None:
    with backends(kernel=Implementation(op="rms_norm", target=reference, requires=("no_such_package",))):
        report = run_conformance("kernel", None, "interpreter")
    assert list(report["ops"][0]["skips"]) == ["needs no_such_package, not installed: pip install no_such_package"]


def test_unknown_backend() -> None:
    with pytest.raises(UnknownBackend) as caught:
        run_conformance("tritno")
    assert str(caught.value) == (
        "conformance: `backend` expected one of opmux, reference, got 'tritno': no installed plugin registers it; "
        "see `opmux backends`"
    )


def test_a_backend_whose_plugin_failed_to_load() -> None:
    with (
        temporary_plugin(ImportError("no toolchain"), "kernel"),
        pytest.raises(UnknownBackend, match="its plugin failed to load: ImportError: no toolchain"),
    ):
        run_conformance("kernel")


def test_unknown_op_and_profile() -> None:
    with pytest.raises(InvalidArgument, match="`ops` expected names of ops, got 'nope'"):
        run_conformance("reference", ["nope"])
    with pytest.raises(InvalidArgument, match="`profile` expected one of small, "):
        run_conformance("reference", ["rms_norm"], "huge")


def test_a_profile_for_gpus_is_refused_on_a_cpu() -> None:
    if device_for("reference").type == "cuda":
        backend = implementation(reference, archs=("cpu",))
    else:
        backend = implementation(reference)
    with backends(kernel=backend), pytest.raises(InvalidArgument, match="which needs a GPU, and kernel has none here"):
        run_conformance("kernel", None, "large")


def test_run_case_refuses_what_is_no_case() -> None:
    with pytest.raises(InvalidArgument, match="`case` expected the id of a conformance case"):
        run_case("reference", "rms_norm", "bf16")
    with pytest.raises(UnknownBackend):
        run_case("nope", "rms_norm", "bf16,tokens=4,hidden=8")


def test_run_case_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_case("reference", "linear", "f32,tokens=4,k=8,n=8")
    assert outcome.status == "passed"
    with backends(kernel=implementation(reference, when=(Dtype("x", "float16"),))):
        assert run_case("kernel", "rms_norm", "f32,tokens=4,hidden=8").status == "skipped"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("linear f32,tokens=4,k=8,n=8: passed on reference; error over bound: element ")
    assert lines[1] == "rms_norm f32,tokens=4,hidden=8: skipped on kernel; x is float32, takes float16"


def test_a_mistake_of_the_suite_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from opmux.testing import checks

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("by the kit")

    monkeypatch.setattr(checks, "allowed_errors", broken)
    report = run_conformance("reference", ["silu_mul"], "interpreter")
    assert {f["check"] for f in report["ops"][0]["failures"]} == {"suite"}
    assert "the suite itself failed at test_runner.py:" in report["ops"][0]["failures"][0]["message"]


def broken(*tensors: Tensor, **options: Any) -> Tensor:
    raise RuntimeError("no such instruction")


def test_a_target_that_raises_shows_where() -> None:
    with backends(kernel=implementation(broken)):
        report = run_conformance("kernel", ["rms_norm"], "interpreter")
        failure = report["ops"][0]["failures"][0]
        with pytest.raises(AssertionError) as caught:
            run_case("kernel", "rms_norm", failure["case"])
    lines = failure["traceback"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert 'test_runner.py", line' in lines[1]
    assert lines[-1] == "RuntimeError: no such instruction"
    assert "\n    RuntimeError: no such instruction" in str(caught.value)


def test_a_record_that_did_not_load_fails_the_run() -> None:
    bad = Implementation(op="rms_norm", name="bad", target=reference, when=(Dtype("nothing", "float32"),))
    with backends(kernel=[implementation(reference), bad]):
        report = run_conformance("kernel", ["rms_norm"], "interpreter")
    assert report["failed"] == 1
    (reason,) = report["not_loaded"]
    assert reason.startswith("kernel:bad of rms_norm: ")


DIES = """
import os
from types import SimpleNamespace
from opmux.plugin import Implementation, hookimpl
from opmux.plugins.loading import load_plugin
from opmux.testing import run_conformance

@hookimpl
def opmux_implementations():
    return [Implementation(op="rms_norm", target=lambda *tensors, **options: os.abort())]

load_plugin("dies", lambda: SimpleNamespace(OPMUX_API_VERSION=1, opmux_implementations=opmux_implementations), "m", "1")
run_conformance("dies", profile="interpreter")
"""


def test_a_kernel_that_aborts_is_told_with_its_case() -> None:
    run = subprocess.run([sys.executable, "-c", DIES], capture_output=True, text=True, check=False)
    assert run.returncode != 0
    told = run.stderr.splitlines()[-1]
    assert told.startswith("conformance: the process died in case bf16,tokens=2x2,hidden=24 of rms_norm: python -c ")
    assert told.endswith("; give --jobs 1 to go on to the next op")
