"""`opmux prebuild` and `opmux warmup`, with a backend that is planted here."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import opmux
from opmux.plugin import Implementation, InvalidArgument, Prebuilt, hookimpl, temporary_plugin
from opmux.shapes import read_shapes
from opmux_jit import warmup
from opmux_jit.ahead import prebuild as ahead
from opmux_jit.cache.bundles import Bundle

CALLS = [
    {"op": "rms_norm", "dtypes": {"x": "f32", "weight": "f32"}, "dims": {"tokens": 4, "hidden": 8}},
    {"op": "silu_mul", "dtypes": {"gate": "f32", "up": "f32"}, "dims": {"tokens": 4, "n": 8}},
]


class Planted:
    """A backend that compiles ahead."""

    OPMUX_API_VERSION = 1

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.failures: list[str] = []
        self.calls = 0
        self.idle = False

    @hookimpl
    def opmux_implementations(self) -> list[Implementation]:
        return [Implementation(op="rms_norm", target=self.rms_norm, archs=("cpu",), priority=20)]

    @hookimpl
    def opmux_prebuilders(self) -> list[Any]:
        return [self.prebuild]

    def rms_norm(self, x, weight, *, eps, weight_offset):
        self.calls += 1
        return opmux.rms_norm.reference(x, weight, eps=eps, weight_offset=weight_offset)

    def prebuild(self, arch, points, folder, workers, tick) -> Prebuilt:
        self.asked.append((arch, [p.op for p in points], workers))
        if self.idle:
            return Prebuilt(0, [], {})
        for number, point in enumerate(points, 1):
            (folder / f"{arch}-{point.op}").write_bytes(point.key.encode())
            tick(number, len(points))
        return Prebuilt(len(points), self.failures, {"planted": "1.0"})


@pytest.fixture
def planted():
    made = Planted()
    with temporary_plugin(made, "planted"):
        yield made


@pytest.fixture
def shapes(tmp_path) -> Path:
    path = tmp_path / "shapes.json"
    path.write_text(json.dumps(CALLS))
    return path


def run(*words: object) -> tuple[int, str]:
    from opmux.cli.app import build_app

    result = CliRunner().invoke(build_app(), [*map(str, words)], prog_name="opmux")
    return result.exit_code, result.output


def test_a_bundle_has_what_the_backends_built(planted, shapes, tmp_path) -> None:
    out = tmp_path / "bundle"
    code, text = run("prebuild", "--arch", "cpu", "--arch", "sm_90", "--shapes", shapes, "--out", out, "-j", 3)
    assert (code, text) == (0, f"planted: 4 kernels\nuse it: OPMUX_BUNDLES={out}\n")
    assert planted.asked == [("cpu", ["rms_norm", "silu_mul"], 3), ("sm_90", ["rms_norm", "silu_mul"], 3)]
    bundle = Bundle(out)
    assert bundle.archs == ("cpu", "sm_90")
    assert bundle.made_with == {"opmux-jit": "0.1.0", "planted": "1.0"}
    assert len(bundle.names("planted")) == 4
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    assert run("prebuild", "--arch", "cpu", "--op", "rms_norm", "--shapes", shapes, "--out", out)[0] == 0
    assert Bundle(out).names("planted") == ["planted/cpu-rms_norm"]


@pytest.mark.parametrize("words", [("--arch", "cpu;sm_90"), ("--arch", " cpu ; sm_90;", "--arch", "cpu")])
def test_archs_are_given_as_a_list_too(planted, shapes, tmp_path, words) -> None:
    assert run("prebuild", *words, "--shapes", shapes, "--out", tmp_path / "b")[0] == 0
    assert Bundle(tmp_path / "b").archs == ("cpu", "sm_90")


def test_no_kernels_are_said(planted, shapes, tmp_path) -> None:
    planted.idle = True
    assert run("prebuild", "--arch", "cpu", "--shapes", shapes, "--out", tmp_path / "b") == (
        1,
        "planted: 0 kernels\nerror: prebuild: no backend has kernels for these calls on cpu; see `opmux explain`\n",
    )


def test_a_file_that_is_not_there(planted, tmp_path) -> None:
    code, text = run("prebuild", "--arch", "cpu", "--shapes", tmp_path / "none.json", "--out", tmp_path / "b")
    assert code == 2
    assert "does not exist" in text


def test_what_could_not_be_built_is_said(planted, shapes, tmp_path) -> None:
    planted.failures.append("kernel x for cpu: it is too large")
    code, text = run("prebuild", "--arch", "cpu", "--shapes", shapes, "--out", tmp_path / "b", "--json")
    assert code == 1
    assert json.loads(text[: text.rindex("}") + 1]) == {
        "bundle": str(tmp_path / "b"), "archs": ["cpu"], "kernels": {"planted": 2},
        "failures": ["kernel x for cpu: it is too large"], "written": True,
    }  # fmt: skip
    assert Bundle(tmp_path / "b").archs == ("cpu",)


def test_what_could_not_be_built_replaces_no_bundle(planted, shapes, tmp_path) -> None:
    out = tmp_path / "b"
    assert run("prebuild", "--arch", "cpu", "--shapes", shapes, "--out", out)[0] == 0
    index = (out / "bundle.json").read_bytes()
    planted.failures.append("kernel x for sm_90: it is too large")
    code, text = run("prebuild", "--arch", "sm_90", "--shapes", shapes, "--out", out)
    assert (code, text.splitlines()) == (
        1,
        [
            "planted: 2 kernels",
            f"use it: OPMUX_BUNDLES={out}",
            f"error: prebuild: kernels could not be built, so the bundle {out} is kept as it was",
            "error: kernel x for sm_90: it is too large",
        ],
    )
    assert (out / "bundle.json").read_bytes() == index
    assert Bundle(out).names("planted") == ["planted/cpu-rms_norm", "planted/cpu-silu_mul"]
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "cache") == ["b", "shapes.json"]


def test_a_bundle_that_cannot_be_replaced_stays(planted, shapes, tmp_path, monkeypatch) -> None:
    out = tmp_path / "b"
    assert run("prebuild", "--arch", "cpu", "--shapes", shapes, "--out", out)[0] == 0
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if target == out and not self.name.endswith(".old"):
            raise OSError(28, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="No space left on device"):
        ahead.prebuild(["sm_90"], read_shapes(shapes), out)
    assert Bundle(out).archs == ("cpu",)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "cache") == ["b", "shapes.json"]


@pytest.mark.parametrize("words", [".", "../here", "link"])
def test_the_folder_may_be_the_current_one_or_a_link(planted, shapes, tmp_path, monkeypatch, words) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "link").symlink_to(here)
    monkeypatch.chdir(tmp_path if words == "link" else here)
    assert run("prebuild", "--arch", "cpu", "--shapes", shapes, "--out", words) == (
        0,
        f"planted: 2 kernels\nuse it: OPMUX_BUNDLES={here}\n",
    )
    assert Bundle(here).archs == ("cpu",)
    assert (tmp_path / "link").is_symlink()


WRONG = [
    ([], "prebuild: `--arch` expected an arch, got none; name one, as --arch sm_90"),
    (["--arch", " ; "], "prebuild: `--arch` expected an arch, got none; name one, as --arch sm_90"),
    (["--arch", "h100"], "arch: `h100` expected "),
    (["--arch", "cpu;h100"], "arch: `h100` expected "),
    (
        ["--arch", "cpu", "--op", "rmsnorm"],
        "prebuild: `--op` expected the name of an op, got 'rmsnorm'; see `opmux ops`",
    ),
    (
        ["--arch", "cpu", "--op", "layer_norm"],
        "prebuild: `--shapes` expected calls of layer_norm, got none; record some",
    ),
    (
        ["--arch", "cpu", "--backend", "ck"],
        "prebuild: `--backend` expected one that compiles ahead (planted), got 'ck'; see `opmux backends`",
    ),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_wrong_use_is_said(planted, shapes, tmp_path, words, message) -> None:
    code, text = run("prebuild", *words, "--shapes", shapes, "--out", tmp_path / "b")
    assert code == 2
    assert f"error: {message}" in text
    assert not (tmp_path / "b").exists()


def test_a_folder_with_other_files_is_left_alone(planted, shapes, tmp_path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").touch()
    code, text = run("prebuild", "--arch", "cpu", "--shapes", shapes, "--out", tmp_path / "mine")
    assert code == 2
    assert (
        f"error: prebuild: `--out` expected a new or empty folder, or a bundle, got {tmp_path / 'mine'}; choose another"
    ) in text
    assert "  reason:    bundle: " in text
    assert (tmp_path / "mine/thesis.tex").exists()


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (b'{"format": 1}', "bundle.json is damaged (its own checksum does not match)"),
        (b"my own", "bundle.json is damaged (not JSON)"),
    ],
)
def test_a_folder_with_a_file_of_the_index_name_is_left_alone(planted, shapes, tmp_path, index, reason) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "bundle.json").write_bytes(index)
    with pytest.raises(InvalidArgument) as caught:
        ahead.prebuild(["cpu"], read_shapes(shapes), mine)
    assert str(caught.value).splitlines() == [
        f"prebuild: `--out` expected a new or empty folder, or a bundle, got {mine}; choose another",
        f"  reason:    bundle: {mine} is not used: {reason}",
    ]
    assert (mine / "bundle.json").read_bytes() == index
    assert planted.asked == []


def test_a_file_in_place_of_the_folder_is_left_alone(planted, shapes) -> None:
    with pytest.raises(InvalidArgument, match=r"^prebuild: `--out` expected a new or empty folder, or a bundle, got "):
        ahead.prebuild(["cpu"], read_shapes(shapes), shapes)
    assert json.loads(shapes.read_text()) == CALLS


def test_processes_are_as_many_as_cores_and_memory_allow(monkeypatch) -> None:
    monkeypatch.delenv("MAX_JOBS", raising=False)
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda pid: range(64))
    monkeypatch.setattr(ahead.os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 10 * 2**30 // 4096)
    assert ahead.default_processes() == 5
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda pid: range(2))
    assert ahead.default_processes() == 2


def test_max_jobs_limits_the_processes(monkeypatch) -> None:
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(ahead.os, "sysconf", lambda name: 1 << 30)
    monkeypatch.setenv("MAX_JOBS", "3")
    assert ahead.default_processes() == 3


@pytest.mark.parametrize("named", ["0", "many", "-1"])
def test_max_jobs_that_is_no_number_is_refused(monkeypatch, named) -> None:
    monkeypatch.setenv("MAX_JOBS", named)
    with pytest.raises(InvalidArgument) as caught:
        ahead.default_processes()
    assert str(caught.value) == (
        f"prebuild: `MAX_JOBS` expected a number of processes, got {named!r}; set it to 1 or more"
    )


def test_warmup_makes_each_call_until_its_launches_are_kept(planted, shapes) -> None:
    done = warmup(read_shapes(shapes), "cpu")
    assert (done.calls, done.failures, planted.calls) == (2, [], 3)
    code, text = run("warmup", "--shapes", shapes, "--device", "cpu", "--json")
    assert code == 0
    assert json.loads(text)["calls"] == 2
    assert planted.calls == 6


def test_a_call_that_fails_leaves_the_others_warm(planted, shapes, monkeypatch) -> None:
    from opmux_jit.ahead import warmup as module

    real = module.registered_ops()

    def broken(*tensors: Any, **options: Any) -> None:
        raise RuntimeError("no luck\nat all")

    monkeypatch.setattr(module, "registered_ops", lambda: {**real, "rms_norm": broken})
    code, text = run("warmup", "--shapes", shapes, "--device", "cpu")
    assert code == 1
    assert text.startswith("1 calls in ")
    assert "error: rms_norm x=f32 weight=f32 tokens=4 hidden=8: RuntimeError: no luck\n" in text


def test_tensors_that_cannot_be_made_leave_the_others_warm(planted, shapes) -> None:
    shapes.write_text(json.dumps([{**CALLS[0], "dims": {"tokens": 2**30, "hidden": 2**30}}, CALLS[1]]))
    done = warmup(read_shapes(shapes), "cpu")
    assert done.calls == 1
    (said,) = done.failures
    assert said.startswith(f"rms_norm x=f32 weight=f32 tokens={2**30} hidden={2**30}: RuntimeError: ")
