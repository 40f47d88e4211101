"""Linear layers with 8-bit weights, against products of dequantised values."""

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from nn.blocks import inputs, linear_of
from torch import Tensor

import opmux
from opmux import nn
from opmux.errors import InvalidArgument, UnknownBackend

FP8, INT8 = torch.float8_e4m3fn, torch.int8
KINDS = [(a, w) for a in ("token", "block", "static") for w in ("channel", "block", "tensor")]


def spread(scale: Tensor, rows: int, columns: int) -> Tensor:
    """A scale for every element."""
    down = 1 if scale.shape[0] == rows else rows if scale.shape[0] == 1 else 128
    across = columns if scale.shape[1] == 1 else 128
    return scale.repeat_interleave(down, 0)[:rows].repeat_interleave(across, 1)[:, :columns]


def by_hand(layer: nn.QuantizedLinear, x: Tensor) -> Tensor:
    """The layer's result from dequantised values, in float64."""
    rows = x.reshape(-1, x.shape[-1])
    q, scale = layer.quantize(rows)
    values = q.double() * spread(scale.double(), *rows.shape)
    weight = layer.weight.double() * spread(layer.weight_scale.double(), *layer.weight.shape)
    bias = None if layer.bias is None else layer.bias.double()
    return F.linear(values, weight, bias).reshape(*x.shape[:-1], layer.out_features)


def converted(k: int = 16, n: int = 8, bias: bool = True, dtype: torch.dtype = torch.float32, **how: Any) -> Any:
    torch.manual_seed(0)
    linear = torch.nn.Linear(k, n, bias, dtype=dtype)
    if how.get("activations") == "static":
        how.setdefault("input_scale", 0.01)
    return linear, nn.QuantizedLinear.from_linear(linear, **how)


@pytest.mark.parametrize("codes", [FP8, INT8])
@pytest.mark.parametrize(("activations", "weights"), KINDS)
@pytest.mark.parametrize(("k", "n"), [(16, 8), (300, 260), (128, 300), (300, 8)])
@pytest.mark.parametrize("m", [0, 1, 5])
def test_the_product_of_quantised_values(
    codes: torch.dtype, activations: str, weights: str, k: int, n: int, m: int
) -> None:
    _, layer = converted(k, n, codes=codes, activations=activations, weights=weights)
    x = inputs(2, m, k)
    torch.testing.assert_close(layer(x).double(), by_hand(layer, x), rtol=1e-4, atol=1e-4)
    assert layer(x).dtype is torch.float32
    assert layer(x[0]).shape == (m, n)


@pytest.mark.parametrize(("codes", "most"), [("fp8", 0.05), ("int8", 0.02), (torch.float8_e5m2, 0.1)])
@pytest.mark.parametrize(("activations", "weights"), KINDS[:6])
def test_it_stays_near_the_layer(codes: Any, most: float, activations: str, weights: str) -> None:
    linear, layer = converted(256, 64, codes=codes, activations=activations, weights=weights)
    x = inputs(7, 256)
    error = (layer(x) - linear(x)).norm() / linear(x).norm()
    assert 0 < error < most


def test_ops_and_dtypes() -> None:
    _, layer = converted(dtype=torch.bfloat16)
    assert layer.weight.dtype is opmux.fp8_dtype("cpu")
    assert layer.weight_scale.shape == (8, 1)
    with opmux.trace() as traced:
        assert layer(inputs(3, 16, dtype=torch.bfloat16)).dtype is torch.bfloat16
    assert {row.op: row.calls for row in traced.rows} == {"quantize": 1, "scaled_linear": 1}
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(inputs(3, 16)).dtype is torch.bfloat16
    assert layer(inputs(16)).shape == (8,)


def test_rows_that_are_quantised_once_serve_several_layers() -> None:
    (_, first), (_, second) = converted(), converted(n=5)
    x = inputs(3, 16)
    q, scale = first.quantize(x)
    torch.testing.assert_close(second.product(q, scale, torch.float32), second(x), rtol=0, atol=0)
    q, scale = opmux.rms_norm_quantize(x, torch.ones(16), dtype=q.dtype, block=(1, -1))
    torch.testing.assert_close(
        first.product(q, scale, torch.float32), first(opmux.rms_norm(x, torch.ones(16))), rtol=0, atol=1e-6
    )


def test_a_checkpoint() -> None:
    linear, layer = converted(activations="static")
    assert list(layer.state_dict()) == ["weight", "weight_scale", "input_scale", "bias"]
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    torch.manual_seed(1)
    other = nn.QuantizedLinear(16, 8, activations="static")
    x = inputs(3, 16)
    assert not torch.equal(other(x), layer(x))
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x), layer(x))
    with torch.device("meta"):
        empty = nn.QuantizedLinear(16, 8, activations="static")
    empty.load_state_dict(layer.state_dict(), assign=True)
    assert torch.equal(empty(x), layer(x))
    plain = nn.QuantizedLinear(16, 8)
    plain.load_state_dict(linear.state_dict())  # quantised as it is loaded
    assert torch.equal(plain(x), nn.QuantizedLinear.from_linear(linear)(x))


