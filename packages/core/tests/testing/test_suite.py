"""The suite under pytest: the class, the module, known exceptions, and what their tests say."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from backends import backends, implementation
from torch import Tensor

import opmux
from opmux.errors import InvalidArgument, UnknownBackend
from opmux.plugin import Dtype
from opmux.testing import conformance_suite
from opmux.testing.exceptions import read_exceptions
from opmux.testing.suite import (
    case_parameters,
    check_case,
    check_claims,
    check_constraints,
    check_exceptions,
    check_loaded,
)

CASE = "f32,tokens=4,hidden=8"
reference = opmux.rms_norm.reference


def sevens(x: Tensor, weight: Tensor, **options: Any) -> Tensor:
    return reference(x, weight, **options).fill_(7.0)


TestReference = conformance_suite("reference", ["silu_mul"], profile="interpreter")


def test_a_suite_has_a_test_for_each_case() -> None:
    made = conformance_suite("reference", ["silu_mul", "linear"], profile="interpreter")
    assert made.__doc__ == "The conformance suite of reference, profile interpreter."
    parameters = case_parameters("reference", ["silu_mul", "linear"], "interpreter")
    assert len({p.id for p in parameters}) == len(parameters) > 60
    assert parameters[0].id == f"silu_mul-{parameters[0].values[1]}"


def test_a_suite_of_nothing_is_refused() -> None:
    with pytest.raises(UnknownBackend):
        conformance_suite("nope")
    with pytest.raises(InvalidArgument):
        conformance_suite("reference", ["nope"])
    with pytest.raises(InvalidArgument):
        conformance_suite("reference", profile="nope")


def test_a_failing_case_says_everything() -> None:
    with backends(kernel=implementation(sevens)), pytest.raises(pytest.fail.Exception) as caught:
        check_case("kernel", "rms_norm", CASE)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"rms_norm on kernel fails case {CASE}"
    assert lines[1].startswith("  element bound: `y`[")
    assert lines[-1].startswith("  again: python -c ")


def test_a_case_that_is_not_claimed_is_skipped_with_the_reason() -> None:
    backend = implementation(reference, when=(Dtype("x", "bfloat16"),))
    with (
        backends(kernel=backend),
        pytest.raises(pytest.skip.Exception, match="x is float32, takes bfloat16"),
    ):
        check_case("kernel", "rms_norm", CASE)


def test_claiming_nothing_fails() -> None:
    with backends(kernel=implementation(reference, archs=("gfx90a",))), pytest.raises(pytest.fail.Exception) as caught:
        check_claims("kernel", case_parameters("kernel", None, "interpreter"))
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("kernel claims none of ")
    assert "archs: gfx90a" in lines[1]


def test_a_record_that_did_not_load_fails() -> None:
    bad = implementation(reference, name="bad", when=(Dtype("nothing", "float32"),))
    with backends(kernel=[implementation(reference), bad]), pytest.raises(pytest.fail.Exception) as caught:
        check_loaded("kernel")
    assert str(caught.value).startswith("parts of kernel did not load\n  kernel:bad of rms_norm: ")


def test_plugins_are_loaded_where_ops_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from opmux.plugins import loading

    asked: list[bool] = []
    ensure = loading.ensure_loaded
    monkeypatch.setattr(loading, "ensure_loaded", lambda: bool(asked.append(True)) or ensure())
    conformance_suite("reference", ["silu_mul"], profile="interpreter")
    assert asked


def test_claiming_something_passes() -> None:
    with backends(kernel=implementation(reference, when=(Dtype("x", "float16"),))):
        check_claims("kernel", case_parameters("kernel", None, "interpreter"))
        check_constraints("kernel", "rms_norm")


@pytest.fixture
def exceptions(tmp_path: Path) -> Path:
    path = tmp_path / "exceptions.txt"
    path.write_text("# known\n\nrms_norm | f32,* | sevens, until issue 7 | not before\nrms_norm | nothing | lost\n")
    return path


def test_exceptions_are_read_with_their_reasons(exceptions: Path) -> None:
    first, second = read_exceptions(exceptions)
    assert (first.op, first.case, first.reason) == ("rms_norm", "f32,*", "sevens, until issue 7 | not before")
    assert first.where == f"{exceptions}:3"
    assert second.covers("rms_norm", "nothing")
    assert not second.covers("linear", "nothing")


def test_a_known_exception_is_an_expected_failure(exceptions: Path) -> None:
    with backends(kernel=implementation(sevens)), pytest.raises(pytest.xfail.Exception, match="until issue 7"):
        check_case("kernel", "rms_norm", CASE, exceptions)


def test_an_unexpected_pass_fails(exceptions: Path) -> None:
    with backends(kernel=implementation(reference)), pytest.raises(pytest.fail.Exception) as caught:
        check_case("kernel", "rms_norm", CASE, exceptions)
    assert str(caught.value) == (
        f"rms_norm on kernel passes case {CASE}, which {exceptions}:3 excepts (sevens, until issue 7 | not before): "
        "remove the line"
    )


def test_an_exception_that_names_no_case_fails(exceptions: Path) -> None:
    parameters = case_parameters("reference", ["rms_norm"], "interpreter")
    with pytest.raises(pytest.fail.Exception) as caught:
        check_exceptions(parameters, exceptions)
    assert str(caught.value) == (
        f"known exceptions that name no case: remove them\n  {exceptions}:4: rms_norm | nothing"
    )
    check_exceptions(parameters, None)


@pytest.mark.parametrize("line", ["rms_norm", "rms_norm | f32,*", "rms_norm | f32,* | "])
def test_an_exception_needs_a_reason(tmp_path: Path, line: str) -> None:
    path = tmp_path / "exceptions.txt"
    path.write_text(line + "\n")
    with pytest.raises(InvalidArgument) as caught:
        read_exceptions(path)
    assert str(caught.value) == (
        f"conformance: `exceptions` expected lines of the form `op | case | reason`, got {line!r} at {path}:1; "
        "give a reason for each"
    )


def pytest_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


MODULE = """
from types import SimpleNamespace
import opmux
from opmux.plugins.loading import load_plugin
from opmux.plugin import Dtype, Implementation, hookimpl
from opmux.testing import conformance_suite

