"""The references of the rotary embedding, against complex multiplication in float64 and its autograd."""

import inspect
import itertools

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from opmux.errors import InvalidArgument
from opmux.ops.rope import apply_rope, apply_rope_, apply_rope_backward

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
LAYOUTS = ("contiguous", "strided", "offset", "transposed")
SIZES = (  # batch, seq, heads, kv_heads, head_dim, half
    ((2,), 5, 3, 1, 8, 4),
    ((), 7, 2, 2, 10, 3),
    ((2, 3), 1, 1, 1, 2, 1),
    ((1,), 3, 4, 2, 5, 2),
    ((2,), 3, 2, 1, 6, 0),
    ((0,), 3, 2, 1, 6, 3),
    ((2,), 0, 2, 1, 6, 2),
)
CASES = (  # every size, and two of them in every layout
    *((sizes, "contiguous") for sizes in SIZES),
    *((sizes, layout) for sizes in SIZES[:2] for layout in LAYOUTS[1:]),
)
MAX_POSITIONS = 11


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def laid_out(values: Tensor, layout: str) -> Tensor:
    """The same values in another memory layout, with NaN around them."""
    if layout == "contiguous" or values.ndim < 2:
        return values.clone()
    if layout == "transposed":
        return values.mT.contiguous().mT
    step = 2 if layout == "strided" else 1
    memory = values.new_full((*values.shape[:-1], step * values.shape[-1] + 3), float("nan"))
    view = memory[..., 3:][..., ::step]
    view.copy_(values)
    return view


def randn(*shape: int, dtype: torch.dtype, layout: str = "contiguous") -> Tensor:
    return laid_out(torch.randn(*shape, dtype=torch.float64).to(dtype), layout)


