"""What importing the kit brings with it."""

import subprocess
import sys

import pytest

import opmux.testing
from opmux.testing import _WHERE


def modules_after(statement: str) -> set[str]:
    code = (
        f"import sys\n{statement}\nprint(*(m for m in ('pytest', 'hypothesis', 'numpy.testing') if m in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_a_report_needs_no_pytest() -> None:
    assert modules_after("from opmux.testing import makes, derives, rounds") == set()
    assert "pytest" not in modules_after("from opmux.testing import run_conformance")


def test_every_public_name_is_there() -> None:
    assert sorted(_WHERE) == sorted(opmux.testing.__all__)
    for name in opmux.testing.__all__:
        assert getattr(opmux.testing, name).__doc__ or name == "PROFILES"


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match=r"module 'opmux\.testing' has no attribute 'nope'"):
        opmux.testing.nope
