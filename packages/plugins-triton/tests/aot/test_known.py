"""Known exceptions, each with its reason."""

from pathlib import Path

import pytest

from opmux.errors import InvalidArgument
from opmux_triton.aot import known

KNOWN = """
[[known]]
arch = "gfx942"
kernel = "attend"
flags = "LEFT=True"
complaints = ["spills"]
reason = "planted"

[[known]]
arch = "sm_90"
kernel = "attend"
flags = ""
complaints = ["spills"]
reason = "of another arch"

[[known]]
arch = "gfx942"
kernel = "attend"
flags = ""
complaints = ["spills"]
triton = "3.6."
reason = "of another version"
"""


def test_known_complaints_are_told_from_others(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(KNOWN)
    listed = known.read(file, "gfx942", "3.9.0")
    assert [(k.kernel, k.flags, k.complaints, k.reason) for k in listed] == [
        ("attend", ("LEFT=True",), ("spills",), "planted")
    ]
    mine = "attend|rows=16|LEFT=True bfloat16 absent:1: spills: 3"
    others = [
        "attend|rows=16|LEFT=False bfloat16 absent:1: spills: 3",
        "attend|rows=16|LEFT=True bfloat16: 64 bytes of private memory a thread",
        "combine|rows=16|LEFT=True bfloat16: spills: 3",
    ]
    assert known.sort_out([mine, *others], listed) == (others, [f"{mine} (known: planted)"], [])


def test_an_exception_may_be_of_one_version(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(KNOWN)
    assert [k.reason for k in known.read(file, "gfx942", "3.6.0")] == ["planted", "of another version"]


def test_an_exception_that_is_not_needed_any_more_is_a_complaint(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(KNOWN)
    assert known.sort_out([], known.read(file, "gfx942", "3.9.0")) == (
        [],
        [],
        ["attend LEFT=True: known, but no longer found: remove it from the list"],
    )


def test_a_file_of_exceptions_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text("[[known]]\narch = 'gfx942'\n")
    with pytest.raises(InvalidArgument) as raised:
        known.read(file, "gfx942", "3.9.0")
    assert str(raised.value) == (
        "machine-code: `--known` expected a TOML file of tables [[known]] with arch, kernel, flags, complaints and "
        f"reason, got {file}: KeyError: 'kernel'; see packages/plugins-triton/machine-code/known.toml"
    )


def test_the_projects_own_exceptions_are_readable() -> None:
    file = Path(__file__).parents[2] / "machine-code" / "known.toml"
    assert all(known.read(file, arch, "3.9.0") for arch in ("gfx90a", "gfx942", "gfx950", "sm_90"))
