"""`opmux prebuild` and `opmux warmup`, with a backend that is planted here."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import opmux
from opmux.plugin import Implementation, Prebuilt, hookimpl, temporary_plugin
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


def test_what_could_not_be_built_is_said(planted, shapes, tmp_path) -> None:
    planted.failures.append("kernel x for cpu: it is too large")
    code, text = run("prebuild", "--arch", "cpu", "--shapes", shapes, "--out", tmp_path / "b", "--json")
    assert code == 1
    assert json.loads(text[: text.rindex("}") + 1]) == {
        "bundle": str(tmp_path / "b"), "archs": ["cpu"], "kernels": {"planted": 2},
        "failures": ["kernel x for cpu: it is too large"],
    }  # fmt: skip


WRONG = [
    ([], "prebuild: `--arch` expected an arch, got none; name one, as --arch sm_90"),
    (["--arch", "h100"], "arch: `h100` expected "),
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
    assert (tmp_path / "mine/thesis.tex").exists()


def test_processes_are_as_many_as_cores_and_memory_allow(monkeypatch) -> None:
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda pid: range(64))
    monkeypatch.setattr(ahead.os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 10 * 2**30 // 4096)
    assert ahead.default_processes() == 5
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda pid: range(2))
    assert ahead.default_processes() == 2


def test_warmup_makes_each_call_until_its_launches_are_kept(planted, shapes) -> None:
    from opmux.shapes import read_shapes

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
