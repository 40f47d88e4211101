"""Rotary embedding: the function that an attention's forward calls, and the module that makes its cos and sin.

transformers hands each layer cos and sin of every token, in the model's dtype, mostly with both halves equal, and the
function rotates by them. The function is found among the globals of the attention's forward by its signature
``(q, k, cos, sin)`` and proved by its numbers; it is replaced for one module by giving that module a forward with
globals of its own, so that no other model in the process notices. Where every user of a model's tables is replaced, the
tables are halved and widened to float32 once instead of in every layer.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux_transformers import agreement
from opmux_transformers.foreign import home_package, mark, whose_forward

_NAMES = ["cos", "sin"]
"""What the third and fourth parameter of a rotary function are called."""


@dataclass(frozen=True)
class Tables:
    """The module that makes a model's cos and sin.

    Attributes:
        path: Where it is in the model.
        width: The last dim of what it gives.
        kinds: What its forward wants besides ``(x, position_ids)``, one tuple for each kind of layer.
    """

    path: str
    width: int
    kinds: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Rope:
    """How a forward rotates: the global it calls, and how wide cos is.

    Attributes:
        name: The global's name.
        halves: Whether cos and sin hold every angle twice.
        rotary_dim: How many dims of a head are rotated.
    """

    name: str
    halves: bool
    rotary_dim: int


def find_tables(path: str, module: nn.Module, dtype: torch.dtype) -> Tables | None:
    """Try a module as a maker of cos and sin; None where it is none."""
    buffers = {name: b for name, b in module._buffers.items() if b is not None}
    if not any("inv_freq" in name for name in buffers) or any(b.is_meta for b in buffers.values()):
        return None
    if whose_forward_of_tables(module) is not None:
        return None
    kinds: tuple[tuple[Any, ...], ...] = ((),)
    if "layer_type" in inspect.signature(module.forward).parameters:
        kinds = tuple((kind,) for kind in sorted(set(getattr(module.config, "layer_types", ()))))
    try:
        with agreement.still(module):
            made = [make(module, kind, 5, dtype) for kind in kinds]
    except Exception:  # whatever holds inverse frequencies for something else
        return None
    widths = {cos.shape[-1] for cos, _ in made}
    return Tables(path, widths.pop(), kinds) if len(widths) == 1 else None


def make(module: nn.Module, kind: tuple[Any, ...], seq: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The cos and sin that a module gives for positions 3, 4, 5, ..."""
    like = next(b for b in module.buffers())
    x = torch.zeros(1, seq, 8, dtype=dtype, device=like.device)
    cos, sin = module(x, torch.arange(3, 3 + seq, device=like.device).unsqueeze(0), *kind)
    if cos.ndim != 3 or cos.shape[:2] != (1, seq) or cos.shape != sin.shape:
        raise ValueError(f"expected cos and sin (1, {seq}, width), got {list(cos.shape)}")
    return cos, sin


def whose_forward_of_tables(module: nn.Module) -> str | None:
    """As `whose_forward`, for a module whose forward wears torch's own decorators."""
    return whose_forward(module) if "forward" in vars(module) else None


