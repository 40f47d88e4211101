"""A whole run, and what it refuses."""

import subprocess
import sys

import pytest
import torch

from opmux import bench
from opmux.bench import peers, runner
from opmux.bench.shapes import SIZES
from opmux.definition import define_op
from opmux.dtypes import Real
from opmux.errors import InvalidArgument, UnknownBackend
from opmux.plugin import hookimpl
from opmux.plugins.loading import temporary_plugin

QUICK = bench.Settings.for_device(torch.device("cpu"), rounds=2)


def test_a_run_times_every_shape_of_every_op_asked_for() -> None:
    seen: list[bench.Progress] = []
    report = bench.run(["silu_mul", "rms_norm", "silu_mul"], settings=QUICK, progress=seen.append)
    assert [(c.op, c.case) for c in report.cases] == [
        (op, shape.name) for op in ("silu_mul", "rms_norm") for shape in SIZES["small"]
    ]
    assert report.passed
    for case in report.cases:
        assert {c.name for c in case.contenders} == {"reference", "torch eager"}
        assert [c.median_us for c in case.contenders] == sorted(c.median_us for c in case.contenders)
        best = min(c.median_us for c in case.contenders if c.kind == "peer")
        for contender in case.contenders:
            assert contender.rounds == 2
            assert contender.min_us <= contender.q1_us <= contender.median_us <= contender.q3_us <= contender.max_us
            assert contender.ratio == pytest.approx(best / contender.median_us)
            assert contender.fraction == pytest.approx(case.least_us / contender.median_us)
            assert contender.gbps == pytest.approx(case.moved / contender.median_us / 1e3)
    assert [(p.done, p.total) for p in seen] == [(0, 4), (0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


def test_flops_become_a_rate() -> None:
    case = bench.run(["linear"], settings=QUICK).cases[0]
    for contender in case.contenders:
        assert contender.tflops == pytest.approx(case.flops / contender.median_us / 1e6)


def test_the_defaults_suit_the_device() -> None:
    assert bench.Settings(torch.device("cpu"), "small", torch.float32, rounds=2) == QUICK
    gpu = bench.Settings.for_device(torch.device("cuda"))
    assert gpu == bench.Settings(torch.device("cuda"), "model", torch.bfloat16)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": "huge"}, "bench: `size` expected one of small, model, figures, got 'huge'; omit it"),
        ({"dtype": torch.int8}, "bench: `dtype` expected bf16, f16, f32 or f64, got int8; omit it"),
        ({"limit_s": -0.5}, "bench: `limit` expected 0 seconds or more, got -0.5; omit it for the default of 5"),
        ({"limit_s": float("nan")}, "bench: `limit` expected 0 seconds or more, got nan; omit it for the default of 5"),
        ({"rounds": 0}, "bench: `rounds` expected 1 or more, got 0; omit it for the default of 20"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: dict, message: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        bench.Settings.for_device(torch.device("cpu"), **given)
    assert str(raised.value) == message


def test_an_op_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidArgument) as raised:
        bench.run(["rmsnorm"], settings=QUICK)
    assert str(raised.value) == "bench: `op` expected the name of an op, got 'rmsnorm'; see `opmux ops`"


def test_a_backend_that_there_is_not_is_refused() -> None:
    with pytest.raises(UnknownBackend) as raised:
        bench.run(["rms_norm"], ["dance"], QUICK)
    assert str(raised.value).startswith(
        "bench: `backend` expected one of opmux, opmux:functional, reference, got 'dance'; "
    )
    with pytest.raises(
        UnknownBackend, match="got 'referenc'; did you mean reference\\? see `opmux backends` and, for "
    ):
        bench.run(["rms_norm"], ["referenc"], QUICK)


def test_an_op_of_a_plugin_has_no_cases() -> None:
    @define_op
    def bench_test_double(x: Real[torch.Tensor, "*tokens hidden"]) -> Real[torch.Tensor, "*tokens hidden"]:
        """Double."""
        return x * 2

    class Plugin:
        OPMUX_API_VERSION = 1

        @hookimpl
        def opmux_ops(self):
            return [bench_test_double]

    with temporary_plugin(Plugin(), "doubler"):
        with pytest.raises(InvalidArgument) as raised:
            bench.run(["bench_test_double"], settings=QUICK)
        assert str(raised.value).startswith(
            "bench: `op` expected one that has cases, got 'bench_test_double'; those are add_"
        )
        assert bench.run(["silu_mul"], settings=QUICK).without_cases == ("bench_test_double",)


def test_torch_compile_is_a_peer_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.torch, "compile", lambda function, dynamic, mode: function)
    settings = bench.Settings.for_device(torch.device("cpu"), rounds=1, compiled=True)
    names = [{c.name for c in case.contenders} for case in bench.run(["silu_mul"], settings=settings).cases]
    assert names == [{"reference", "torch eager", "torch.compile"}] * 2


def test_a_peer_that_fails_is_left_and_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(function, dynamic, mode):
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(peers.torch, "compile", no_compiler)
    settings = bench.Settings.for_device(torch.device("cpu"), rounds=1, compiled=True)
    report = bench.run(["silu_mul"], settings=settings)
    assert report.passed
    assert [(x.name, x.kind, x.status, x.reason) for x in report.cases[0].left] == [
        ("torch.compile", "peer", "failed", "RuntimeError: no C++ compiler")
    ]


def test_nvidias_own_libraries_are_peers_on_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    for op, name in (("linear", "cuBLASLt"), ("attention", "cuDNN")):
        arguments = runner.MAKERS[op](runner.Data.seeded(cpu, torch.float32), SIZES["small"][0])
        assert name in peers.peers_of(runner.OPS[op], arguments, gpu, compiled=False)
        assert name not in peers.peers_of(runner.OPS[op], arguments, cpu, compiled=False)


def test_it_needs_neither_the_command_lines_extra_nor_a_device() -> None:
    code = (
        "import sys\nsys.modules['typer'] = sys.modules['rich'] = None\n"
        "import torch, opmux.bench\nassert not torch.cuda.is_initialized()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
