"""Kernels that are compiled ahead: a process with the bundle, and with an empty cache of its own, compiles nothing."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

import opmux_jit
from opmux.plugin import BuildFailed
from opmux.shapes import read_shapes
from opmux_jit import prebuild
from opmux_jit.cache import bundles
from opmux_jit.errors import KernelMissing
from opmux_triton import bundled
from opmux_triton.aot.build import compile_launch
from opmux_triton.aot.prebuild import _collect, _launches_of

CALLS = [
    {"op": "rms_norm", "dtypes": {"x": "bf16", "weight": "bf16"}, "dims": {"tokens": 4, "hidden": 256}},
    {"op": "silu_mul", "dtypes": {"gate": "bf16", "up": "bf16"}, "dims": {"tokens": 4, "n": 256}},
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A bundle for sm_90, moved from where it was built."""
    folder = tmp_path_factory.mktemp("prebuilt")
    (folder / "shapes.json").write_text(json.dumps(CALLS))
    points = read_shapes(folder / "shapes.json")
    ticks: list[tuple[str, int, int]] = []
    result = prebuild(
        ["sm_90"], points, folder / "made", backend="triton", processes=2, tick=lambda *told: ticks.append(told)
    )
    (folder / "made").rename(folder / "bundle")
    return folder / "bundle", points, result, ticks


@pytest.fixture
def empty(built: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bool]:
    """A process with the bundle and nothing else; what it finds in a cache and what it compiles."""
    monkeypatch.setenv("OPMUX_BUNDLES", str(built[0]))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    bundles.layers_of.cache_clear()
    hits: list[bool] = []
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda *, cache_hit, **rest: hits.append(cache_hit))
    return hits


def test_what_was_built_is_told(built: Any) -> None:
    bundle, _, result, ticks = built
    assert result.failures == []
    assert result.kernels == {"triton": len(ticks)}
    assert ticks[-1] == ("triton", len(ticks), len(ticks))
    opened = bundles.Bundle(bundle)
    assert opened.archs == ("sm_90",)
    assert opened.made_with["triton"] == triton.__version__
    names = opened.names("triton")
    assert {Path(name).suffix for name in names} == {".json", ".cubin"}
    assert not [name for name in names if "__grp__" in name]
    assert str(bundle.parent) not in "".join(opened.read(n).decode() for n in names if n.endswith(".json"))


def test_a_process_with_the_bundle_compiles_nothing(built: Any, empty: list[bool]) -> None:
    _, points, result, _ = built
    launches, failures = _launches_of("sm_90", points)
    assert failures == []
    with bundled.layered(lambda: "sm_90"):
        found = [compile_launch(launch, "sm_90")[0] for launch in launches]
    assert empty == [True] * len(launches)
    assert len({one.hash for one in found}) == result.kernels["triton"]
    assert all(one.asm["cubin"][:4] == b"\x7fELF" for one in found)


def test_without_the_bundle_it_compiles(built: Any, empty: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPMUX_BUNDLES")
    launches, _ = _launches_of("sm_90", built[1])
    with bundled.layered(lambda: "sm_90"):
        compile_launch(launches[0], "sm_90")
    assert empty == [False]


def test_a_damaged_kernel_is_reported_and_compiled(
    built: Any, empty: list[bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "damaged"
    shutil.copytree(built[0], other)
    for path in other.rglob("*.cubin"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    monkeypatch.setenv("OPMUX_BUNDLES", str(other))
    launches, _ = _launches_of("sm_90", built[1])
    with bundled.layered(lambda: "sm_90"):
        compile_launch(launches[0], "sm_90")
    assert empty == [False]
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert said.startswith(f"bundle {other}: kernel norm.json is damaged, and is not used: norm.cubin: its checksum")


def test_where_compiling_is_forbidden_a_missing_kernel_is_an_error(
    built: Any, empty: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPMUX_NO_JIT", "1")
    launches, _ = _launches_of("sm_90", built[1])
    with bundled.layered(lambda: "sm_90"):
        compile_launch(launches[0], "sm_90")
    assert empty == [True]
    with bundled.layered(lambda: "sm_80"), pytest.raises(KernelMissing) as caught:
        compile_launch(launches[0], "sm_80")
    assert str(caught.value) == (
        f"kernel norm is not compiled for triton {triton.__version__}, and OPMUX_NO_JIT forbids it; "
        f"bundles: {built[0]} (sm_90; opmux-jit {opmux_jit.__version__}, triton {triton.__version__}); "
        "try: opmux prebuild --arch sm_80 --backend triton --shapes FILE --out DIR"
    )
    assert issubclass(KernelMissing, BuildFailed)


def test_a_cache_manager_of_the_users_own_is_left_alone(empty: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(bundled.FileCacheManager):
        pass

    monkeypatch.setattr(triton.knobs.cache, "manager_class", Own)
    with bundled.layered(lambda: "sm_90"):
        assert triton.knobs.cache.manager_class is Own


def test_kernels_for_amd_are_built_too(built: Any, tmp_path: Path) -> None:
    result = prebuild(["gfx942"], built[1][:1], tmp_path / "amd", backend="triton", processes=1)
    assert (result.failures, result.kernels) == ([], {"triton": 1})
    assert [Path(n).suffix for n in bundles.Bundle(tmp_path / "amd").names("triton")] == [".hsaco", ".json"]


def test_a_call_that_no_kernel_takes_builds_nothing(built: Any, tmp_path: Path) -> None:
    (tmp_path / "shapes.json").write_text(json.dumps([{**CALLS[0], "dtypes": {"x": "f64", "weight": "f64"}}]))
    points = read_shapes(tmp_path / "shapes.json")
    assert points[0].dtypes["x"] is torch.float64
    result = prebuild(["sm_90"], points, tmp_path / "none", backend="triton")
    assert (result.failures, result.kernels) == ([], {"triton": 0})


def test_code_that_launches_kernels_is_found_in_a_bundle_and_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key, name = "0" * 64, "__triton_launcher.so"
    code = tmp_path / "bundle" / "triton" / key / name
    code.parent.mkdir(parents=True)
    code.write_bytes(b"code")
    bundles.write(tmp_path / "bundle", ["sm_90"], {})
    monkeypatch.setenv("OPMUX_BUNDLES", str(tmp_path / "bundle"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    bundles.layers_of.cache_clear()
    cache = bundled.BundledCache(key)
    assert cache.get_file(name) == str(code)
    assert cache.get_file("__triton_launcher_other.so") is None
    assert cache.get_file("cuda_utils.so") is None
    code.write_bytes(b"edoc")
    assert cache.get_file(name) is None
    assert "__triton_launcher.so is damaged, and is not used" in caplog.text
    bundles.layers_of.cache_clear()


def test_code_that_launches_kernels_is_collected(tmp_path: Path) -> None:
    code = tmp_path / "cache" / "key" / "__triton_launcher.so"
    code.parent.mkdir(parents=True)
    code.write_bytes(b"code")
    assert _collect(tmp_path / "cache", tmp_path) == 0
    assert (tmp_path / "key" / code.name).read_bytes() == b"code"
