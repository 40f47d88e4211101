"""``out=``: written by the target where it takes it, else by a copy."""

import pytest
import torch
from backends import backends, implementation
from planted import WANTED, W, X
from torch.autograd import forward_ad

import opmux
from opmux.errors import BackendFault, GradientRefused, InvalidArgument, UnknownBackend
from opmux.torch_bridge import routing


def test_outputs_are_written_where_out_says():
    out = torch.empty(4, 8)
    assert opmux.rms_norm(X, W, out=out) is out
    assert torch.equal(out, WANTED)
    y, total = torch.empty(4, 8), torch.empty(4, 8)
    assert opmux.add_rms_norm(X, X, W, out=(y, total))[1] is total
    assert torch.equal(total, X + X)
    x = X.clone()
    opmux.rms_norm(x, W, out=x)
    assert torch.equal(x, WANTED), "an out that is an input gets the result of the old input"
    strided = torch.empty(8, 4).T
    opmux.rms_norm(X, W, out=strided)
    assert torch.equal(strided, WANTED)


def test_a_target_with_a_config_gets_it_beside_out():
    given = []

    def target(x, weight, *, eps, weight_offset, config, out=None):
        given.append((config, out))
        result = torch.full_like(x, 5.0)
        return result if out is None else out.copy_(result)

    with backends(a=implementation(target, config=lambda arch, features: {"rows": 2}, takes_out=True)):
        out = torch.empty(4, 8)
        for _ in range(3):
            opmux.rms_norm(X, W, out=out)
        assert given[-1] == ({"rows": 2}, out)
        opmux.rms_norm(X, W)
        assert given[-1] == ({"rows": 2}, None)


def test_a_target_that_takes_out_gets_it():
    given = []

    def target(x, weight, *, eps, weight_offset, out=None):
        given.append(out)
        result = torch.full_like(x, 5.0)
        return result if out is None else out.copy_(result)

    with backends(a=implementation(target, takes_out=True)):
        out = torch.empty(4, 8)
        for _ in range(2):
            opmux.rms_norm(X, W, out=out)
            assert (out == 5).all()
        version = out._version
        opmux.rms_norm(X, W, out=out)
        assert out._version > version
    assert given[-1] is out


Y, BUFFER = torch.empty(4, 8), torch.empty(2, 4, 8)
REFUSED = [
    (
        lambda: opmux.rms_norm(X, W, out=(torch.empty(4, 8),)),
        "rms_norm: `out` expected a tensor, got a tuple of 1; pass the tensor itself",
    ),
    (
        lambda: opmux.add_rms_norm(X, X, W, out=(Y, Y)),
        "add_rms_norm: `out` expected tensors of their own, got two in one memory; pass tensors that share none",
    ),
    (
        lambda: opmux.rms_norm(X, W, out=torch.empty(12).as_strided((4, 8), (1, 1))),
        "rms_norm: `out` expected a tensor whose elements do not overlap, got strides [1, 1]; "
        "pass a tensor that is not expanded",
    ),
]


def in_inference_mode():
    with torch.inference_mode():
        return torch.empty(4, 8)


UNWRITABLE = {
    "negated": (
        torch.zeros(4, 8, dtype=torch.complex64).conj().imag,
        "a tensor that can be written, got a negated view; make it with torch.empty",
    ),
    "inference": (
        in_inference_mode(),
        "a tensor that can be written, got one of inference mode, which is off; "
        "make it outside of inference mode, or call under torch.inference_mode()",
    ),
    "sparse": (
        torch.zeros(4, 8).to_sparse(),
        "a strided tensor, got layout torch.sparse_coo; make it with torch.empty",
    ),
    "nested": (
        torch.nested.nested_tensor([torch.zeros(8), torch.zeros(8)], layout=torch.jagged),
        "a strided tensor, got a nested tensor; make it with torch.empty",
    ),
}


@pytest.mark.parametrize("twice", [False, True], ids=["native guard", "python guard"])
@pytest.mark.parametrize("name", UNWRITABLE)
def test_what_cannot_be_written_is_refused_and_blames_no_backend(name, twice):
    wrong, message = UNWRITABLE[name]
    x = X if twice else X.clone()
    for _ in range(2):
        opmux.add_rms_norm(X, x, W, out=(torch.empty(4, 8), torch.empty(4, 8)))
        with pytest.raises(InvalidArgument) as caught:
            opmux.add_rms_norm(X, x, W, out=(torch.empty(4, 8), wrong))
        assert str(caught.value) == f"add_rms_norm: `out[residual_out]` expected {message}"
    assert opmux.quarantined() == ()


