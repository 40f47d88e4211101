"""The source of a call path: what it reads of a call, in which order, and what becomes of code that is replaced."""

import inspect
import linecache
from types import FunctionType
from typing import Literal

import pytest
import torch
from backends import backends, implementation
from planted import W, X
from torch import Tensor

import opmux
from opmux.callpath import codegen, wrappers
from opmux.declared.features import Feature
from opmux.dtypes import Real
from opmux.errors import InvalidArgument
from opmux.plugin import Exact, OneOf
from opmux.signatures.signature import read_signature

Q = torch.randn(2, 5, 4, 8)


def filled(value):
    def target(x, *tensors, **options):
        return torch.full_like(x, value)

    return target


def planted(
    x: Real[Tensor, "*tokens 2*n"],
    weight: Real[Tensor, "n m"],
    bias: Real[Tensor, "m"] | None = None,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    mode: Literal["a", "b"] = "a",
    scale: float,
) -> Real[Tensor, "*tokens m"]: ...


SIGNATURE = read_signature("planted", inspect.signature(planted))
EVEN = Feature("m % 8 == 0", "m % 8 == 0")


def key_of(features=(), ambient=(), **namespace):
    """The compiled key of `planted`."""
    source = codegen.key_source(SIGNATURE, features, ambient)
    return codegen.compile_function("_key_of", source, {"_autocast": lambda: False, **namespace}, shown=False)


def test_the_entry_asks_guard_then_shapes_then_looks_up_its_key():
    passed = "x, weight, bias, causal=causal, window=window, mode=mode, scale=scale"
    given = "x, weight, _absent_bias if bias is None else bias"
    source = codegen.entry_source(SIGNATURE, (EVEN,), ("_deterministic()",), 7, "Doc.")
    entry = source[source.index("def planted(") :]
    assert entry.splitlines() == [
        "def planted(x, weight, bias=None, *, causal=False, window=(-1, -1), mode='a', scale, backend=None, out=None):",
        "    'Doc.'",
        "    if _compiling():",
        f"        return _traced({passed}, backend=backend, out=out)",
        "    if not _profiler._is_profiler_enabled and not _dispatch_modes() "
        "and _forward_ad._current_level < 0 and not _function_modes(x):",
        "        if out is not None:",
        f"            return _into_7({passed}, backend=backend, out=out)",
        "        same, recorded, runs = _front_7",
        f"        if not same({given}) or (recorded is not None and recorded is not _grad_enabled()):",
        f"            runs = _other_front_7({given})",
        "        if backend is not None and runs is not None:",
        "            runs = runs.forced(backend)",
        "        if runs is not None:",
        "            try:",
        "                s_x = x.shape",
        "                s_weight = weight.shape",
        "                n, m = s_weight",
        "                if causal.__class__ is bool and window.__class__ is tuple and s_x[-1] == 2 * n "
        "and (bias is None or bias.numel() == m):",
        f"                    return runs[bias is None, causal, mode, _deterministic(), m % 8 == 0]({passed})",
        "            except Exception as error:",
        f"                return _recover(error, runs, {passed})",
        f"    return _slow({passed}, backend=backend, out=out)",
    ]


def test_a_call_with_out_asks_a_guard_of_all_tensors_then_shapes_and_memory():
    passed = "x, weight, bias, causal=causal, window=window, mode=mode, scale=scale"
    given = "x, weight, _absent_bias if bias is None else bias, out"
    assert codegen.into_source(SIGNATURE, (EVEN,), ("_deterministic()",), 7).splitlines() == [
        "def _into_7(x, weight, bias=None, *, causal=False, window=(-1, -1), mode='a', scale, backend=None, out=None):",
        "    same, recorded, runs = _into_front_7",
        f"    if not same({given}) or (recorded is not None and recorded is not _grad_enabled()):",
        f"        runs = _other_into_front_7({given})",
        "    if backend is not None and runs is not None:",
        "        runs = runs.forced(backend)",
        "    if runs is not None:",
        "        try:",
        "            s_x = x.shape",
        "            tokens = s_x[:-1]",
        "            s_weight = weight.shape",
        "            n, m = s_weight",
        "            if causal.__class__ is bool and window.__class__ is tuple and s_x[-1] == 2 * n "
        "and (bias is None or bias.numel() == m) and out.shape == tokens + (m,) "
        "and _separate((out,), (x, weight, bias, )):",
        f"                return runs[bias is None, causal, mode, _deterministic(), m % 8 == 0]({passed}, out=out)",
        "        except Exception as error:",
        f"            return _recover(error, runs, {passed}, out=out)",
        f"    return _slow({passed}, backend=backend, out=out)",
    ]


