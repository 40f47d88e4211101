"""The check that CI covers every session tells what it does not."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def check_ci(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/check_ci.py."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import check_ci

    return check_ci


def known(check_ci: ModuleType) -> set[str]:
    """Every session that the scripts or the table of the check name."""
    run = {*check_ci.named("run"), *check_ci.named("whole")}
    return run | {
        *check_ci.CHECKS_NOTHING,
        *check_ci.BY_HAND,
        *check_ci.PARTS,
        *(part for parts in check_ci.WORK_OF.values() for part in parts),
    }


def test_what_ci_runs_covers_the_sessions(check_ci: ModuleType) -> None:
    run = [*check_ci.named("run"), *check_ci.named("whole")]
    assert len(run) >= 9
    assert check_ci.problems(known(check_ci), run) == []


@pytest.mark.parametrize("left_out", ["lint", "build", "test-gfx950", "test-sm90", "test-sm90-oldest"])
def test_a_session_that_nothing_runs_is_named(check_ci: ModuleType, left_out: str) -> None:
    run = [name for name in (*check_ci.named("run"), *check_ci.named("whole")) if name != left_out]
    assert f"{left_out}: run by neither .ci/run nor .ci/whole" in check_ci.problems(known(check_ci), run)


def test_a_session_of_archs_counts_once_all_of_them_are_run(check_ci: ModuleType) -> None:
    told = check_ci.problems(known(check_ci), check_ci.named("run"))
    assert "test-kernels: run by neither .ci/run nor .ci/whole" in told


def test_a_session_that_is_none_is_named(check_ci: ModuleType) -> None:
    assert check_ci.problems(known(check_ci) - {"demo"}, ["lint"])[-1] == "demo: no such session in noxfile.py"


def test_the_program_exits_with_1_where_something_is_left_out(check_ci: ModuleType) -> None:
    program = [sys.executable, ROOT / "scripts" / "check_ci.py", *sorted(known(check_ci))]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    done = subprocess.run([*program, "test-new"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "test-new: run by neither .ci/run nor .ci/whole\n")


def test_what_a_session_is_said_to_do_it_does(check_ci: ModuleType) -> None:
    """The functions that `ci` and `ci-core` call are those of the sessions that they stand for."""
    source = (ROOT / "noxfile.py").read_text()
    for part in ("check_types", "build_docs", "interpret", "run_demo", "run_bench"):
        assert len(re.findall(rf"\b{part}\b", source)) >= 3, part
    assert 'check_machine_code(session, "gfx942", "--sample")' in source