# torch's own forward-mode AD compiles its decompositions with torch.jit.script, which warns.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_tensor_with_a_tangent_is_refused_as_an_argument_is():
    with backends(a=implementation(writes, takes_out=True)), forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.empty(4, 8), torch.ones(4, 8))
        for _ in range(2):
            opmux.rms_norm(X, W, out=torch.empty(4, 8))
            with pytest.raises(GradientRefused, match=r"^rms_norm: forward-mode gradients .* are not supported; use"):
                opmux.rms_norm(X, W, out=dual)
        assert opmux.quarantined() == ()


def test_a_tensor_made_in_inference_mode_is_written_there():
    out = in_inference_mode()
    with torch.inference_mode():
        for _ in range(2):
            assert torch.equal(opmux.rms_norm(X, W, out=out.zero_()), WANTED)


def test_memory_of_another_library_overlaps_although_storages_differ():
    def rows(x, weight, *, eps, weight_offset, out=None):
        out = torch.empty_like(x) if out is None else out
        for place in range(len(x)):
            out[place] = x[place] * 2
        return out

    array = torch.arange(48.0).numpy()
    x, out = (torch.from_numpy(part).view(4, 8) for part in (array[:32], array[8:40]))
    expected = x * 2
    with backends(a=implementation(rows, takes_out=True)):
        opmux.rms_norm(X, W, out=torch.empty(4, 8))
        assert torch.equal(opmux.rms_norm(x, W, out=out), expected)


