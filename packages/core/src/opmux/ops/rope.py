"""Rotary position embedding, applied to queries and keys, with its gradient.

`opmux.rope` makes the tables. All arithmetic is in float32 (float64 for float64 tensors), and results are
rounded once.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from opmux.definition import define_op
from opmux.dtypes import Float32, Index, Real, accumulation_dtype
from opmux.errors import invalid
from opmux.ops._variants import in_place

_REQUIRE = (
    ("head_dim > 0", "a head has at least one dim"),
    ("2 * half <= head_dim", "no more than a whole head is rotated"),
    ("positions is not None or seq <= max_positions", "without positions, the tables must cover the sequence"),
)


def _check_positions(op: str, cos: Tensor, positions: Tensor | None) -> None:
    """Raise if a position has no row in the tables; reads positions, and so synchronises."""
    if positions is None:
        return
    max_positions = cos.shape[0]
    outside = (positions < 0) | (positions >= max_positions)
    if not bool(outside.any()):
        return
    index = outside.nonzero()[0].tolist()
    where = ", ".join(str(i) for i in index)
    expected = f"a position from 0 to below max_positions = {max_positions} at [{where}]"
    remedy = "make the tables longer, or check the positions"
    raise invalid(op, "positions", expected, str(int(positions[tuple(index)])), remedy)


def _positions_check(op: str) -> Callable[..., None]:
    """Make the check_data of one of the ops here, which takes all its arguments by name."""

    def check(*, cos: Tensor, positions: Tensor | None = None, **_: object) -> None:
        _check_positions(op, cos, positions)

    return check


def _angles(cos: Tensor, sin: Tensor, positions: Tensor | None, seq: int) -> tuple[Tensor, Tensor]:
    """Return the rows of the tables for each position, with a dim of one for the heads."""
    if positions is None:
        return cos[:seq].unsqueeze(-2), sin[:seq].unsqueeze(-2)
    rows = positions.to(torch.int64)
    return cos[rows].unsqueeze(-2), sin[rows].unsqueeze(-2)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the pairs in the first dims of each head by the given angles; the other dims pass through."""
    acc = accumulation_dtype(x.dtype)
    rotary_dim = 2 * cos.shape[-1]
    cos, sin = cos.to(acc), sin.to(acc)
    rotary, rest = x[..., :rotary_dim].to(acc), x[..., rotary_dim:]
    if interleaved:
        first, second = rotary[..., 0::2], rotary[..., 1::2]
    else:
        first, second = rotary.chunk(2, dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    rotary = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    return torch.cat((rotary.to(x.dtype), rest), dim=-1).contiguous()


@define_op(
    outputs=("q_out", "k_out"),
    same_dtype=(("q", "k"),),
    require=_REQUIRE,
    gradient="apply_rope_backward",
    check_data=_positions_check("apply_rope"),
    capturable=False,
)
def apply_rope(
    q: Real[Tensor, "*batch seq heads head_dim"],
    k: Real[Tensor, "*batch seq kv_heads head_dim"],
    cos: Float32[Tensor, "max_positions half"],
    sin: Float32[Tensor, "max_positions half"],
    positions: Index[Tensor, "*batch seq"] | None = None,
    *,
    interleaved: bool = False,
) -> tuple[Real[Tensor, "*batch seq heads head_dim"], Real[Tensor, "*batch seq kv_heads head_dim"]]:
    """Rotate queries and keys by the angles of their positions.

    The first ``rotary_dim = 2 * half`` dims of each head form ``half`` pairs ``(a, b)``; the others pass
    through. At position p, pair i becomes ``(a * cos[p, i] - b * sin[p, i], b * cos[p, i] + a * sin[p, i])``,
    computed in float32 (in float64 for float64) and rounded once. Pair i is the dims ``(i, half + i)`` as in
    Llama and GPT-NeoX, or, interleaved, ``(2 * i, 2 * i + 1)`` as in GPT-J.

    No gradient flows to cos and sin. The reference reads the positions, and so synchronises.

    Args:
        q: The queries, ``(*batch, seq, heads, head_dim)``; ragged, ``(tokens, heads, head_dim)``.
        k: The keys, ``(*batch, seq, kv_heads, head_dim)``, in q's dtype.
        cos: The cosines of the angles, ``(max_positions, half)`` float32, times the attention factor, if any.
        sin: The sines of the angles, ``(max_positions, half)`` float32, times the attention factor, if any.
        positions: The position of each token, ``(*batch, seq)`` int32 or int64, from 0 to below
            max_positions; None means 0, 1, 2, ... along seq, the dim before heads.
        interleaved: Whether a pair is two neighbouring dims rather than one dim of each half.

    Returns:
        q_out: The rotated queries, ``(*batch, seq, heads, head_dim)``, in q's dtype.
        k_out: The rotated keys, ``(*batch, seq, kv_heads, head_dim)``, in q's dtype.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, the tables are wider than a head,
            the tables are shorter than seq without positions, or a position lies outside the tables.

    Source:
        Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
        https://arxiv.org/abs/2104.09864.
    """
    _check_positions("apply_rope", cos, positions)
    cos, sin = _angles(cos, sin, positions, q.shape[-3])
    return _rotated(q, cos, sin, interleaved), _rotated(k, cos, sin, interleaved)


apply_rope_ = in_place(apply_rope, q="q_out", k="k_out", check_data=_positions_check("apply_rope_"))


@define_op(
    outputs=("grad_q", "grad_k"),
    same_dtype=(("grad_q_out", "grad_k_out"),),
    require=_REQUIRE,
    check_data=_positions_check("apply_rope_backward"),
    capturable=False,
)
def apply_rope_backward(
    grad_q_out: Real[Tensor, "*batch seq heads head_dim"],
    grad_k_out: Real[Tensor, "*batch seq kv_heads head_dim"],
    cos: Float32[Tensor, "max_positions half"],
    sin: Float32[Tensor, "max_positions half"],
    positions: Index[Tensor, "*batch seq"] | None = None,
    *,
    interleaved: bool = False,
    output_mask: tuple[bool, ...] = (True, True),
) -> tuple[Real[Tensor, "*batch seq heads head_dim"], Real[Tensor, "*batch seq kv_heads head_dim"]]:
    """Compute the gradients of `apply_rope`: the rotation by the opposite angles.

    The gradient ``(a, b)`` of a rotated pair i at position p becomes
    ``(a * cos[p, i] + b * sin[p, i], b * cos[p, i] - a * sin[p, i])``, computed in float32 (in float64 for
    float64) and rounded once; the dims that are not rotated pass through.

    Args:
        grad_q_out: The gradient of the rotated queries, ``(*batch, seq, heads, head_dim)``.
        grad_k_out: The gradient of the rotated keys, ``(*batch, seq, kv_heads, head_dim)``, in the same
            dtype.
        cos: As given to `apply_rope`.
        sin: As given to `apply_rope`.
        positions: As given to `apply_rope`.
        interleaved: As given to `apply_rope`.
        output_mask: Which of (grad_q, grad_k) are wanted.

    Returns:
        grad_q: ``(*batch, seq, heads, head_dim)`` in grad_q_out's dtype; ``(0,)`` where masked out.
        grad_k: ``(*batch, seq, kv_heads, head_dim)`` in grad_q_out's dtype; ``(0,)`` where masked out.

    Raises:
        InvalidArgument: As `apply_rope` does.

    Source:
        The chain rule on `apply_rope`: the transpose of a rotation turns the other way.
    """
    _check_positions("apply_rope_backward", cos, positions)
    cos, sin = _angles(cos, sin, positions, grad_q_out.shape[-3])
    grad_q, grad_k = grad_q_out.new_empty(0), grad_k_out.new_empty(0)
    if output_mask[0]:
        grad_q = _rotated(grad_q_out, cos, -sin, interleaved)
    if output_mask[1]:
        grad_k = _rotated(grad_k_out, cos, -sin, interleaved)
    return grad_q, grad_k
