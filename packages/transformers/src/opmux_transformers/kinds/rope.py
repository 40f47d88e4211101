"""Rotary embedding: the function that an attention's forward calls.

transformers passes each layer the cos and sin of every token, in the model's dtype and usually with every angle twice,
or both as one complex number; and the function rotates by them. It is found among the globals of the attention's
forward by its signature, ``(q, k, cos, sin)``, ``(x, cos, sin)`` or ``(q, k, freqs_cis)``, and verified numerically:
which dims of a head form a pair, and how many of them turn. A module's forward is replaced by one with its own globals,
so that no other model in the process changes.
"""

from collections.abc import Iterable
from typing import Any

from torch import nn

from opmux_transformers import agreement
from opmux_transformers.foreign import mark, whose_forward
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.kinds.rope_check import find_rope
from opmux_transformers.kinds.rotation import Rope, function_of
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
from opmux_transformers.trial import still
from opmux_transformers.undo import Patch


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
        head_dim = getattr(module, "head_dim", None)
        found = find_rope(function, tables, survey.modules[tables.path], head_dim, _called(made, function))
        return found if isinstance(found, str) else _rotates_alike(made, found)

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Give each its own forward with opmux's rotary function."""
        for path, turning in survey.found(self).items():
            module = survey.modules[path]
            patch.set(module, "forward", rotating_function(module, turning).__get__(module), self.name)

    def op(self, finding: Rope) -> str:
        """Always the same one."""
        return "apply_rope"


def _called(made: Probe, function: Any) -> set[str] | None:
    """Which of several rotary functions a forward calls; None if it names one, or if that cannot be seen."""
    named = rotary_functions(function)
    if len(named) < 2:
        return None
    seen: set[str] = set()

    def watched(name: str, own: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.add(name)
            return own(*args, **kwargs)

        return call

    forward = with_globals(function, **{name: watched(name, own) for name, own in named.items()})
    try:
        with still():
            made.under("eager", forward)(**made.masked)
    except Exception:  # a forward may raise anything
        return None
    return seen


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
