"""Which variables a compiler's process sees."""

import os

from opmux_jit.compilers.environment import NOT_INHERITED, environment


def test_variables_that_change_the_code_are_left_out_and_others_kept(monkeypatch) -> None:
    for name in NOT_INHERITED:
        monkeypatch.setenv(name, "-DCHANGED")
    monkeypatch.setenv("LICENSE_SERVER", "kept")
    seen = environment()
    assert NOT_INHERITED.isdisjoint(seen)
    assert seen["LICENSE_SERVER"] == "kept"
    assert seen == {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}


def test_the_own_process_keeps_its_variables(monkeypatch) -> None:
    monkeypatch.setenv("CPATH", "/headers")
    environment()["PATH"] = ""
    assert os.environ["CPATH"] == "/headers"
    assert os.environ["PATH"]