def test_several_tensors_come_as_a_tuple_and_have_the_shapes_of_their_outputs():
    signature = opmux.cross_entropy_lse.op.signature
    lines = codegen.into_source(signature, (), (), 7).splitlines()
    assert lines[1] == "    if out.__class__ is not tuple or len(out) != 2:"
    assert lines[3] == "    out_loss, out_lse = out"
    (condition,) = [line for line in lines if "_separate" in line]
    assert "out_loss.shape == (tokens if reduction == 'none' else ()) and out_lse.shape == tokens" in condition
    assert "_separate((out_loss, out_lse,), (logits, target, ))" in condition
    signature = opmux.linear_backward.op.signature
    (condition,) = [line for line in codegen.into_source(signature, (), (), 7).splitlines() if "_separate" in line]
    assert "out_grad_bias.shape == ((n,) if output_mask[2] else (0,))" in condition


def test_the_dtype_of_an_output_that_is_the_arguments_is_no_key_of_its_own():
    signature = opmux.linear.op.signature
    lines = codegen.entry_source(signature, (), (), 7, "Doc.").splitlines()
    place = lines.index("                if out_dtype is not None and out_dtype is x.dtype:")
    assert lines[place + 1] == "                    out_dtype = None"
    assert "return (out_dtype is None or out_dtype is not x.dtype) and " in codegen.fits_source(signature)
    x, w = torch.randn(4, 8).bfloat16(), torch.randn(3, 8).bfloat16()
    opmux.linear(x, w)
    known = len(opmux.linear.op.table)
    for call in (opmux.linear, torch.ops.opmux.linear):
        assert torch.equal(call(x, w, out_dtype=torch.bfloat16), opmux.linear(x, w))
    assert len(opmux.linear.op.table) == known
    assert opmux.linear(x, w, out_dtype=torch.float32).dtype == torch.float32
    assert len(opmux.linear.op.table) == known + 1


def test_dynamo_sees_the_registered_op():
    passed = "x, weight, bias, causal=causal, window=window, mode=mode, scale=scale, backend=backend"
    assert codegen.traced_source(SIGNATURE).splitlines()[1:] == [
        "    if out is not None:",
        f"        _ops.planted.out({passed}, out=out)",
        "        return out",
        f"    return _ops.planted.default({passed})",
    ]


def test_each_part_of_the_key_stands_where_the_layout_says():
    x, weight = torch.empty(3, 8), torch.empty(4, 6)
    key = key_of((EVEN,), ("_deterministic()",), _deterministic=lambda: "on")(x, weight, causal=True, scale=1.0)
    cpu, float32 = torch.device("cpu"), torch.float32
    assert key == (float32, float32, None, (cpu, cpu, None), False, True, "a", "on", False)
    layout = codegen.key_layout(SIGNATURE, (EVEN,), ("_deterministic()",))
    assert {label: key[place] for label, place in layout.items()} == {"_deterministic()": "on", "m % 8 == 0": False}


def test_a_star_dim_is_read_only_where_a_feature_asks_for_it():
    assert "tokens" not in codegen.key_source(SIGNATURE, (), ())
    tokens = Feature("tokens", "_prod(tokens)")
    made = key_of((tokens,), _prod=torch.Size.numel)
    assert made(torch.empty(3, 5, 8), torch.empty(4, 6), scale=1.0)[-1] == 15


@pytest.mark.parametrize(
    ("arguments", "fitting"),
    [
        (((3, 8), (4, 6), None), True),
        (((8,), (4, 6), (6,)), True),
        (((2, 0, 3, 8), (4, 6), (6,)), True),
        (((3, 7), (4, 6), None), False),
        (((3, 8), (4, 6), (4,)), False),
        (((3, 8), (4,), None), False),
        (((), (4, 6), None), False),
    ],
)
def test_shapes_that_do_not_fit_are_told_without_an_exception(arguments, fitting):
    fits = codegen.compile_function("_fits", codegen.fits_source(SIGNATURE), {}, shown=False)
    tensors = [None if shape is None else torch.empty(shape) for shape in arguments]
    assert fits(*tensors, scale=1.0) is fitting
    assert fits(*tensors, scale=1.0, causal=1) is False, "a flag of another class would make another key"