def test_scales_without_dims_of_one_load() -> None:
    _, layer = converted(activations="static")
    saved = layer.state_dict()
    saved["weight_scale"], saved["input_scale"] = saved["weight_scale"].flatten(), saved["input_scale"].reshape(())
    other = nn.QuantizedLinear(16, 8, activations="static")
    other.load_state_dict(saved)
    assert torch.equal(other(inputs(3, 16)), layer(inputs(3, 16)))


def test_codes_of_another_dtype_do_not_load() -> None:
    _, layer = converted(codes="int8")
    with pytest.raises(RuntimeError) as caught:
        torch.nn.Sequential(nn.QuantizedLinear(16, 8)).load_state_dict(
            {f"0.{name}": value for name, value in layer.state_dict().items()}
        )
    assert (
        "QuantizedLinear: `0.weight` expected dtype float8_e4m3fn, got int8; make the layer with codes= of this dtype; "
        "opmux.convert_fp8 converts between flavours of fp8"
    ) in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_plain_weight_that_is_not_finite_does_not_load(value: float) -> None:
    layer = nn.QuantizedLinear(4, 4)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(RuntimeError) as caught:
        torch.nn.Sequential(layer).load_state_dict(torch.nn.Sequential(linear_of(value)).state_dict())
    assert (
        "QuantizedLinear: `0.weight` expected a weight of finite numbers in bfloat16, float16, float32 or float64, "
        "got NaN or infinity in it; repair the checkpoint"
    ) in str(caught.value)
    assert torch.equal(layer.weight.float(), before["weight"].float())


def test_a_plain_checkpoint_lacks_a_static_scale() -> None:
    linear, layer = converted(activations="static")
    torch.manual_seed(1)
    other = nn.QuantizedLinear(16, 8, activations="static")
    assert layer.input_scale is not None
    assert other.input_scale is not None
    other.input_scale.data.copy_(layer.input_scale)
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "input_scale"'):
        other.load_state_dict(linear.state_dict())
    other.load_state_dict(linear.state_dict(), strict=False)
    assert torch.equal(other(inputs(3, 16)), layer(inputs(3, 16)))


def test_the_input_has_torchs_name() -> None:
    linear, layer = converted()
    x = inputs(3, 16)
    assert linear(input=x).shape == layer(input=x).shape
    assert torch.equal(layer(input=x), layer(x))


def test_casts_leave_codes_and_scales() -> None:
    _, layer = converted(activations="static")
    before = copy.deepcopy(layer.state_dict())
    for cast in (layer.to, lambda dtype: layer.half() if dtype is torch.float16 else layer.double()):
        for dtype in (torch.float16, torch.float64):
            cast(dtype)
            for name in ("weight", "weight_scale", "input_scale"):
                found = layer.state_dict()[name]
                assert found.dtype is before[name].dtype
                assert torch.equal(found.float(), before[name].float())
            assert layer.bias is not None
            assert layer.bias.dtype is dtype
    layer.to("meta")
    assert layer.weight.is_meta
    assert layer.weight.dtype is FP8


def test_gradients_pass_through() -> None:
    linear, layer = converted(activations="block", weights="block", k=200, n=130)
    x = inputs(2, 3, 200).requires_grad_()
    weights = inputs(2, 3, 130)
    with opmux.trace() as traced:
        (layer(x) * weights).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, weights @ layer.dequantized().weight, rtol=1e-4, atol=1e-4)
    assert {"quantize", "scaled_linear", "dequantize", "linear"} == {row.op for row in traced.rows}
    assert all(not p.requires_grad for p in layer.parameters())
    assert linear.weight.grad is None


def test_it_compiles_and_copies() -> None:
    _, layer = converted()
    x = inputs(3, 16)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    torch._dynamo.reset()


def test_dequantized() -> None:
    linear, layer = converted()
    plain = layer.dequantized()
    assert type(plain) is torch.nn.Linear
    torch.testing.assert_close(plain.weight, linear.weight, rtol=0.07, atol=1e-3)
    assert torch.equal(plain.bias, linear.bias)


def test_a_fresh_layer_starts_as_torchs() -> None:
    torch.manual_seed(3)
    layer = nn.QuantizedLinear(16, 8)
    torch.manual_seed(3)
    linear = torch.nn.Linear(16, 8)
    assert torch.equal(layer.weight, nn.QuantizedLinear.from_linear(linear).weight)
    assert layer.bias is not None
    assert torch.equal(layer.bias, linear.bias)