def candidates(forward: Any) -> dict[str, Callable[..., Any]]:
    """The globals of a forward that look like a rotary function by their parameters."""
    found = {}
    for name in forward.__code__.co_names:
        function = forward.__globals__.get(name)
        if not callable(function) or isinstance(function, type):
            continue
        try:
            parameters = list(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            continue
        if parameters[2:4] == _NAMES:
            found[name] = function
    return found


def find_rope(forward: Any, tables: Tables, module: nn.Module, head_dim: int) -> Rope | str:
    """Judge the rotary function of an attention's forward on random input.

    Args:
        forward: the function of the forward, undecorated.
        tables: what makes its cos and sin.
        module: that module itself.
        head_dim: the size of a head.

    Returns:
        How it rotates, or why it is left alone.
    """
    named = candidates(forward)
    if len(named) != 1:
        return "its forward calls no function (q, k, cos, sin)" if not named else "its forward calls several ones"
    ((name, function),) = named.items()
    home = home_package(function)
    if home not in (forward.__globals__.get("__name__", "").partition(".")[0], "transformers"):
        return f"already patched: {name} comes from {home}"
    forms = [Rope(name, True, tables.width), Rope(name, False, 2 * tables.width)]
    reasons = [f"its cos and sin have {tables.width} dims, a head has {head_dim}"]
    for form in forms:
        if form.rotary_dim > head_dim:
            continue
        try:
            with agreement.still(module):
                reason = _judge(function, form, tables, module, head_dim)
        except Exception as error:  # a stranger's function may raise anything
            reason = f"its check on random input failed: {type(error).__name__}: {error}"
        if reason is None:
            return form
        reasons.append(reason)
    return reasons[1] if len(reasons) > 1 else reasons[0]


def _judge(function: Any, rope: Rope, tables: Tables, module: nn.Module, head_dim: int) -> str | None:
    for kind in tables.kinds:
        cos, sin = make(module, kind, 5, torch.float32)
        half = rope.rotary_dim // 2
        if rope.halves and not (
            torch.equal(cos[..., :half], cos[..., half:]) and torch.equal(sin[..., :half], sin[..., half:])
        ):
            return "the two halves of its cos or sin differ"
        for batch in (1, 2):
            q = agreement.random(batch, 3, 5, head_dim, like=cos, dtype=torch.float32, seed=1)
            k = agreement.random(batch, 1, 5, head_dim, like=cos, dtype=torch.float32, seed=2)
            # angles of their own for every sequence of a batch, as padding gives them
            per_row = [torch.cat([torch.roll(table, b, 1) for b in range(batch)]) for table in (cos, sin)]
            expected = function(q, k, *per_row)
            got = function_of(rope)(q, k, *per_row)
            for mine, theirs in zip(got, expected, strict=True):
                if (reason := agreement.difference(mine.contiguous(), theirs.contiguous())) is not None:
                    return reason
    return None


@functools.cache
def function_of(rope: Rope) -> Callable[..., tuple[Tensor, Tensor]]:
    """The rotary function that takes the place of a module's own."""
    half = rope.rotary_dim // 2

    def rotate(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1, **_: Any
    ) -> tuple[Tensor, Tensor]:
        heads_first = unsqueeze_dim == 1
        if heads_first:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        rows = cos.shape[0]
        # (rows * seq, half) float32: one row of the tables for each token, or one for each position of all sequences
        cos, sin = _rows(cos, half), _rows(sin, half)
        batch, seq = q.shape[:2]
        if rows == 1 or batch == 1:
            q, k = opmux.apply_rope(q, k, cos, sin)
        elif seq == 1:
            q, k = opmux.apply_rope(q.squeeze(1), k.squeeze(1), cos, sin)
            q, k = q.unsqueeze(1), k.unsqueeze(1)
        else:
            positions = torch.arange(batch * seq, device=q.device).view(batch, seq)
            q, k = opmux.apply_rope(q, k, cos, sin, positions)
        return (q.transpose(1, 2), k.transpose(1, 2)) if heads_first else (q, k)

    return mark(rotate)


def _rows(table: Tensor, half: int) -> Tensor:
    """Nothing but a view of tables that were halved for all layers: every layer comes by here."""
    if table.shape[-1] != half:
        table = table[..., :half]
    table = table.reshape(-1, half).contiguous()
    return table if table.dtype == torch.float32 else table.to(torch.float32)


def halving(module: nn.Module, rotary_dim: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """The forward of a maker of tables, whose result is halved and widened once for all layers."""
    own = type(module).forward
    half = rotary_dim // 2

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        cos, sin = own(self, *args, **kwargs)
        return cos[..., :half].float().contiguous(), sin[..., :half].float().contiguous()

    return mark(forward)


def with_globals(function: Any, **replaced: Any) -> Any:
    """The same function with some of its globals replaced, for one caller alone."""
    # Without a name of its own: torch.compile looks a named module's globals up in the module, not here.
    scope = {key: value for key, value in function.__globals__.items() if key != "__name__"} | replaced
    made = type(function)(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__module__, made.__qualname__, made.__doc__ = function.__module__, function.__qualname__, function.__doc__
    made.__annotations__ = function.__annotations__
    return mark(made)
