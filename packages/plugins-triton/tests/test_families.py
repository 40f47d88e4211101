"""All families: every op is implemented, and on a GPU its calls run on this package's kernels alone."""

import importlib
import pkgutil
from typing import Any

import pytest
import torch
from gpu_calls import DECODE, IMPLEMENTED, PREFILL, arguments_of, call
from torch.profiler import ProfilerActivity, profile

import opmux_triton
from opmux.arch import parse_arch
from opmux.bench.cases import MAKERS
from opmux.bench.data import Data
from opmux.callpath.op import OPS
from opmux_triton import families

FILLS = ("Memset", "FillFunctor")
"""What torch launches to fill a tensor: what a target may leave to it."""
PRODUCTS = ("Memcpy DtoD", "nvjet")
TORCHS = {
    "convert_fp8": ("MulFunctor",),
    "fused_linear_cross_entropy_backward": PRODUCTS,
    "fused_linear_cross_entropy_gradients": PRODUCTS,
}
"""What torch launches besides, by op: `convert_fp8` leaves it the scales, which are few. Of the fused losses the
gradient of the weight is its product, by cuBLAS, and the gradient of a chunk's rows is copied to its place where the
product that was chosen takes no ``out=``."""


@pytest.mark.parametrize("op", sorted(OPS))
def test_every_op_is_implemented(op: str) -> None:
    mine = [r for r in families.records() if r.op == op]
    assert mine, f"{op} has no record"
    for arch in ("sm_80", "sm_90", "sm_100", "gfx90a", "gfx942", "gfx950", "gfx1201"):
        assert any(parse_arch(arch).matches(pattern) for r in mine for pattern in r.archs), arch


def test_every_record_may_be_captured() -> None:
    assert [r.op for r in families.records() if not r.capturable] == []


def kernels() -> set[str]:
    """The names of this package's kernels."""
    from triton.runtime.jit import JITFunction

    found = set()
    for module in pkgutil.walk_packages(opmux_triton.__path__, "opmux_triton."):
        if module.name.endswith("kernels"):
            found |= {
                v.__name__ for v in vars(importlib.import_module(module.name)).values() if isinstance(v, JITFunction)
            }
    return found


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle:UserWarning")
@pytest.mark.parametrize("op", IMPLEMENTED)
def test_only_this_packages_kernels_run(op: str) -> None:
    given = arguments_of(op)
    call(op, given)
    tensors = [t.clone() if t is not None else None for t in given.tensors]
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        OPS[op].public(*tensors, **given.options, backend="triton")
        torch.cuda.synchronize()
    on_device = [e.key for e in seen.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    ran = [name for name in on_device if not name.startswith("opmux::")]  # the op's own range, no kernel
    mine = kernels()
    assert any(name in mine for name in ran), ran
    foreign = (*FILLS, *TORCHS.get(op, ()))
    assert [n for n in ran if n not in mine and not any(allowed in n for allowed in foreign)] == []


def assert_near(got: Any, expected: Any) -> None:
    """The same to about the rounding of bfloat16; 8-bit values are compared as numbers."""
    wide = [tuple(t.float() for t in results if t is not None) for results in (got, expected)]
    torch.testing.assert_close(*wide, rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("op", IMPLEMENTED)
def test_a_captured_call_replays_on_new_data(op: str) -> None:
    given = arguments_of(op)
    tensors = [t.clone() if t is not None else None for t in given.tensors]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call(op, given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = OPS[op].public(*tensors, **given.options, backend="triton")
    for seed in (1, 2):
        fresh = MAKERS[op](Data.seeded(torch.device("cuda"), torch.bfloat16, seed), PREFILL)
        for tensor, other in zip(tensors, fresh.tensors, strict=True):
            if tensor is not None:
                tensor.copy_(other)
        graph.replay()
        expected = call(op, fresh)
        if results is None:
            named = OPS[op].names(tuple(tensors))
            got: Any = tuple(named[name] for name in OPS[op].signature.mutates)
        else:
            got = results if isinstance(results, tuple) else (results,)
        assert_near(got, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("op", IMPLEMENTED)
def test_two_streams_at_once(op: str) -> None:
    given = [arguments_of(op, shape) for shape in (PREFILL, DECODE)]
    expected = [call(op, g) for g in given]
    streams = [torch.cuda.Stream() for _ in given]
    torch.cuda.synchronize()
    for _ in range(5):
        results = []
        for stream, g in zip(streams, given, strict=True):
            with torch.cuda.stream(stream):
                results.append(call(op, g))
        torch.cuda.synchronize()
        for got, wanted in zip(results, expected, strict=True):
            assert_near(got, wanted)
