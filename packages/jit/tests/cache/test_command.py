"""`opmux cache`: each action on a cache with whole, damaged and left-over parts."""

import json
from pathlib import Path

import pytest
from kernels import Counting, add
from typer.testing import CliRunner

from opmux_jit import machine_code
from opmux_jit.cache import layers
from opmux_jit.compilers import choice


@pytest.fixture(autouse=True)
def compiler(monkeypatch) -> Counting:
    made = Counting()
    monkeypatch.delenv("COLUMNS", raising=False)  # tables as wide as their contents
    monkeypatch.setattr(choice, "find", lambda name: made if name == made.name else None)
    return made


def opmux(*words: str) -> tuple[int, str]:
    from opmux.cli.app import build_app

    result = CliRunner().invoke(build_app(), ["cache", *words], prog_name="opmux")
    return result.exit_code, result.output


def as_data(*words: str) -> dict:
    code, output = opmux(*words, "--json")
    return {"exit": code, **json.loads(output[: output.rindex("}") + 1])}


def damaged() -> Path:
    place = machine_code(add("damaged")).place
    assert place is not None
    (place / "code.bin").write_bytes(b"")
    return place


def test_path(cache) -> None:
    assert opmux("path") == (0, f"{cache}\n")
    assert as_data("path") == {"exit": 0, "path": str(cache)}


def test_list(cache) -> None:
    place = machine_code(add()).place
    broken = damaged()
    assert place is not None
    whole = {
        "name": "add", "arch": "sm_90", "compiler": "nvrtc 13.5", "bytes": 176, "builds": 1, "seconds": 0.0,
        "key": place.name, "damage": None,
    }  # fmt: skip
    wrong = "code.bin has 0 bytes, 180 were written"
    bad = {**dict.fromkeys(whole), "key": broken.name, "damage": wrong}
    found = as_data("list")
    assert found["path"] == str(cache)
    assert sorted(found["entries"], key=str) == sorted([whole, bad], key=str)
    code, text = opmux("list")
    assert code == 0
    assert "nvrtc 13.5" in text
    assert wrong in text


def test_verify(cache, monkeypatch, tmp_path) -> None:
    machine_code(add())
    assert opmux("verify") == (0, f"1 entries in {cache}\n")
    broken = damaged()
    monkeypatch.setenv("OPMUX_BUNDLES", str(tmp_path / "gone"))
    found = as_data("verify")
    assert found["exit"] == 1
    assert found["problems"] == [
        f"{broken}: code.bin has 0 bytes, 180 were written",
        f"bundle: {tmp_path / 'gone'} is not used: bundle.json cannot be read (No such file or directory)",
    ]


def test_verify_says_that_others_can_write_to_the_cache(cache) -> None:
    machine_code(add())
    cache.chmod(0o777)
    found = as_data("verify")
    assert (found["exit"], found["problems"]) == (
        1, [f"cache: nothing is read from {cache}: {cache} can be written by other users: chmod go-w {cache}"],
    )  # fmt: skip


def test_prune_removes_what_is_of_no_use(cache) -> None:
    kept = machine_code(add()).place
    broken = damaged()
    left = cache / "building" / f"{broken.name}-1-aa"
    failed = cache / "failed" / broken.name
    left.mkdir()
    failed.mkdir(parents=True)
    assert as_data("prune")["done"] == [f"removed {path}" for path in (broken, left, failed)]
    assert kept is not None
    assert kept.is_dir()
    assert as_data("prune", "--older-than", "1")["done"] == []
    assert as_data("prune", "--older-than", "0")["done"] == [f"removed {kept}"]


def test_prune_everything_leaves_a_build_that_is_going_on(cache) -> None:
    import filelock

    one, two = machine_code(add()).place, machine_code(add("other")).place
    assert one is not None
    assert two is not None
    with filelock.FileLock(cache / "locks" / f"{one.name}.lock"):
        assert as_data("prune", "--everything")["done"] == [f"removed {two}"]


def test_rebuild(compiler, cache, tmp_path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include/one.h").write_text("1")
    place = machine_code(add()).place
    header = machine_code(add("with", flags=(), include_dirs=(tmp_path / "include",), headers={"two.h": "2"})).place
    broken = damaged()
    assert place is not None
    assert header is not None
    assert as_data("rebuild")["done"] == [f"removed {broken}: it will be built when it is next wanted"]
    compiler.version = "13.6"
    done = as_data("rebuild")
    assert done["exit"] == 0
    assert sorted(line.partition(": ")[2] for line in done["done"]) == [
        "add for sm_90 by nvrtc 13.6", "with for sm_90 by nvrtc 13.6",
    ]  # fmt: skip
    assert as_data("rebuild")["done"] == []
    count = compiler.count
    as_data("rebuild", "--everything")
    assert compiler.count == count + 2
    layers.forget()
    assert machine_code(add()).builds == 2


def test_rebuild_of_one_entry(compiler, cache) -> None:
    """By its name or its key; the others stay as they are, damaged ones too."""
    place, other, broken = machine_code(add()).place, machine_code(add("other")).place, damaged()
    assert place is not None
    assert other is not None
    for name in ("other", other.name, other.name[:12]):
        count = compiler.count
        found = as_data("rebuild", "--only", name)
        assert (found["exit"], found["done"]) == (0, [f"built {other}: other for sm_90 by nvrtc 13.5"])
        assert compiler.count == count + 1
    assert broken.exists()
    assert as_data("rebuild", "--only", broken.name)["done"] == [
        f"removed {broken}: it will be built when it is next wanted"
    ]
    code, text = opmux("rebuild", "--only", "none")
    assert code == 2
    assert (
        "error: cache: `--only` expected the name of an entry or the beginning of its key, got 'none'; "
        "see `opmux cache list`"
    ) in text


def test_rebuild_leaves_what_it_cannot_make_again(monkeypatch, tmp_path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include/one.h").write_text("1")
    from opmux_jit import Source

    place = machine_code(Source("k", "#include <one.h>\n", "sm_90", include_dirs=(tmp_path / "include",))).place
    (tmp_path / "include/one.h").write_text("2")
    assert as_data("rebuild")["done"] == [f"left {place}: the headers of k have changed or are gone"]
    monkeypatch.setattr(choice, "find", lambda name: None)
    found = as_data("rebuild")
    assert found["exit"] == 1
    assert found["problems"][0].startswith(f"{place}: k: no compiler for sm_90\n  nvrtc: not found")
