"""Rotary embedding: the function that an attention's forward calls.

transformers passes each layer the cos and sin of every token, in the model's dtype and usually with two equal halves,
and the function rotates by them. It is found among the globals of the attention's forward by its signature ``(q, k,
cos, sin)``, and verified numerically. A module's forward is replaced by one with its own globals, so that no other
model in the process changes.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux_transformers import agreement
from opmux_transformers.foreign import home_package, mark, whose_forward
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.probe import (
    NO_TABLES,
    Probe,
    first,
    forward_function,
    is_candidate,
    key_of,
    probe,
    rotary_functions,
    rotates,
)
from opmux_transformers.survey import Survey
from opmux_transformers.tables import Tables, make
from opmux_transformers.trial import still
from opmux_transformers.undo import Patch


@dataclass(frozen=True)
class Rope:
    """How a forward rotates: the global it calls, and how wide cos is.

    Attributes:
        name: The global's name.
        halves: Whether cos and sin hold every angle twice.
        rotary_dim: The number of dims of a head that are rotated.
    """

    name: str
    halves: bool
    rotary_dim: int


def find_rope(forward: Any, tables: Tables, module: nn.Module, head_dim: int) -> Rope | str:
    """Judge the rotary function of an attention's forward on random input.

    Args:
        forward: the forward's function, undecorated.
        tables: the module that makes its cos and sin.
        module: that module itself.
        head_dim: the size of a head.

    Returns:
        How it rotates, or why it is left unchanged.
    """
    named = rotary_functions(forward)
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
    forms = [Rope(name, True, tables.width), Rope(name, False, 2 * tables.width)]
    reasons = [f"its cos and sin have {tables.width} dims, a head has {head_dim}"]
    for form in forms:
        if form.rotary_dim > head_dim:
            continue
        try:
            with still():
                reason = _judge(function, form, tables, module, head_dim)
        except Exception as error:  # a function may raise anything
            reason = f"{name} raises {type(error).__name__} on random input"
            if form.rotary_dim < head_dim:
                wide = f"its cos and sin have {tables.width} dims, a head has {head_dim}"
                reason = f"{name} does not take a whole head: {wide}"
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
            # different angles for every sequence of a batch, as padding causes
            per_row = [torch.cat([torch.roll(table, b, 1) for b in range(batch)]) for table in (cos, sin)]
            expected = function(q, k, *per_row)
            got = function_of(rope)(q, k, *per_row)
            for mine, theirs in zip(got, expected, strict=True):
                if (reason := agreement.difference(mine.contiguous(), theirs.contiguous())) is not None:
                    return reason
    return None


@functools.cache
def function_of(rope: Rope) -> Callable[..., tuple[Tensor, Tensor]]:
    """The rotary function that replaces a module's own."""
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
    """The tables as rows; only a view if they were halved for all layers, since every layer calls this."""
    if table.shape[-1] != half:
        table = table[..., :half]
    table = table.reshape(-1, half).contiguous()
    return table if table.dtype == torch.float32 else table.to(torch.float32)


def with_globals(function: Any, **replaced: Any) -> Any:
    """A copy of a function with some of its globals replaced, for one caller only."""
    # Without a name of its own: torch.compile looks a named module's globals up in the module, not here.
    scope = {key: value for key, value in function.__globals__.items() if key != "__name__"} | replaced
    made = type(function)(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__module__, made.__qualname__, made.__doc__ = function.__module__, function.__qualname__, function.__doc__
    made.__annotations__ = function.__annotations__
    return mark(made)


_made: dict[tuple[Any, Rope], Any] = {}


def rotating_function(module: nn.Module, found: Rope) -> Any:
    """A module's own forward, unbound, with opmux's rotary function among its globals.

    All layers share one function, so that torch.compile sees one.
    """
    function = forward_function(module)
    key = (function, found)
    if key not in _made:
        _made[key] = with_globals(function, **{found.name: function_of(found)})
    return _made[key]


class RopeKind(Kind[Rope]):
    """Rotary embeddings of queries and keys."""

    name = option = "rope"

    def find(self, survey: Survey) -> Iterable[str]:
        """Attention modules whose forward calls a rotary function."""
        return (path for path, module in survey.modules.items() if is_candidate(module) and rotates(module))

    def judge(self, survey: Survey, path: str) -> Rope | str:
        """Judge first the function alone, then the module with it."""
        return survey.once(("rope", key_of(survey, path)), lambda: self._judge(survey, path))

    def _judge(self, survey: Survey, path: str) -> Rope | str:
        module, tables, made = survey.modules[path], survey.tables_of(path), probe(survey, path)
        if isinstance(made, str):
            return made if tables is not None or agreement.on_meta(module) or whose_forward(module) else NO_TABLES
        function = forward_function(module)
        if function is not type(module).forward:
            return "its forward is decorated, so its globals cannot be replaced"
        if tables is None:
            return NO_TABLES
        head_dim = getattr(module, "head_dim", None) or tables.width
        found = find_rope(function, tables, survey.modules[tables.path], head_dim)
        return found if isinstance(found, str) else _rotates_alike(made, found)

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Give each its own forward with opmux's rotary function."""
        for path, turning in survey.found(self).items():
            module = survey.modules[path]
            patch.set(module, "forward", rotating_function(module, turning).__get__(module), self.name)

    def op(self, finding: Rope) -> str:
        """Always the same one."""
        return "apply_rope"


def _rotates_alike(made: Probe, found: Rope) -> Rope | str:
    """The rotation, if it does what the module's own does: a forward may call its function in an unusual way."""
    forward = rotating_function(made.module, found)
    try:
        with still():
            got = first(made.under("eager", forward)(**made.masked))
    except TypeError:
        return f"its forward calls {found.name} with arguments that opmux.apply_rope does not take"
    except Exception as error:  # a forward may raise anything
        return agreement.raised(made.module, made.given, error)
    return agreement.difference(got, made.expected) or found


ROPE = RopeKind()