def assert_rounded_once(actual: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """actual is the float64 result, up to the accumulation's error and one rounding to dtype."""
    assert actual.dtype == dtype
    assert actual.shape == exact.shape
    assert actual.is_contiguous()
    slack = 1e-14 if dtype == torch.float64 else 1e-6
    rtol = 1.01 * torch.finfo(dtype).eps / 2 + slack
    torch.testing.assert_close(actual.double(), exact, rtol=rtol, atol=slack, equal_nan=True)


def exact_rope(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """Each pair of dims is a complex number, each angle another; they are multiplied."""
    half = cos.shape[-1]
    turn = torch.complex(cos.double(), sin.double())[positions.long()].unsqueeze(-2)
    rotary, rest = x.double().split((2 * half, x.shape[-1] - 2 * half), dim=-1)
    pairs = rotary.unflatten(-1, (half, 2) if interleaved else (2, half))
    turned = torch.complex(*pairs.unbind(-1 if interleaved else -2)) * turn
    turned = torch.stack((turned.real, turned.imag), dim=-1 if interleaved else -2)
    return torch.cat((turned.flatten(-2), rest), dim=-1)


def example(sizes, dtype, layout="contiguous"):
    batch, seq, heads, kv_heads, head_dim, half = sizes
    q = randn(*batch, seq, heads, head_dim, dtype=dtype, layout=layout)
    k = randn(*batch, seq, kv_heads, head_dim, dtype=dtype, layout=layout)
    cos, sin = (randn(MAX_POSITIONS, half, dtype=torch.float32, layout=layout) for _ in range(2))
    positions = torch.randint(MAX_POSITIONS, (*batch, seq))
    return q, k, cos, sin, positions


def counted(q: Tensor) -> Tensor:
    return torch.arange(q.shape[-3]).expand(q.shape[:-2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("sizes", "layout"), CASES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
def test_apply_rope(interleaved, sizes, layout, dtype):
    q, k, cos, sin, positions = example(sizes, dtype, layout)
    for given in (None, positions, positions.int()):
        where = counted(q) if given is None else given
        for x, out in zip((q, k), apply_rope.reference(q, k, cos, sin, given, interleaved=interleaved), strict=True):
            assert_rounded_once(out, exact_rope(x, cos, sin, where, interleaved), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("sizes", "layout"), CASES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
def test_apply_rope_backward(interleaved, sizes, layout, dtype):
    grad_q_out, grad_k_out, cos, sin, positions = example(sizes, dtype, layout)
    for given in (None, positions):
        where = counted(grad_q_out) if given is None else given
        actual = apply_rope_backward.reference(grad_q_out, grad_k_out, cos, sin, given, interleaved=interleaved)
        for grad_out, grad in zip((grad_q_out, grad_k_out), actual, strict=True):
            leaf = torch.zeros_like(grad_out, dtype=torch.float64).requires_grad_()
            out = exact_rope(leaf, cos, sin, where, interleaved)
            (exact,) = torch.autograd.grad(out, leaf, grad_out.double())
            assert_rounded_once(grad, exact, dtype)


def test_positions_are_not_interleaved_by_default():
    q, k, cos, sin, _ = example(SIZES[0], torch.float32)
    for a, b in zip(
        apply_rope.reference(q, k, cos, sin),
        apply_rope.reference(q, k, cos, sin, counted(q), interleaved=False),
        strict=True,
    ):
        assert torch.equal(a, b)
    assert not torch.equal(a, apply_rope.reference(q, k, cos, sin, interleaved=True)[1])


def test_a_quarter_turn():
    q = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).reshape(1, 1, 5)
    cos, sin = torch.zeros(1, 2), torch.ones(1, 2)
    halves, _ = apply_rope.reference(q, q, cos, sin)
    assert halves.flatten().tolist() == [-3.0, -4.0, 1.0, 2.0, 5.0]
    pairs, _ = apply_rope.reference(q, q, cos, sin, interleaved=True)
    assert pairs.flatten().tolist() == [-2.0, 1.0, -4.0, 3.0, 5.0]
    back, _ = apply_rope_backward.reference(pairs, pairs, cos, sin, interleaved=True)
    assert torch.equal(back, q)


def test_the_backward_turns_back():
    angles = torch.rand(MAX_POSITIONS, 4, dtype=torch.float64)
    q, k, _, _, positions = example(SIZES[0], torch.float64)
    cos, sin = angles.cos().float(), angles.sin().float()
    turned = apply_rope.reference(q, k, cos, sin, positions)
    for x, back in zip((q, k), apply_rope_backward.reference(*turned, cos, sin, positions), strict=True):
        torch.testing.assert_close(back, x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
def test_nan_and_infinity_reach_their_pair_only(interleaved, dtype):
    cos, sin = torch.full((2, 2), 0.5), torch.full((2, 2), 0.25)
    first, second = (0, 1) if interleaved else (0, 2)
    q = torch.ones(2, 1, 6, dtype=dtype)
    q[0, 0, first], q[1, 0, second], q[1, 0, 5] = float("nan"), float("inf"), float("nan")
    out, k_out = apply_rope.reference(q, torch.ones(2, 1, 6, dtype=dtype), cos, sin, interleaved=interleaved)
    assert out[0, 0].isnan().nonzero().flatten().tolist() == [first, second]
    assert out[1, 0, first] == -float("inf")
    assert out[1, 0, second] == float("inf")
    assert out[1, 0].isnan().nonzero().flatten().tolist() == [5]
    assert k_out.isfinite().all()


@pytest.mark.parametrize(
    ("positions", "line"),
    [
        (
            [[0, 1, 11], [-1, 2, 3]],
            "{op}: `positions` expected a position from 0 to below max_positions = 11 at [0, 2], got 11; make the"
            " tables longer, or check the positions",
        ),
        (
            [[0, 1, 2], [3, -4, 5]],
            "{op}: `positions` expected a position from 0 to below max_positions = 11 at [1, 1], got -4; make the"
            " tables longer, or check the positions",
        ),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("op", "name"), [(apply_rope, "apply_rope"), (apply_rope_backward, "apply_rope_backward")])
def test_a_position_outside_of_the_tables(op, name, dtype, positions, line):
    q, k, cos, sin, _ = example(((2,), 3, 2, 1, 4, 2), torch.float32)
    with pytest.raises(InvalidArgument) as raised:
        op.reference(q, k, cos, sin, torch.tensor(positions, dtype=dtype))
    assert str(raised.value).splitlines() == [line.format(op=name)]


@pytest.mark.parametrize("mask", list(itertools.product((False, True), repeat=2)), ids=str)
def test_masked_gradients_are_empty(mask):
    arguments = example(SIZES[0], torch.bfloat16)
    whole = apply_rope_backward.reference(*arguments)
    part = apply_rope_backward.reference(*arguments, output_mask=mask)
    for wanted, full, gradient in zip(mask, whole, part, strict=True):
        assert gradient.dtype == full.dtype
        assert torch.equal(gradient, full) if wanted else gradient.shape == (0,)


@pytest.mark.parametrize("half", [0, 2, 4])
@pytest.mark.parametrize("interleaved", [False, True])
def test_outputs_are_fresh_and_inputs_unchanged(interleaved, half):
    arguments = example(((1,), 1, 1, 1, 8, half), torch.float32)
    before = [a.clone() for a in arguments]
    outputs = (
        *apply_rope.reference(*arguments, interleaved=interleaved),
        *apply_rope_backward.reference(*arguments, interleaved=interleaved),
    )
    memory = [t.untyped_storage().data_ptr() for t in (*arguments[:2], *outputs)]
    assert len(set(memory)) == len(memory)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))


def test_without_positions_it_runs_on_fake_tensors():
    arguments = example(SIZES[0], torch.bfloat16)[:4]
    real = apply_rope.reference(*arguments) + apply_rope_backward.reference(*arguments)
    with FakeTensorMode() as mode:
        arguments = [mode.from_tensor(a) for a in arguments]
        fake = apply_rope.reference(*arguments) + apply_rope_backward.reference(*arguments)
    assert [(f.shape, f.dtype, f.stride()) for f in fake] == [(r.shape, r.dtype, r.stride()) for r in real]


def test_the_in_place_form_takes_the_same_tensors():
    def positional(op):
        parameters = inspect.signature(op).parameters.values()
        return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    assert positional(apply_rope_) == positional(apply_rope)