class Watched(torch.Tensor):
    """A tensor that shows the ops which it meets, and has no memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner, self.met = inner, []

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        options = options or {}
        for value in (*arguments, *options.values()):
            if isinstance(value, cls):
                value.met.append(str(function))
        opened = {name: value.inner if isinstance(value, cls) else value for name, value in options.items()}
        return function(*arguments, **opened)


def test_a_tensor_subclass_that_is_only_written_sees_the_op():
    for _ in range(2):
        out = Watched(torch.empty(4, 8))
        assert opmux.rms_norm(X, W, out=out) is out
        assert out.met == ["opmux.rms_norm.out"]
        assert torch.equal(out.inner, WANTED)


def test_slices_of_one_buffer_are_tensors_of_their_own():
    opmux.add_rms_norm(X, X, W, out=(BUFFER[0], BUFFER[1]))
    assert torch.equal(BUFFER[1], X + X)


@pytest.fixture
def long_way(monkeypatch):
    """The ops of calls that took the long way."""
    taken = []
    route = routing._route

    def routed(op, *arguments):
        taken.append(op.name)
        return route(op, *arguments)

    monkeypatch.setattr(routing, "_route", routed)
    return taken


def writes(x, weight, *, eps, weight_offset, out=None):
    """A target that takes ``out=``."""
    return torch.full_like(x, 5.0) if out is None else out.fill_(5.0)


def returns(x, weight, *, eps, weight_offset):
    """A target that does not."""
    return torch.full_like(x, 6.0)


@pytest.mark.parametrize("backend", [None, "a", "b"])
@pytest.mark.parametrize("tokens", [(4,), (2, 3), (), (0,)], ids=str)
def test_a_call_with_out_goes_the_direct_way(backend, tokens, long_way):
    with backends(a=implementation(writes, takes_out=True, priority=30), b=implementation(returns)):
        for _ in range(3):
            x, out = torch.randn(*tokens, 8), torch.full((*tokens, 8), 1.0)
            version = out._version
            assert opmux.rms_norm(x, W, out=out, backend=backend) is out
            assert (out == (6.0 if backend == "b" else 5.0)).all()
            assert out._version > version
        strided = torch.zeros(*tokens, 16)[..., ::2]
        opmux.rms_norm(torch.randn(*tokens, 8), W, out=strided, backend=backend)
        assert (strided == (6.0 if backend == "b" else 5.0)).all()
    assert long_way == []


def test_results_of_several_outputs_options_and_masks_go_there_too(long_way):
    x, w, grad = torch.randn(4, 8).bfloat16(), torch.randn(3, 8).bfloat16(), torch.randn(4, 3).bfloat16()
    wide, narrow = torch.empty(4, 3), torch.empty(4, 3).bfloat16()
    logits, target = torch.randn(4, 9), torch.tensor([1, 2, 3, 4])
    grads = torch.empty(4, 8).bfloat16(), torch.empty(0).bfloat16(), torch.empty(3).bfloat16()
    for _ in range(2):
        y, total = torch.empty(4, 8), torch.empty(4, 8)
        opmux.add_rms_norm(X, X, W, out=(y, total))
        assert torch.equal(total, X + X)
        assert torch.equal(y, opmux.rms_norm(total, W))
        assert torch.equal(opmux.linear(x, w, out_dtype=torch.float32, out=wide), x.float() @ w.float().T)
        assert torch.equal(opmux.linear(x, w, out_dtype=torch.bfloat16, out=narrow), opmux.linear(x, w))
        for reduction, shape in (("none", (4,)), ("sum", ())):
            options = {"reduction": reduction}
            loss = opmux.cross_entropy(logits, target, **options, out=torch.empty(shape))
            assert torch.equal(loss, opmux.cross_entropy(logits, target, **options))
        opmux.linear_backward(grad, x, w, output_mask=(True, False, True), out=grads)
        assert torch.equal(grads[0], (grad.float() @ w.float()).bfloat16())
    assert long_way == []


def test_a_tensor_that_is_or_overlaps_an_argument_gets_the_result_of_the_old_one(long_way):
    with backends(a=implementation(lambda x, weight, **options: (x * 2).contiguous(), takes_out=False)):
        memory = torch.arange(48.0)
        expected = memory[:32].view(4, 8) * 2
        opmux.rms_norm(memory[:32].view(4, 8), W, out=torch.empty(4, 8))
        assert torch.equal(opmux.rms_norm(memory[:32].view(4, 8), W, out=memory[8:40].view(4, 8)), expected)
        x = X.clone()
        assert torch.equal(opmux.rms_norm(x, W, out=x), X * 2)
        assert long_way == ["rms_norm", "rms_norm"]
        apart = torch.arange(64.0)
        opmux.rms_norm(apart[:32].view(4, 8), W, out=apart[32:].view(4, 8))
        assert torch.equal(apart[32:], apart[:32] * 2)
    assert long_way == ["rms_norm", "rms_norm"]


def test_a_target_that_fails_on_the_direct_way_leaves_out_to_the_next_choice():
    fails = []

    def sometimes(x, weight, *, eps, weight_offset, out=None):
        if fails:
            raise RuntimeError("no")
        return writes(x, weight, eps=eps, weight_offset=weight_offset, out=out)

    with backends(a=implementation(sometimes, takes_out=True, priority=30), b=implementation(returns)):
        out = torch.empty(4, 8)
        for _ in range(2):
            assert (opmux.rms_norm(X, W, out=out) == 5).all()
        fails.append(True)
        for _ in range(2):
            assert opmux.rms_norm(X, W, out=out) is out
            assert (out == 6).all()
        with pytest.raises(
            BackendFault, match=r"^rms_norm: a \(opmux-a 1\.2\.3\) failed, and backend='a' was asked for"
        ):
            opmux.rms_norm(X, W, out=out, backend="a")


def test_a_change_of_policy_holds_for_calls_with_out():
    with backends(a=implementation(writes, takes_out=True, priority=30), b=implementation(returns)):
        out = torch.empty(4, 8)
        assert (opmux.rms_norm(X, W, out=out) == 5).all()
        with opmux.policy.override(prefer=["b"]):
            assert (opmux.rms_norm(X, W, out=out) == 6).all()
        assert (opmux.rms_norm(X, W, out=out) == 5).all()
        op = opmux.rms_norm.op
        stale = op.namespace[f"_into_{op._versions}"]
        before = op._versions
    assert op._versions > before
    assert torch.equal(stale(X, W, out=out), WANTED), "replaced code that a thread still runs"
    assert op.namespace[f"_into_{before}"] is op.namespace["_slow"]


LIKE = torch.empty(4, 8)
WRONG = {
    "shape": (torch.empty(3, 8), "`out` expected float32[4, 8] on cpu, got float32[3, 8] on cpu; make it with"),
    "rank": (torch.empty(32), "`out` expected float32[4, 8] on cpu, got float32[32] on cpu; make it with"),
    "dtype": (LIKE.double(), "`out` expected float32[4, 8] on cpu, got float64[4, 8] on cpu; make it with"),
    "device": (LIKE.to("meta"), "`out` expected float32[4, 8] on cpu, got float32[4, 8] on meta; make it with"),
    "class": (3, "`out` expected float32[4, 8] on cpu, got an int; pass a tensor"),
    "number": ((LIKE,), "`out` expected a tensor, got a tuple of 1; pass the tensor itself"),
    "overlap": (torch.empty(1, 8).expand(4, 8), "`out` expected a tensor whose elements do not overlap, got strides"),
    "gradient": (LIKE.clone().requires_grad_(), "`out` expected a tensor that requires no gradient, got one that does"),
}


@pytest.mark.parametrize("backend", [None, "a"])
@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_behind_a_guard_is_refused_in_the_same_words(name, backend):
    wrong, message = WRONG[name]
    with backends(a=implementation(writes, takes_out=True)):
        for _ in range(2):
            opmux.rms_norm(X, W, out=torch.empty(4, 8), backend=backend)
            opmux.rms_norm(torch.randn(3, 8), W, out=torch.empty(3, 8), backend=backend)
            with pytest.raises(InvalidArgument) as caught:
                opmux.rms_norm(X, W, out=wrong, backend=backend)
            assert str(caught.value).startswith(f"rms_norm: {message}")
            with torch.no_grad():
                assert name != "gradient" or (opmux.rms_norm(X, W, out=wrong, backend=backend) == 5).all()


def test_what_does_not_fit_among_several_is_refused_in_the_same_words():
    y, total = torch.empty(4, 8), torch.empty(4, 8)
    memory = torch.empty(40)
    for out, message in (
        ((y,), "`out` expected 2 tensors (y, residual_out), got 1; pass a tuple of that length"),
        ((y, total, y), "`out` expected 2 tensors (y, residual_out), got 3; pass a tuple of that length"),
        (y, "`out` expected 2 tensors (y, residual_out), got 1; pass a tuple of that length"),
        ((y, total.double()), "`out[residual_out]` expected float32[4, 8] on cpu, got float64[4, 8] on cpu; "),
        ((y, torch.empty(8)), "`out[residual_out]` expected float32[4, 8] on cpu, got float32[8] on cpu; "),
        ((memory[:32].view(4, 8), memory[8:].view(4, 8)), "`out` expected tensors of their own, got two in one memory"),
    ):
        assert opmux.add_rms_norm(X, X, W, out=[y, total]) == [y, total]
        assert opmux.add_rms_norm(X, X, W, out=(y, total))[0] is y
        with pytest.raises(InvalidArgument) as caught:
            opmux.add_rms_norm(X, X, W, out=out)
        assert str(caught.value).startswith(f"add_rms_norm: {message}")


def test_other_arguments_are_refused_with_out_as_without():
    out, tracked = torch.empty(4, 8), X.clone().requires_grad_()
    opmux.rms_norm(X, W, out=out)
    with torch.no_grad():
        opmux.rms_norm(tracked, W, out=out)
    with pytest.raises(GradientRefused, match=r"^rms_norm: out= does not support autograd, and an argument requires a"):
        opmux.rms_norm(tracked, W, out=out)
    with pytest.raises(
        InvalidArgument, match=r"^rms_norm: `weight` expected shape \[hidden\] = \[8\], got shape \[7\]"
    ):
        opmux.rms_norm(X, torch.ones(7), out=out)
    with pytest.raises(UnknownBackend, match=r"^rms_norm: "):
        opmux.rms_norm(X, W, out=out, backend="nobody")
    x, w = X.bfloat16(), torch.randn(3, 8).bfloat16()
    wide = torch.empty(4, 3)
    opmux.linear(x, w, out_dtype=torch.float32, out=wide)
    with pytest.raises(InvalidArgument, match=r"^linear: `out` expected bfloat16\[4, 3\] on cpu, got float32\[4, 3\]"):
        opmux.linear(x, w, out=wide)


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_an_out_that_does_not_fit_is_refused(call, message):
    with pytest.raises(InvalidArgument) as caught:
        call()
    assert str(caught.value) == message
