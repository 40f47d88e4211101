"""What is written to says so: versions, views, aliases of ``out=``, tensors without a version."""

import functools
from typing import Any

import pytest
import torch
from backends import backends, implementation
from torch import Tensor
from torch_bridge.samples import MUTATING, WITH_OUT, outputs, sample

import opmux
from opmux.callpath.op import OPS
from opmux.errors import InvalidArgument

WAYS = ["public", "registered"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MUTATING)
def test_an_op_that_writes_bumps_the_versions_of_what_it_writes_and_of_nothing_else(name: str, way: str) -> None:
    for _ in range(2):  # the call that plans, and one that is planned
        call = sample(name)
        before = [0 if t is None else t._version for t in call.tensors]
        if way == "public":
            call()
        else:
            call.registered(*call.tensors, **call.options)
        for argument, tensor, version in zip(call.op.signature.tensors, call.tensors, before, strict=True):
            if tensor is not None:
                assert (tensor._version > version) == (argument.name in call.op.signature.mutates)


@pytest.mark.parametrize("name", MUTATING)
def test_a_backend_that_torch_cannot_see_bumps_versions_too(name: str) -> None:
    def silently(*tensors: Any, **options: Any) -> None:
        return None

    with backends(silent=implementation(silently, name)):
        for _ in range(2):
            call = sample(name)
            before = [0 if t is None else t._version for t in call.tensors]
            call()
            for argument, tensor, version in zip(call.op.signature.tensors, call.tensors, before, strict=True):
                if argument.name in call.op.signature.mutates:
                    assert tensor is not None
                    assert tensor._version > version


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WITH_OUT)
def test_out_is_written_returned_and_bumped(name: str, way: str) -> None:
    call = sample(name)
    expected = outputs(call())
    for _ in range(2):
        out = tuple(torch.full_like(r, 7) for r in expected)
        before = [o._version for o in out]
        if way == "public":
            returned = outputs(call(out=out if len(out) > 1 else out[0]))
            assert all(a is b for a, b in zip(returned, out, strict=True))
        else:
            names = ["out"] if len(out) == 1 else [f"out_{o.name}" for o in call.op.signature.outputs]
            overload = getattr(torch.ops.opmux, name).out
            assert overload(*call.tensors, **call.options, **dict(zip(names, out, strict=True))) is None
        torch.testing.assert_close(out, expected, rtol=0, atol=0)
        assert all(o._version > b for o, b in zip(out, before, strict=True))


def rms_norm_into(x: Tensor, weight: Tensor, *, out: Tensor | None = None, **options: Any) -> Tensor:
    """A target that takes ``out=``, and writes to it past torch."""
    result = OPS["rms_norm"].reference(x, weight, **options)
    if out is None:
        return result
    out.data.copy_(result)
    return out


@pytest.mark.parametrize("inference", [False, True])
def test_out_of_a_target_that_takes_it(inference: bool) -> None:
    with backends(into=implementation(rms_norm_into, takes_out=True)), torch.inference_mode(inference):
        call = sample("rms_norm")
        expected = call(backend="reference")
        for _ in range(3):
            out = torch.empty_like(expected)
            with opmux.trace() as trace:
                assert call(out=out) is out
            torch.testing.assert_close(out, expected, rtol=0, atol=0)
            assert out.is_inference() or out._version > 0
            assert [(row.backend, row.calls) for row in trace.rows] == [("into", 1)]


def test_a_target_that_takes_out_is_given_it_and_traced() -> None:
    given = []

    def target(x: Tensor, weight: Tensor, *, out: Tensor | None = None, **options: Any) -> Tensor:
        given.append(out)
        return rms_norm_into(x, weight, out=out, **options)

    call = sample("rms_norm")
    out = torch.empty(5, 8, dtype=torch.float64)
    with backends(into=implementation(target, takes_out=True)), opmux.trace() as trace:
        call()
        call(out=out)
        assert given[-1] is out
        assert call.registered(*call.tensors, **call.options) is not None
        torch.ops.opmux.rms_norm.out(*call.tensors, **call.options, out=out)
        assert given[-1] is out
        assert [(row.backend, row.calls) for row in trace.rows] == [("into", 4)]
        with opmux.policy.override(check=True):
            call()
            assert call(out=out) is out


