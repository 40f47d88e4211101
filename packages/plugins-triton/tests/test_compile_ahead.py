"""The processes that compile the kernels of calls while others are measured."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from opmux.plugins import loading
from opmux.shapes import Point, write_shapes

BF16, F32 = torch.bfloat16, torch.float32
PATIENCE_S = 120.0


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The program as a module."""
    loading.ensure_loaded()
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import compile_ahead

    yield compile_ahead
    sys.modules.pop("compile_ahead", None)


def norm(tokens: int) -> Point:
    return Point("rms_norm", {"x": BF16, "weight": BF16}, {"tokens": tokens, "hidden": 512}, {})


def gradient() -> Point:
    dims = {"batch": 2, "seq_q": 512, "heads": 4, "kv_heads": 2, "seq_k": 512, "head_dim": 64, "value_dim": 64}
    dtypes = {**dict.fromkeys(("grad_out", "q", "k", "v", "out"), BF16), "lse": F32}
    options = {"output_mask": (True, True, True, False)}
    return Point("attention_backward", dtypes, dims, options)


def test_kernels_that_triton_does_not_tell_apart_are_one(program: ModuleType) -> None:
    kernels = program.Kernels("sm_90")
    numbers = [
        kernels.number_of(launch)
        for point in (norm(64), norm(128), norm(64))
        for launch in program.launches_of(point, "sm_90", 1)
    ]
    assert len(numbers) == 3
    assert len(kernels.launches) == len(set(numbers)) <= 2
    more = [kernels.number_of(launch) for launch in program.launches_of(norm(64), "sm_90", 4)]
    assert len(set(more)) > 1, "configs of the space too"


def test_a_gradient_needs_its_forward(program: ModuleType) -> None:
    forward, backward = program.with_forwards([gradient()])
    assert (forward.op, backward.op) == ("attention_lse", "attention_backward")
    forward.check()
    assert [point.op for point in program.with_forwards([norm(64)])] == ["rms_norm"]


def test_calls_are_ready_when_their_kernels_are_compiled(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    ahead = program.Ahead([norm(64)], "sm_90", 1)
    began = time.monotonic()
    while ahead.busy and time.monotonic() - began < PATIENCE_S:
        time.sleep(0.05)
    assert (ahead.kernels, ahead.compiled, ahead.problems) == (1, 1, [])
    assert ahead.ready(norm(64))
    ahead.close()
    assert len(list((tmp_path / "cache").glob("*/norm.cubin"))) == 1
    write_shapes(tmp_path / "shapes.json", [norm(64)])
    assert program.main([str(tmp_path / "shapes.json"), "--jobs", "1"]) == 0
    assert capfd.readouterr().out.startswith("1 of 1 kernels compiled in ")
    assert len(list((tmp_path / "cache").glob("*/norm.cubin"))) == 1, "what is in the cache is not compiled again"


def test_without_processes_every_call_counts_as_ready(program: ModuleType) -> None:
    ahead = program.Ahead([norm(64)], "sm_90", 0)
    assert not ahead.busy
    assert ahead.ready(norm(64))
    ahead.close()
    with pytest.raises(ValueError, match="`jobs` expected the number of processes that compile, got -2"):
        program.Ahead([norm(64)], "sm_90", -2)