def test_bound_fixes_the_options():
    def run(*tensors, **options):
        return tensors, options

    retry = (LookupError, lambda run, *tensors, **options: "again")
    bound = wrappers.make_bound(SIGNATURE, run, {"scale": 2.0}, frozenset(), retry)
    assert bound(1, 2) == ((1, 2, None), {"scale": 2.0})
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'bias'"):
        wrappers.make_bound(SIGNATURE, run, {"scale": 2.0}, frozenset({"bias"}), retry)(1, 2)


def test_bound_runs_again_what_lacks_a_build():
    def run(*tensors, **options):
        raise LookupError

    retry = (LookupError, lambda run, *tensors, **options: (run, tensors, options))
    bound = wrappers.make_bound(SIGNATURE, run, {"scale": 2.0}, frozenset(), retry)
    assert bound(1, 2) == (run, (1, 2, None), {"scale": 2.0})


def test_a_wrapper_passes_the_config_and_bumps_what_was_written():
    bumped, seen = [], []

    def target(*tensors, **options):
        seen.append((tensors, options))
        return "result"

    options = {"causal": True, "window": (1, 2), "mode": "b", "scale": 2.0}
    run = wrappers.make_wrapper(SIGNATURE, True, bumped.append)(target, "config")
    assert run(1, 2, 3, **options) == "result"
    assert (seen.pop(), bumped) == (((1, 2, 3), {**options, "config": "config"}), [])

    signature = opmux.add_rms_norm_.op.signature
    run = wrappers.make_wrapper(signature, False, bumped.append)(target, None)
    assert run(1, 2, 3, eps=0.5, weight_offset=0.0) is None
    assert (seen.pop(), bumped) == (((1, 2, 3), {"eps": 0.5, "weight_offset": 0.0}), [1, 2])


def test_tracebacks_show_generated_source():
    made = codegen.compile_function("planted", "def planted(x):\n    return x.nothing\n", {})
    assert made.__code__.co_filename.startswith("<opmux planted ")
    assert linecache.getline(made.__code__.co_filename, 2) == "    return x.nothing\n"


def test_a_list_for_a_tuple_shares_the_tuples_plan():
    takes = implementation(lambda q, *t, **o: torch.ones_like(q), op="attention", when=(OneOf("window", (-1, -1)),))
    with backends(a=takes):
        assert (opmux.attention(Q, Q, Q, window=[-1, -1]) == 1).all()
        assert not (opmux.attention(Q, Q, Q, window=(2, 0)) == 1).any()
        assert (opmux.attention(Q, Q, Q, window=[-1, -1]) == 1).all()
    with backends(a=implementation(lambda q, *t, **o: torch.ones_like(q), op="attention", features=(Exact("window"),))):
        opmux.attention(Q, Q, Q, window=(-1, -1))
        opmux.attention(Q, Q, Q, window=[-1, -1])
        assert opmux.quarantined() == ()
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="attention: `causal` expected a bool, got 1"):
            opmux.attention(Q, Q, Q, causal=1)
        opmux.attention(Q, Q, Q, causal=True)


def test_code_that_was_replaced_leaves_by_the_slow_way():
    old = FunctionType(opmux.rms_norm.__code__, opmux.rms_norm.__globals__)
    old.__kwdefaults__ = opmux.rms_norm.__kwdefaults__
    for name in ("hidden", "tokens"):
        with backends(a=implementation(filled(1.0), features=(Exact(name),))):
            assert old(X, W).sum() == 32
            assert opmux.quarantined() == ()
    assert torch.equal(old(X, W), opmux.rms_norm.reference(X, W))


def test_binding_and_registering_leave_nothing_behind():
    before = len(linecache.cache)
    for _ in range(50):
        opmux.rms_norm.bind(X, W)
    assert len(linecache.cache) <= before + 1
