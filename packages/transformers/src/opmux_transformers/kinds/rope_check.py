"""Which rotation a rotary function of transformers computes, found on random input."""

import itertools
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from opmux_transformers import agreement
from opmux_transformers.foreign import home_package
from opmux_transformers.kinds.rotation import Layout, Rope, function_of
from opmux_transformers.probe import rotary_form, rotary_functions
from opmux_transformers.tables import Tables, make
from opmux_transformers.trial import still

_SEQ = 5

_PAIRS = ((False, False), (True, False), (False, True))
"""`Rope.interleaved` and `Rope.sorted` of the rotations that are tried."""


def find_rope(
    forward: Any, tables: Tables, module: nn.Module, head_dim: int | None, called: Collection[str] | None = None
) -> Rope | str:
    """Judge the rotary function of an attention's forward on random input.

    Args:
        forward: the forward's function, undecorated.
        tables: the module that makes its cos and sin.
        module: that module itself.
        head_dim: the size of a head; None if it is as many dims as are rotated.
        called: the rotary functions that it calls, of those that it names; None if that is not known.

    Returns:
        How it rotates, or why it is left unchanged.
    """
    named = rotary_functions(forward)
    if called is not None:
        named = {name: function for name, function in named.items() if name in called}
    if len(named) != 1:
        return (
            "its forward calls no function (q, k, cos, sin)"
            if not named
            else "its forward calls several rotary functions"
        )
    ((name, function),) = named.items()
    home = home_package(function)
    if home not in (forward.__globals__.get("__name__", "").partition(".")[0], "transformers"):
        return f"already patched: {name} comes from {home}"
    form = rotary_form(function)
    if (form == "complex") != tables.is_complex:
        return f"{name} takes other tables than the model makes"
    with still():
        angles = [_apart(make(module, kind, _SEQ, torch.float32)) for kind in tables.kinds]
    sized = [layout for layout in _layouts(tables) if head_dim is None or 2 * layout.half <= head_dim]
    layouts = [layout for layout in sized if all(layout.fits(t) for pair in angles for t in pair)]
    if not layouts:
        wide = f"its cos and sin have {tables.width} dims"
        return f"{wide} that are neither equal halves nor equal pairs" if sized else f"{wide}, a head has {head_dim}"
    reasons = []
    for layout, (interleaved, in_order), heads_first in itertools.product(layouts, _PAIRS, (True, False)):
        rope = Rope(name, layout, str(form), interleaved, in_order, heads_first)
        if form != "complex" and not heads_first:
            continue  # an argument of the function says where the heads are
        for width in (rope.rotary_dim,) if in_order else _widths(rope, head_dim):
            reason = _difference(function, rope, angles, width)
            if reason is None:
                return rope
            reasons.append(reason)
    return next((reason for reason in reasons if "differs" in reason), reasons[0])


def _apart(angles: Any) -> tuple[Tensor, Tensor]:
    """Tables as cos and sin."""
    if isinstance(angles, Tensor):
        return angles.real, angles.imag
    cos, sin = angles
    return cos, sin


def _layouts(tables: Tables) -> list[Layout]:
    """How the tables may hold their angles: each twice, in halves or beside itself; or once."""
    once, twice = Layout(tables.width), tables.width // 2
    return [once] if tables.is_complex else [Layout(twice), Layout(twice, pairs=True), once]


def _widths(rope: Rope, head_dim: int | None) -> Iterator[int]:
    """The sizes of a head that the function may get: all of it, or only the dims that turn."""
    if head_dim is not None and head_dim > rope.rotary_dim:
        yield head_dim
    yield rope.rotary_dim


def _difference(function: Any, rope: Rope, angles: list[tuple[Tensor, Tensor]], width: int) -> str | None:
    """How the function and its replacement differ; None if they agree."""
    try:
        with still():
            return next((far for pair in angles if (far := _farthest(function, rope, pair, width)) is not None), None)
    except Exception as error:  # a function may raise anything
        return f"{rope.name} raises {type(error).__name__} on random input"


def _farthest(function: Any, rope: Rope, angles: tuple[Tensor, Tensor], width: int) -> str | None:
    for batch in (1, 2):
        order = (0, 1, 2, 3) if rope.heads_first else (0, 2, 1, 3)
        q, k = (
            agreement.random(batch, heads, _SEQ, width, like=angles[0], dtype=torch.float32, seed=heads).permute(order)
            for heads in (3, 1)
        )
        # different angles for every sequence of a batch, as padding causes
        rows = [torch.cat([torch.roll(table, b, 1) for b in range(batch)]) for table in angles]
        given: list[Tensor] = [torch.complex(*rows)] if rope.form == "complex" else rows
        states = (q,) if rope.form == "lone" else (q, k)
        results = (f(*states, *given) for f in (function_of(rope), function))
        mine, theirs = (result if isinstance(result, tuple) else (result,) for result in results)
        for own, other in zip(mine, theirs, strict=True):
            if (reason := agreement.difference(own.contiguous(), other.contiguous())) is not None:
                return reason
    return None
