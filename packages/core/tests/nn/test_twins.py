"""Linear and the norms are what their twins in torch.nn are: arguments, state, results, gradients."""

import inspect
from typing import Any

import pytest
import torch
from nn.blocks import assert_same, inputs, randomise

import opmux
from opmux import nn
from opmux.errors import InvalidArgument, UnknownBackend

TWINS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Linear", (16, 8), {}),
    ("Linear", (16, 8), {"bias": False}),
    ("RMSNorm", (16,), {}),
    ("RMSNorm", ([16],), {"eps": 1e-3}),
    ("RMSNorm", (16,), {"elementwise_affine": False}),
    ("LayerNorm", (16,), {}),
    ("LayerNorm", ((16,),), {"eps": 1e-2, "bias": False}),
    ("LayerNorm", (16,), {"elementwise_affine": False}),
]


@pytest.mark.parametrize(("name", "arguments", "options"), TWINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_twin(name: str, arguments: Any, options: dict[str, Any], dtype: torch.dtype) -> None:
    theirs = randomise(getattr(torch.nn, name)(*arguments, **options, dtype=dtype))
    ours = getattr(nn, name)(*arguments, **options, dtype=dtype)
    ours.load_state_dict(theirs.state_dict())
    assert isinstance(ours, type(theirs))
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-5
    assert_same(ours, theirs, inputs(2, 3, 16, dtype=dtype), tolerance=tolerance)
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize(("name", "arguments", "options"), TWINS)
def test_it_starts_as_its_twin_does(name: str, arguments: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(*arguments, **options)
    torch.manual_seed(0)
    ours = getattr(nn, name)(*arguments, **options)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["Linear", "RMSNorm", "LayerNorm"])
def test_arguments_are_those_of_the_twin(name: str) -> None:
    theirs = inspect.signature(getattr(torch.nn, name)).parameters
    ours = inspect.signature(getattr(nn, name)).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    assert [p.default for p in ours.values()][: len(theirs)] == [p.default for p in theirs.values()]
    assert all(p.kind is p.KEYWORD_ONLY for p in list(ours.values())[len(theirs) :])


@pytest.mark.parametrize("kind", [nn.RMSNorm, nn.LayerNorm])
@pytest.mark.parametrize("size", [-4, 0, "a", 4.0, True])
def test_what_is_no_size_is_refused(kind: Any, size: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        kind(size)
    assert str(caught.value) == (
        f"{kind.__name__}: `normalized_shape` expected a whole number, 1 or more, got {size!r}; check the model's sizes"
    )


@pytest.mark.parametrize("kind", [nn.RMSNorm, nn.LayerNorm])
@pytest.mark.parametrize("eps", [-1.0, "1e-6", float("nan")])
def test_what_is_no_eps_is_refused(kind: Any, eps: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        kind(4, eps=eps)
    assert (
        str(caught.value) == f"{kind.__name__}: `eps` expected a number, 0 or more, got {eps!r}; check the model's eps"
    )


@pytest.mark.parametrize(("sizes", "name", "got"), [((0, 4), "in_features", "0"), ((4, 2.0), "out_features", "2.0")])
def test_a_linear_without_features_is_refused(sizes: Any, name: str, got: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        nn.Linear(*sizes)
    assert str(caught.value) == (
        f"Linear: `{name}` expected a whole number, 1 or more, got {got}; check the model's sizes"
    )


@pytest.mark.parametrize("kind", [nn.RMSNorm, nn.LayerNorm])
@pytest.mark.parametrize("affine", [True, False])
def test_the_sum_with_a_residual_is_fused(kind: Any, affine: bool) -> None:
    norm = kind(16, elementwise_affine=affine)
    x, residual = inputs(2, 3, 16).bfloat16(), inputs(3, 2, 16).reshape(2, 3, 16)
    with opmux.trace() as traced:
        y, total = norm(x, residual)
    assert [row.op for row in traced.rows] == [f"add_{'rms' if kind is nn.RMSNorm else 'layer'}_norm"]
    assert (y.dtype, total.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(y, norm(total).bfloat16())


def test_an_offset_as_gemma_has_it() -> None:
    norm = nn.RMSNorm(16, 1e-6, weight_offset=1.0)
    assert torch.equal(norm.weight, torch.zeros(16))
    plain = torch.nn.RMSNorm(16, 1e-6)
    randomise(norm)
    with torch.no_grad():
        plain.weight.copy_(1 + norm.weight)
    assert_same(norm, plain, inputs(5, 16))
    norm.reset_parameters()
    assert torch.equal(norm.weight, torch.zeros(16))
    bare = nn.RMSNorm(16, 1e-6, elementwise_affine=False, weight_offset=1.0)
    torch.testing.assert_close(bare(inputs(5, 16)), torch.nn.functional.rms_norm(inputs(5, 16), (16,), eps=1e-6))


@pytest.mark.parametrize("kind", [nn.RMSNorm, nn.LayerNorm])
def test_several_dims_are_refused(kind: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        kind((4, 16))
    assert str(caught.value) == (
        f"{kind.__name__}: `normalized_shape` expected one dim, the last, got (4, 16); "
        "flatten the dims of x that are normed together, and pass their product"
    )


@pytest.mark.parametrize("kind", [nn.RMSNorm, nn.LayerNorm])
@pytest.mark.parametrize("affine", [True, False])
def test_another_size_is_refused(kind: Any, affine: bool) -> None:
    with pytest.raises(InvalidArgument, match=r"`weight` expected shape \[hidden\] = \[8\], got shape \[16\]"):
        kind(16, elementwise_affine=affine)(inputs(2, 8))


def test_backend_reaches_the_op_and_shows() -> None:
    x = inputs(2, 16)
    modules = [
        (nn.Linear(16, 16, backend="nobodys"), (x,)),
        (nn.RMSNorm(16, backend="nobodys"), (x,)),
        (nn.RMSNorm(16, backend="nobodys"), (x, x)),
        (nn.LayerNorm(16, backend="nobodys"), (x,)),
        (nn.LayerNorm(16, backend="nobodys"), (x, x)),
        (nn.GatedMLP(16, 16, backend="nobodys"), (x,)),
        (nn.GatedMLP(16, 16, fused=True, backend="nobodys"), (x,)),
        (nn.GroupedLinear(2, 16, 8, backend="nobodys"), (x, torch.tensor([0, 1, 2], dtype=torch.int32))),
        (nn.MoE(16, 8, 2, backend="nobodys"), (x, torch.zeros(len(x), 1, dtype=torch.int64), torch.ones(len(x), 1))),
        (nn.Attention(16, 2, backend="nobodys"), (x[None],)),
        (nn.RotaryEmbedding(8, 4, backend="nobodys"), (x.view(1, 2, 2, 8), x.view(1, 2, 2, 8))),
    ]
    for module, arguments in modules:
        assert "backend='nobodys'" in module.extra_repr()
        with pytest.raises(UnknownBackend, match="`backend` expected one of"):
            module(*arguments)
    assert "weight_offset=1.0, backend='reference'" in repr(nn.RMSNorm(4, weight_offset=1.0, backend="reference"))
    torch.testing.assert_close(nn.RMSNorm(16, backend="reference")(x), nn.RMSNorm(16)(x))
