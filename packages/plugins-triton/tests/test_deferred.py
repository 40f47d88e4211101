"""Kernels described for another process: what it compiles is what Triton then finds."""

import pickle
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import planted_kernels as planted
import pytest
import torch
import triton
from triton.runtime.cache import FileCacheManager
from triton.runtime.jit import TensorWrapper

import opmux
from opmux.plugin import BuildDeferred, parse_arch, takers
from opmux.running import build_process
from opmux_triton import deferred, launch
from opmux_triton.aot import described
from opmux_triton.aot.build import compile_launch
from opmux_triton.aot.described import _made, compile_described
from opmux_triton.launch import FUSION, Launch, _specialised, as_bytes, recording

ARCH = "sm_90"


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launches_of(op: Any, *tensors: torch.Tensor, **options: Any) -> list[Launch]:
    """What this backend's first choice launches on sm_90."""
    taker = next(t for t in takers(op, *tensors, arch=ARCH, **options) if t.implementation.backend == "triton")
    with recording(ARCH) as recorded:
        taker.run()
    return recorded.launches


CALLS = {
    "rms_norm": lambda: launches_of(opmux.rms_norm, meta(4, 256), meta(256)),
    "linear": lambda: launches_of(opmux.linear, meta(256, 512), meta(512, 512)),
    "quantize": lambda: launches_of(opmux.quantize, meta(64, 256), dtype=torch.float8_e4m3fn),
    "unaligned": lambda: [Launch(planted.copy, (1,), (meta(65)[1:], meta(64), 64), {"BLOCK": 128, **FUSION})],
    "bytes": lambda: [
        Launch(
            planted.copy,
            (1,),
            (*(as_bytes(meta(64, dtype=torch.float8_e4m3fn)) for _ in "ab"), 1),
            {"BLOCK": 128, **FUSION},
        )
    ],
}


@pytest.fixture
def hits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bool]:
    """An empty cache of Triton's, and whether it had what was compiled."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found: list[bool] = []
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda *, cache_hit, **rest: found.append(cache_hit))
    return found


@pytest.fixture(autouse=True)
def without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton before 3.9 links the code that launches a kernel with the driver, which CI does not have."""
    monkeypatch.setattr(described, "build_launcher", lambda compiled: None)


def build_of(one: Launch) -> Any:
    return deferred.build_of(one.kernel, one.arguments, one.meta, ARCH, _specialised(one.kernel))


@pytest.mark.parametrize("name", CALLS)
def test_what_is_described_is_what_a_launch_needs(name: str, hits: list[bool]) -> None:
    for one in CALLS[name]():
        build = build_of(one)
        assert build.name == f"kernel {one.kernel.__name__}"
        with pytest.raises(deferred.Missing), deferred.deferring():
            compile_launch(one, ARCH)
        assert hits == []
        compile_described(*pickle.loads(pickle.dumps(build.arguments)))
        with deferred.deferring():
            compile_launch(one, ARCH)
        assert hits == [False, True]
        hits.clear()


def test_calls_that_triton_does_not_tell_apart_have_one_build() -> None:
    def copying(size: int, offset: int = 0) -> Any:
        memory = meta(size + 8)[offset:]
        return build_of(Launch(planted.copy, (1,), (memory, meta(size), size), {"BLOCK": 128, **FUSION})).key

    assert copying(160) == copying(320)
    assert copying(160) != copying(161) != copying(1)
    assert copying(160) != copying(160, offset=1)


def test_a_kernel_without_a_name_is_left_to_the_call() -> None:
    @triton.jit
    def local(x):
        pass

    assert deferred.build_of(local, (meta(4),), {}, ARCH, (True,)) is None


def test_other_threads_and_later_builds_find_triton_as_it_was() -> None:
    before = triton.knobs.cache.manager_class
    with deferred.deferring():
        assert issubclass(triton.knobs.cache.manager_class, FileCacheManager)
        assert triton.knobs.cache.manager_class is not before
    assert triton.knobs.cache.manager_class is before
    assert not deferred._thread.on


def test_code_that_launches_is_not_waited_for_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    cache = deferred._raising(FileCacheManager)("0" * 64)
    assert cache.get_file("__triton_launcher.so") is None
    with deferred.deferring():
        assert cache.get_file("other.so") is None
        with pytest.raises(deferred.Missing):
            cache.get_file("__triton_launcher.so")


def test_a_wrapped_tensor_is_seen_as_its_wrapper() -> None:
    made = _made(deferred._described(as_bytes(meta(64, dtype=torch.float8_e4m3fn)), True))
    assert isinstance(made, TensorWrapper)
    assert made.dtype == triton.language.uint8


def test_a_launch_defers_what_triton_would_compile(hits: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    def warmup(*arguments: Any, grid: tuple[int, ...], **options: Any) -> Any:
        compile_launch(Launch(planted.copy, grid, arguments, options), ARCH)
        return SimpleNamespace(run="launcher")

    monkeypatch.setattr(planted.copy, "warmup", warmup)
    monkeypatch.setattr(launch, "device_arch", lambda *of: parse_arch(ARCH))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    given = planted.copy, (1,), (meta(64), meta(64), 64), {"BLOCK": 128, **FUSION}
    with opmux.policy.override(build="background"):
        with pytest.raises(BuildDeferred) as caught:
            launch._compiled(*given)
        build = caught.value.build
        assert (build.name, build.function) == ("kernel copy", "opmux_triton.aot.described:compile_described")
        assert hits == []
        compile_described(*build.arguments)
        assert launch._compiled(*given)[1] == "launcher"
        assert hits == [False, True]
    with opmux.policy.override(build="background", strict=True):
        assert launch._compiled(*given)[1] == "launcher", "a strict call builds what it lacks"


def test_the_helper_process_compiles_for_triton(hits: list[bool]) -> None:
    (one,) = CALLS["rms_norm"]()
    build_process.helper().stop()  # one that runs already has the environment of its beginning
    job = build_process.helper().give(build_of(one))
    deadline = time.monotonic() + 60
    while not job.finished:
        assert time.monotonic() < deadline, "the helper process does not answer"
        time.sleep(0.01)
    assert job.problem is None or "libcuda" in job.problem, job.problem  # Triton before 3.9 links with the driver
    with deferred.deferring():
        compile_launch(one, ARCH)
    assert hits == [True]