@pytest.mark.parametrize("takes_out", [False, True])
def test_out_that_is_an_input(takes_out: bool) -> None:
    with backends(into=implementation(rms_norm_into, takes_out=takes_out)):
        call = sample("rms_norm")
        expected = call()
        x = call.tensors[0]
        assert call(out=x) is x
        torch.testing.assert_close(x, expected, rtol=0, atol=0)


def test_out_that_is_a_slice() -> None:
    call = sample("rms_norm")
    expected = call()
    large = torch.zeros(7, 16, dtype=torch.float64)
    call(out=large[1:6, ::2])
    torch.testing.assert_close(large[1:6, ::2], expected, rtol=0, atol=0)
    assert large.count_nonzero() == expected.count_nonzero()


def test_caches_that_are_slices() -> None:
    call, expected = sample("write_kv_cache"), sample("write_kv_cache")
    large = torch.zeros(4, 16, 4, 8, dtype=torch.float64)
    k, v, _, _, slots, *_ = call.tensors
    large[:, :, :2], large[:, :, 2:] = call.tensors[2], call.tensors[3]
    opmux.write_kv_cache(k, v, large[:, :, :2], large[:, :, 2:], slots)
    expected()
    torch.testing.assert_close(large[:, :, :2], expected.tensors[2], rtol=0, atol=0)
    torch.testing.assert_close(large[:, :, 2:], expected.tensors[3], rtol=0, atol=0)


X, CACHE = torch.zeros(40), torch.zeros(8, 16, 2, 8)
LARGE = torch.zeros(10, 8)
SLOTS = torch.arange(3)


def new(*shape: int) -> Tensor:
    return torch.zeros(shape)


def elements(op: str, name: str, strides: list[int], shape: list[int]) -> str:
    return (
        f"{op}: `{name}` expected a tensor whose elements do not overlap, since it is written, got strides {strides} "
        f"of shape {shape}; pass a tensor that is not expanded"
    )


def apart(op: str, name: str, written: str) -> str:
    return (
        f"{op}: `{name}` expected memory apart from `{written}`, which is written, got memory that overlaps it; "
        "pass a copy"
    )


def rows(start: int) -> Tensor:
    return LARGE[start : start + 5]


def rope_tables() -> tuple[Tensor, Tensor]:
    return torch.ones(16, 4), torch.zeros(16, 4)


