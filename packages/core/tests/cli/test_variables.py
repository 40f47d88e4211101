"""The ``OPMUX_`` variables: each with its meaning, its value and what is wrong with it."""

import os
from pathlib import Path

import pytest

from opmux import policy
from opmux.cli.variables import variables
from opmux.plugins.loading import ensure_loaded


def variable(name: str) -> dict:
    (found,) = [v for v in variables() if v["name"] == name]
    return found


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable is set but those of the test."""
    ensure_loaded()  # as the environment says it, and before that is taken away
    for name in [*os.environ]:
        if name.startswith("OPMUX_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("name", policy.ENVIRONMENT)
def test_every_variable_is_listed_with_its_meaning_and_value(monkeypatch, name: str) -> None:
    told = variable(name)
    assert told == {"name": name, "value": None, "meaning": policy.ENVIRONMENT[name], "problem": None}
    monkeypatch.setenv(name, "reference")
    assert variable(name)["value"] == "reference"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("OPMUX_PREFER", "reference,triton", "not registered: triton"),
        ("OPMUX_DISABLE", "ck,asm", "not registered: ck, asm"),
        ("OPMUX_PLUGINS", "no-such-plugin", "not installed: no-such-plugin"),
        ("OPMUX_TUNED", "/no/such/folder", "no such folder"),
        ("OPMUX_BUNDLES", "/no/such/bundle:/tmp", "no such folder: /no/such/bundle"),
        ("OPMUX_NO_JIT", "never", "expected 0 or 1"),
        ("OPMUX_NATIVE_LAUNCH", "never", "expected 0 or 1"),
        ("OPMUX_LOG", "loud", "expected one of debug, info, warning, error"),
        ("OPMUX_PERFER", "triton", "opmux reads no such variable; did you mean OPMUX_PREFER?"),
        ("OPMUX_ZZZZZZ", "1", "opmux reads no such variable"),
    ],
)
def test_what_is_wrong_with_a_variable_is_said(opmux_cli, monkeypatch, name: str, value: str, problem: str) -> None:
    monkeypatch.setenv(name, value)
    assert variable(name)["problem"] == problem
    text = opmux_cli("doctor").stdout
    assert problem in text
    assert text.splitlines()[-1] == "1 environment variable to look at"


def test_an_arch_that_is_none_is_said(monkeypatch) -> None:
    monkeypatch.setenv("OPMUX_ARCH", "h100")
    assert variable("OPMUX_ARCH")["problem"].startswith("arch: `h100` expected `cpu`, ")


@pytest.mark.parametrize("word", ["1", "true", "ON", "0", "off", ""])
@pytest.mark.parametrize("name", ["OPMUX_STRICT", "OPMUX_CHECK"])
def test_a_switch_is_on_or_off(monkeypatch, name: str, word: str) -> None:
    monkeypatch.setenv(name, word)
    assert variable(name)["problem"] is None
    monkeypatch.setenv(name, "perhaps")
    assert variable(name)["problem"] == "expected 0 or 1"


def test_what_is_right_has_no_problem(monkeypatch, tmp_path: Path) -> None:
    right = {"OPMUX_PREFER": "reference", "OPMUX_TUNED": str(tmp_path), "OPMUX_LOG": "INFO", "OPMUX_ARCH": "gfx942"}
    for name, value in right.items():
        monkeypatch.setenv(name, value)
        assert variable(name)["problem"] is None