def target(x, weight, **options):
    y = opmux.rms_norm.reference(x, weight, **options)
    return y.fill_(7.0) if x.dim() == 1 else y

@hookimpl
def opmux_implementations():
    return [Implementation(op="rms_norm", target=target, when=(Dtype("x", "bfloat16"),))]

load_plugin("mine", lambda: SimpleNamespace(OPMUX_API_VERSION=1, opmux_implementations=opmux_implementations), "m", "1")
TestMine = conformance_suite("mine", profile="interpreter")
"""


def test_a_package_uses_the_class(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(MODULE)
    run = pytest_run(tmp_path, "-v", "-rs", "test_mine.py")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "rms_norm on mine fails case bf16,tokens=-,hidden=24" in run.stdout
    assert "again: python -c \"from opmux.testing import run_case; run_case('mine', 'rms_norm', " in run.stdout
    assert "x is float32, takes bfloat16" in run.stdout
    assert "TestMine::test_claims PASSED" in run.stdout
    assert "TestMine::test_constraints[rms_norm] PASSED" in run.stdout


SUITE = ("-p", "opmux.testing.plugin", "--pyargs", "opmux.testing.conformance", "--profile", "interpreter")


def test_the_module_runs_for_any_backend(tmp_path: Path) -> None:
    run = pytest_run(tmp_path, *SUITE, "--backend", "reference", "--op", "silu_mul", "--op", "quantize")
    assert run.returncode == 0, run.stdout + run.stderr
    last = run.stdout.splitlines()[-1]
    assert " passed" in last
    assert "skipped" not in last


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "opmux.testing.conformance needs --backend NAME; see `opmux backends`"),
        ({"--backend": "nope"}, "`backend` expected one of opmux, reference, got 'nope'"),
        ({"--backend": "reference", "--op": ["nope"]}, "`ops` expected names of ops, got 'nope'"),
        ({"--backend": "reference", "--profile": "nope"}, "`profile` expected one of small, "),
    ],
)
def test_wrong_use_of_the_module_is_told(given: dict[str, Any], says: str) -> None:
    from opmux.testing import conformance
    from opmux.testing.plugin import pytest_generate_tests

    options = {"--profile": "interpreter", **given}
    metafunc: Any = SimpleNamespace(module=conformance, config=SimpleNamespace(getoption=options.get))
    with pytest.raises(pytest.UsageError) as caught:
        pytest_generate_tests(metafunc)
    assert says in str(caught.value)


def test_the_plugin_leaves_other_modules_alone() -> None:
    from opmux.testing.plugin import pytest_generate_tests

    metafunc: Any = SimpleNamespace(module=sys.modules[__name__])
    pytest_generate_tests(metafunc)
