"""What the core calls for rotary embedding."""

from functools import lru_cache

import torch
from torch import Tensor

from opmux_cutile.launching import MOST_BYTES, TileKernel, aligned, launch
from opmux_cutile.parameters import ALIGNMENT_BYTES, Array, Constant, Parameter, Scalar
from opmux_cutile.replaying import kept
from opmux_cutile.rope.configs import RopeConfig
from opmux_cutile.tiles import power_of_two

MODULE = "opmux_cutile.rope.kernels"
LEAST = 512
"""Elements of a tile in place."""


@kept
def apply_rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, *, interleaved: bool, config: RopeConfig
) -> tuple[Tensor, Tensor]:
    """The op `apply_rope`."""
    results = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k)]
    _run("apply_rope", [q, k], results, cos, sin, positions, 1.0, interleaved, config)
    return results[0], results[1]


@kept
def apply_rope_(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, *, interleaved: bool, config: RopeConfig
) -> None:
    """The op `apply_rope_`."""
    _run("apply_rope_", [q, k], [q, k], cos, sin, positions, 1.0, interleaved, config)


def apply_rope_backward(
    grad_q_out: Tensor, grad_k_out: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, *,
    interleaved: bool, output_mask: tuple[bool, ...], config: RopeConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `apply_rope_backward`: the rotation by the opposite angles."""
    given = (grad_q_out, grad_k_out)
    results = [
        torch.empty_like(x, memory_format=torch.contiguous_format) if wanted else x.new_empty(0)
        for x, wanted in zip(given, output_mask, strict=True)
    ]
    which = [place for place, wanted in enumerate(output_mask) if wanted]
    if which:
        wanted, made = [given[place] for place in which], [results[place] for place in which]
        _run("apply_rope_backward", wanted, made, cos, sin, positions, -1.0, interleaved, config)
    return results[0], results[1]


def _run(
    op: str, given: list[Tensor], results: list[Tensor], cos: Tensor, sin: Tensor, positions: Tensor | None,
    sign: float, interleaved: bool, config: RopeConfig,
) -> None:  # fmt: skip
    """Rotate one tensor of heads, or two, of the same tokens."""
    in_place = op.endswith("_")
    results = [y for x, y in zip(given, results, strict=True) if x.numel()]
    given = [x for x in given if x.numel()]
    if not given:
        return
    seq, _, head_dim = given[0].shape[-3:]
    tokens = given[0].numel() // (head_dim * given[0].shape[-2])
    xs, ys = [_within(_of_tokens(x)) for x in given], [_of_tokens(y) for y in results]
    half = cos.shape[1]
    pairs = power_of_two(half)
    cos, sin = _rows_apart(cos), _rows_apart(sin)
    fits = half % 8 == 0 and head_dim % 8 == 0 and aligned(*xs, *ys, cos, sin)
    rest = 0 if in_place or head_dim == 2 * half else power_of_two(head_dim - 2 * half)
    numbers = max(pairs, rest // 2)
    heads, block = config.heads(max(x.shape[1] for x in xs), numbers), config.tokens
    if in_place:
        # No element may be held by two threads: a tile has four for each of 128.
        block = max(block, LEAST // (heads * pairs))
    elif rest:
        # What is only copied fits the registers too.
        block = min(block, max(1, config.elements // (heads * numbers)))
    kernel = _kernel(
        op, config, block, str(xs[0].dtype).removeprefix("torch."), heads, pairs, half if fits else None,
        head_dim if fits else None, rest, interleaved, len(xs) > 1,
        None if positions is None else str(positions.dtype).removeprefix("torch."),
    )  # fmt: skip
    where = sin.as_strided((1,), (1,)) if positions is None else positions.reshape(-1)
    most = max(MOST_BYTES // max(x.stride(0) * x.element_size() for x in (*xs, *ys)), 1)
    most = most if tokens <= most else max(most // seq, 1) * seq
    for first in range(0, tokens, most):
        x, y = [t[first : first + most] for t in xs], [t[first : first + most] for t in ys]
        places = where if positions is None else where[first : first + most]
        blocks = -(-len(x[0]) // block)
        launch(kernel, (blocks, 1, 1), x[0], x[-1], cos, sin, places, y[0], y[-1], seq, sign)


def _of_tokens(x: Tensor) -> Tensor:
    """As ``(tokens, heads, head_dim)``; a dim of one element gets the stride of a packed one."""
    x = x.reshape(-1, *x.shape[-2:])
    _, heads, dim = x.shape
    steps = (x.stride(0) if len(x) > 1 else heads * dim, x.stride(1) if heads > 1 else dim, 1)
    return x if x.stride() == steps else x.as_strided(x.shape, steps)


def _within(x: Tensor) -> Tensor:
    """Tokens that a launch can address one by one; packed where they, or their heads, are too far apart."""
    return x if max(x.stride()) * x.element_size() <= MOST_BYTES else x.contiguous()


def _rows_apart(table: Tensor) -> Tensor:
    """A table that a launch can address; packed where its rows overlap or are too far apart."""
    far = table.stride(0) * len(table) * table.element_size() > MOST_BYTES
    return table.contiguous() if far or table.stride(0) < table.shape[1] else table


@lru_cache(maxsize=1024)
def _kernel(
    op: str, config: RopeConfig, tokens: int, dtype: str, heads: int, pairs: int, half: int | None,
    head_dim: int | None, rest: int, interleaved: bool, both: bool, positions: str | None,
) -> TileKernel:  # fmt: skip
    """The kernel for heads of a size, which is compiled in where whole vectors are read."""
    fits = head_dim is not None
    # As many numbers of a head in a thread as of the tables, of which 16 bytes are 4.
    vector = min(4 * getattr(torch, dtype).itemsize, ALIGNMENT_BYTES)
    matrices = [
        Array(dtype, (None, None, head_dim), (None, None, 1), fits, (name,) if op.endswith("_") else (), vector)
        for name in ("q", "k")
    ]
    table = Array("float32", (None, half), (None, 1), fits)
    places = Array(positions or "int32", (None,), (1,), False)
    sizes = (tokens, heads, heads, pairs, rest, interleaved, positions is not None, both)
    parameters: tuple[Parameter, ...] = (
        *matrices, table, table, places, *matrices, Scalar("int32"), Scalar("float32"), *map(Constant, sizes),
    )  # fmt: skip
    return TileKernel(op, MODULE, "rope", parameters, config.hints)