def test_how_it_shows_and_its_backend() -> None:
    layer = nn.QuantizedLinear(16, 8, bias=False, weights="block", activations="block", backend="nobodys")
    assert repr(layer) == (
        "QuantizedLinear(in_features=16, out_features=8, bias=False, codes=float8_e4m3fn, activations='block', "
        "weights='block', backend='nobodys')"
    )
    with pytest.raises(UnknownBackend, match="`backend` expected one of"):
        layer(inputs(2, 16))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.QuantizedLinear(0, 4), "QuantizedLinear: `in_features` expected a whole number, 1 or more, got 0"),
        (
            lambda: nn.QuantizedLinear.from_linear("x"),  # type: ignore[arg-type]
            "QuantizedLinear: `linear` expected a torch.nn.Linear, got str; pass the layer to quantise",
        ),
        (
            lambda: nn.QuantizedLinear(4, 4)(torch.zeros(2, 5)),
            "QuantizedLinear: `input` expected a last dim of in_features = 4, got shape [2, 5]; make the layer for",
        ),
        (
            lambda: nn.QuantizedLinear(4, 4)([1.0]),
            "QuantizedLinear: `input` expected a torch.Tensor, got a list; convert it with torch.as_tensor",
        ),
        (
            lambda: nn.QuantizedLinear(4, 4)(None),
            "QuantizedLinear: `input` expected a torch.Tensor, got None; convert it with torch.as_tensor",
        ),
        (
            lambda: nn.QuantizedLinear(4, 4)(torch.tensor(1.0)),
            "QuantizedLinear: `input` expected a last dim of in_features = 4, got shape []; make the layer for this",
        ),
        (
            lambda: nn.QuantizedLinear(4, 4).quantize(torch.zeros(2, 3, 4)),
            "QuantizedLinear: `x` expected shape (m, 4), got [2, 3, 4]; flatten the leading dims with .reshape(-1, 4)",
        ),
        (
            lambda: nn.QuantizedLinear(4, 4).quantize(torch.zeros(2, 5)),
            "QuantizedLinear: `x` expected shape (m, 4), got [2, 5]; make the layer for this size",
        ),
        (
            lambda: nn.QuantizedLinear(4, 4).dequantized(torch.int8),
            "QuantizedLinear: `dtype` expected bfloat16, float16, float32 or float64, got int8; choose one of them",
        ),
        (
            lambda: nn.QuantizedLinear(4, 4).dequantized("float32"),  # type: ignore[arg-type]
            "QuantizedLinear: `dtype` expected bfloat16, float16, float32 or float64, got 'float32'; choose one of",
        ),
        (
            lambda: nn.QuantizedLinear.from_linear(torch.nn.Linear(4, 4), activations="rows", input_scale=0.1),
            "QuantizedLinear: `activations` expected one of token, block, static, got 'rows'; see the blocks",
        ),
        (
            lambda: nn.QuantizedLinear.from_linear(torch.nn.Linear(4, 4, device="meta")),
            "QuantizedLinear: `linear` expected a weight with values, got one on the meta device; load its weight",
        ),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            lambda q, scale: (q, scale.expand(3, 10)),
            "`scale` expected shape [3, 1] or [3, 3] or [1, 1], got [3, 10]; quantise the rows with the block (1, -1),"
            " (1, 128) or (-1, -1)",
        ),
        (
            lambda q, scale: (q, scale[:2]),
            "`scale` expected shape [3, 1] or [3, 3] or [1, 1], got [2, 1]; quantise the rows with the block (1, -1),"
            " (1, 128) or (-1, -1)",
        ),
        (
            lambda q, scale: (q, scale[:, 0]),
            "`scale` expected shape [3, 1] or [3, 3] or [1, 1], got [3]; quantise the rows with the block (1, -1),"
            " (1, 128) or (-1, -1)",
        ),
        (
            lambda q, scale: (q, opmux.pack_scale(torch.ones(3, 3))),
            "`scale` expected dtype float32, got int32; give the scales as opmux.quantize returns them;"
            " opmux.unpack_scale unpacks others",
        ),
        (
            lambda q, scale: (q[None], scale[None]),
            "`q` expected shape (m, 300), got [1, 3, 300]; flatten the leading dims with .reshape(-1, 300)",
        ),
        (lambda q, scale: (q[:, 1:], scale), "`q` expected shape (m, 300), got [3, 299]; make the layer for this size"),
        (
            lambda q, scale: (q.float(), scale),
            "`q` expected dtype float8_e4m3fn, got float32; quantise the rows with dtype= of the weight",
        ),
        (lambda q, scale: (q, 1.0), "`scale` expected a torch.Tensor, got a float; convert it with torch.as_tensor"),
        (lambda q, scale: (None, scale), "`q` expected a torch.Tensor, got None; convert it with torch.as_tensor"),
    ],
)
@pytest.mark.parametrize("weights", ["channel", "block"])
def test_rows_that_do_not_fit_are_refused(changed: Any, says: str, weights: str) -> None:
    _, layer = converted(300, 8, weights=weights)
    with pytest.raises(InvalidArgument) as caught:
        layer.product(*changed(*layer.quantize(inputs(3, 300))), torch.float32)
    assert str(caught.value) == f"QuantizedLinear: {says}"
