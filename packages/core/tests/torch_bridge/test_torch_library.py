"""torch's own checks of a registered op: its schema, its fake kernel, its autograd, its behaviour when compiled."""

import inspect

import pytest
import torch
from torch import Tensor
from torch_bridge.samples import ALL, DIFFERENTIABLE, WITH_OUT, Sample, outputs, sample

from opmux.callpath.op import OPS
from opmux.dtypes import Real
from opmux.signatures.signature import read_signature
from opmux.torch_bridge import torch_library
from opmux.torch_bridge.torch_library import schema

# torch's own.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

STATIC = ("test_schema", "test_autograd_registration", "test_faketensor")
COMPILED = "test_aot_dispatch_dynamic"


def checks_for(call: Sample, *more: str) -> tuple[str, ...]:
    """torch's checks of a call; that of the schema compares arguments by arithmetic that 8-bit floats lack."""
    eight = any(t is not None and t.dtype.is_floating_point and t.dtype.itemsize == 1 for t in call.tensors)
    return (*(STATIC[1:] if eight else STATIC), *more)


@pytest.mark.parametrize("name", ALL)
def test_opcheck(name: str) -> None:
    call = sample(name)
    torch.library.opcheck(call.registered, call.tensors, call.options, test_utils=checks_for(call, COMPILED))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_opcheck_with_gradients(name: str) -> None:
    call = sample(name)
    call = call.requiring(*call.differentiable)
    torch.library.opcheck(call.registered, call.tensors, call.options)


@pytest.mark.parametrize("name", WITH_OUT)
def test_opcheck_of_the_out_overload(name: str) -> None:
    call = sample(name)
    results = outputs(call())
    names = ["out"] if len(results) == 1 else [f"out_{o.name}" for o in call.op.signature.outputs]
    out = {n: torch.empty_like(r) for n, r in zip(names, results, strict=True)}
    overload = getattr(torch.ops.opmux, name).out
    torch.library.opcheck(overload, call.tensors, {**call.options, **out}, test_utils=checks_for(call))


@pytest.mark.parametrize("name", ALL)
def test_strided_arguments(name: str) -> None:
    """The fake kernel says what strides the real one gives, whatever those of the arguments are."""
    call = sample(name).with_tensors(lambda t: t.mT.contiguous().mT if t.dim() > 1 else t)
    torch.library.opcheck(call.registered, call.tensors, call.options, test_utils="test_faketensor")


@pytest.mark.parametrize("name", ALL)
def test_the_registered_schema_is_the_signature(name: str) -> None:
    signature = OPS[name].signature
    registered = getattr(torch.ops.opmux, name).default._schema
    arguments = [a.name for a in registered.arguments]
    assert arguments == [t.name for t in signature.tensors] + [o.name for o in signature.options] + ["backend"]
    assert [a.name for a in registered.arguments if a.is_write] == list(signature.mutates)
    assert len(registered.returns) == len(signature.outputs)
    for argument, option in zip(registered.arguments[len(signature.tensors) :], signature.options, strict=False):
        if option.required:
            assert not argument.has_default_value()
        else:
            default = argument.default_value
            assert (tuple(default) if isinstance(default, list) else default) == option.default
    assert torch.Tag.pt2_compliant_tag in getattr(torch.ops.opmux, name).default.tags


def test_schemas_in_words() -> None:
    assert schema(OPS["attention"].signature) == (
        "attention(Tensor q, Tensor k, Tensor v, Tensor? sinks=None, *, float? scale=None, bool causal=False, "
        "SymInt[] window=[-1, -1], float softcap=0.0, str? backend=None) -> Tensor"
    )
    assert schema(OPS["add_rms_norm"].signature, out=True) == (
        "add_rms_norm.out(Tensor x, Tensor residual, Tensor weight, *, float eps=1e-06, float weight_offset=0.0, "
        "str? backend=None, Tensor(a!) out_y, Tensor(b!) out_residual_out) -> ()"
    )
    assert schema(OPS["apply_rope_"].signature) == (
        "apply_rope_(Tensor(a!) q, Tensor(b!) k, Tensor cos, Tensor sin, Tensor? positions=None, *, "
        "bool interleaved=False, str? backend=None) -> ()"
    )


def test_schemas_of_every_kind_of_option() -> None:
    def op(
        x: Real[Tensor, "n"],
        *,
        required: torch.dtype,
        dtype: torch.dtype = torch.float32,
        no_dtype: torch.dtype | None = None,
        sizes: tuple[int, ...] = (1, -1),
        flags: tuple[bool, ...] = (True, False),
        name: str = "a b",
        scale: float = -1e-12,
        count: int = -1,
    ) -> Real[Tensor, "n"]: ...

    text = schema(read_signature("every_kind", inspect.signature(op)))
    assert text == (
        "every_kind(Tensor x, *, ScalarType required, ScalarType dtype, ScalarType? no_dtype=None, "
        'SymInt[] sizes=[1, -1], bool[] flags=[True, False], str name="a b", float scale=-1e-12, SymInt count=-1, '
        "str? backend=None) -> Tensor"
    )
    torch._C.parse_schema(text)


@pytest.mark.parametrize("name", ["rms_norm", "add_rms_norm_", "linear"])
@pytest.mark.parametrize("recorded", [False, True])
def test_where_nothing_else_is_to_see_the_op_it_passes_the_dispatcher_once(
    name: str, recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, eager = sample(name), sample(name)
    expected = outputs(eager())
    monkeypatch.setattr(torch_library, "call", None)
    with torch.set_grad_enabled(recorded):
        found = call.registered(*call.tensors, **call.options)
    if call.op.signature.mutates:
        assert found is None
    results = (*outputs(found), *(t for t in call.tensors if t is not None))
    wanted = (*(() if call.op.signature.mutates else expected), *(t for t in eager.tensors if t is not None))
    for got, right in zip(results, wanted, strict=True):
        torch.testing.assert_close(got, right)