OVERLAPPING: dict[str, tuple[str, tuple[Tensor, ...], str]] = {
    "x and residual share rows": (
        "add_rms_norm_", (rows(0), rows(3), new(8)), apart("add_rms_norm_", "residual", "x"),
    ),
    "two views of one tensor": (
        "add_rms_norm_", (rows(0), rows(0).view(5, 8), new(8)), apart("add_rms_norm_", "residual", "x"),
    ),
    "an expanded residual": (
        "add_rms_norm_", (new(5, 8), new(8).expand(5, 8), new(8)),
        elements("add_rms_norm_", "residual", [0, 1], [5, 8]),
    ),
    "a weight that is a row of x": (
        "add_rms_norm_", (rows(0), new(5, 8), LARGE[2]), apart("add_rms_norm_", "weight", "x"),
    ),
    "windows of one row": (
        "add_rms_norm_", (X.unfold(0, 8, 4)[:5], new(5, 8), new(8)), elements("add_rms_norm_", "x", [4, 1], [5, 8]),
    ),
    "q and k share heads": (
        "apply_rope_", (CACHE[0, :, :, :], CACHE[0, :, 1:], *rope_tables()), apart("apply_rope_", "k", "q"),
    ),
    "an expanded k": (
        "apply_rope_", (new(16, 2, 8), new(16, 1, 8).expand(16, 2, 8), *rope_tables()),
        elements("apply_rope_", "k", [8, 0, 1], [16, 2, 8]),
    ),
    "caches that share pages": (
        "write_kv_cache", (new(3, 2, 8), new(3, 2, 8), CACHE[:5], CACHE[3:], SLOTS),
        apart("write_kv_cache", "v_cache", "k_cache"),
    ),
    "an expanded cache": (
        "write_kv_cache", (new(3, 2, 8), new(3, 2, 8), new(1, 16, 2, 8).expand(4, 16, 2, 8), new(4, 16, 2, 8), SLOTS),
        elements("write_kv_cache", "k_cache", [0, 16, 8, 1], [4, 16, 2, 8]),
    ),
    "keys that lie in the cache": (
        "write_kv_cache", (CACHE[0, :3], new(3, 2, 8), CACHE, new(8, 16, 2, 8), SLOTS),
        apart("write_kv_cache", "k", "k_cache"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("way", [*WAYS, "backend", "compiled"])
@pytest.mark.parametrize("case", OVERLAPPING)
def test_what_is_written_overlaps_nothing(case: str, way: str, planned: bool) -> None:
    name, tensors, message = OVERLAPPING[case]
    before = [t.clone() for t in tensors]
    OPS[name].drop_plans()
    if planned:
        OPS[name].public(*(t.clone(memory_format=torch.contiguous_format) for t in tensors))
    function: Any = OPS[name].public
    if way == "registered":
        function = getattr(torch.ops.opmux, name)
    if way == "backend":
        function = functools.partial(function, backend="reference")
    if way == "compiled":
        function = torch.compile(function, backend="eager", fullgraph=True)
    with pytest.raises(InvalidArgument) as raised:
        function(*tensors)
    assert str(raised.value) == message
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", OVERLAPPING)
def test_the_policy_check_looks_at_planned_calls_too(case: str, way: str) -> None:
    name, tensors, message = OVERLAPPING[case]
    function = OPS[name].public if way == "public" else getattr(torch.ops.opmux, name)
    with opmux.policy.override(check=True):
        function(*(t.clone(memory_format=torch.contiguous_format) for t in tensors))
        with pytest.raises(InvalidArgument) as raised:
            function(*tensors)
    assert str(raised.value) == message


def test_q_and_k_of_one_tensor_are_written() -> None:
    qkv = torch.randn(5, 3 * 32)
    q, k, _ = (part.unflatten(-1, (4, 8)) for part in qkv.split(32, -1))
    cos, sin = opmux.rope.tables(opmux.rope.default(head_dim=8, rope_theta=10000.0)[0], 32)
    expected = opmux.apply_rope(q, k, cos, sin)
    opmux.apply_rope_(q, k, cos, sin)
    torch.testing.assert_close((q, k), expected)


@pytest.mark.parametrize(
    ("tensors", "out", "message"),
    [
        (
            ((5, 8), (7,)),
            None,
            "rms_norm: `weight` expected shape [hidden] = [8], got shape [7]; hidden = 8 comes from `x` float32[5, 8]",
        ),
        (
            ((5, 8), (1,)),
            None,
            "rms_norm: `weight` expected shape [hidden] = [8], got shape [1]; hidden = 8 comes from `x` float32[5, 8]",
        ),
        (
            ((5, 8), (8,)),
            (2, 5, 8),
            "rms_norm: `out` expected float32[5, 8] on cpu, got float32[2, 5, 8] on cpu; "
            "make it with torch.empty of that shape, dtype and device",
        ),
    ],
)
def test_the_registered_op_checks_a_planned_call(
    tensors: tuple[tuple[int, ...], ...], out: tuple[int, ...] | None, message: str
) -> None:
    opmux.rms_norm(torch.randn(5, 8), torch.randn(8))
    x, weight = (torch.randn(*sizes) for sizes in tensors)
    packet = torch.ops.opmux.rms_norm
    function = packet.default if out is None else functools.partial(packet.out, out=torch.empty(*out))
    with pytest.raises(InvalidArgument) as raised:
        function(x, weight)
    assert str(raised.value) == message
