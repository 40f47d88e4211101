"""Attention modules that use transformers' registry, and the arguments that a check calls them with.

Rotation and attention of a module are judged by the same calls: with its own forward and transformers' eager attention
under a mask, and with what would replace them.
"""

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from opmux_transformers import agreement, attention
from opmux_transformers.foreign import behind, whose_forward
from opmux_transformers.survey import Survey
from opmux_transformers.tables import make
from opmux_transformers.trial import Trial, still

_SEQ = 9
"""Tokens of a check."""

CACHES = ("past_key_values", "past_key_value", "layer_past")
"""Names of the parameter that takes the cache in an attention's forward."""

SHARED = "shared_kv_states"
"""The parameter that takes the keys and values of other layers, and where a layer may leave its own (Gemma 3n)."""

_OF_OTHERS = frozenset({"encoder_hidden_states", "key_value_states"})
"""Names of the parameters that take the states of another sequence."""

NO_TABLES = "no module was found that makes its cos and sin"

_ROTARY = {"pair": (2, ["cos", "sin"]), "lone": (1, ["cos", "sin"]), "complex": (2, ["freqs_cis"])}
"""What the rotary functions of transformers take: the names of the parameters after the states, and their place."""


def forward_function(module: nn.Module) -> Any:
    """The function of a module's forward, without decorators."""
    return inspect.unwrap(type(module).forward)


def is_candidate(module: nn.Module) -> bool:
    """Whether a module's forward, or one that its class inherits, gets its attention from transformers' registry."""
    return "config" in vars(module) and any(_asks_registry(forward) for forward in _forwards(module))


def rotates(module: nn.Module) -> bool:
    """Whether a module's forward, or one that its class inherits, calls a rotary function."""
    return any(rotary_functions(forward) for forward in _forwards(module) if hasattr(forward, "__code__"))


def _forwards(module: nn.Module) -> list[Any]:
    """The forwards of a module's class and of those it inherits from, without decorators."""
    return [inspect.unwrap(vars(cls)["forward"]) for cls in type(module).__mro__ if "forward" in vars(cls)]


def _asks_registry(forward: Any) -> bool:
    code, scope = getattr(forward, "__code__", None), getattr(forward, "__globals__", {})
    return code is not None and any(isinstance(scope.get(name), AttentionInterface) for name in code.co_names)


def rotary_functions(forward: Any) -> dict[str, Callable[..., Any]]:
    """The globals of a forward that look like a rotary function by their parameters."""
    found = {}
    for name in forward.__code__.co_names:
        function = behind(forward.__globals__.get(name))
        if callable(function) and not isinstance(function, type) and rotary_form(function) is not None:
            found[name] = function
    return found


def rotary_form(function: Callable[..., Any]) -> str | None:
    """Which of the rotary functions of transformers a function looks like, by its parameters."""
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
    return next((form for form, (at, names) in _ROTARY.items() if parameters[at : at + len(names)] == names), None)


def strangers(survey: Survey) -> dict[str, nn.Module]:
    """Modules that take masks or cos and sin, but neither are nor hold an attention of the registry."""
    return survey.once("strangers", lambda: _strangers(survey.modules))


def _strangers(modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    candidates = [path for path, module in modules.items() if is_candidate(module)]
    if not candidates:
        return {}
    takers = _takers(modules, lambda names: bool({"attention_mask", "position_embeddings"} & names))
    return {path: m for path, m in takers.items() if hasattr(m, "config") and not _holds(path, candidates)}


def unregistered(survey: Survey) -> list[str]:
    """Modules that mix tokens without transformers' registry: the innermost modules with weights that take a mask."""
    modules = survey.modules
    candidates = [path for path, module in modules.items() if is_candidate(module)]
    takers = _takers(modules, lambda names: any("mask" in name or name == "alibi" for name in names))
    able = [path for path in takers if _projects(modules[path])]
    inner = [path for path in able if not any(other != path and _holds(path, [other]) for other in able)]
    return [p for p in inner if not _holds(p, candidates) and not isinstance(modules[p], PreTrainedModel)]


def _projects(module: nn.Module) -> bool:
    """Whether a module has several matrices beside those of embeddings: some embeddings take a mask too."""
    tables = {id(p) for m in module.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    return sum(p.ndim > 1 and id(p) not in tables for p in module.parameters()) > 1


def _takers(modules: dict[str, nn.Module], wanted: Callable[[set[str]], bool]) -> dict[str, nn.Module]:
    """The modules whose forward has parameters with these names."""
    found = {}
    for path, module in modules.items():
        try:
            names = set(inspect.signature(forward_function(module)).parameters)
        except (TypeError, ValueError):
            continue
        if wanted(names):
            found[path] = module
    return found


def _only_causal_masks(survey: Survey, path: str) -> bool:
    """Whether the modules around one make causal masks and none in both directions, by the functions they name."""
    above = [m for p, m in survey.modules.items() if path.startswith(f"{p}." if p else "")]
    functions = [f for m in above for cls in type(m).__mro__ for f in vars(cls).values() if inspect.isfunction(f)]
    named = {name for f in functions for name in inspect.unwrap(f).__code__.co_names if name.startswith("create_")}
    return any("causal_mask" in name for name in named) and not any("bidirectional" in name for name in named)


def _holds(path: str, others: list[str]) -> bool:
    """Whether a module is one of these, or holds one."""
    return any(other == path or other.startswith(f"{path}." if path else "") for other in others)


def window_of(module: nn.Module) -> int | None:
    """The window that the mask of a module's layer would have.

    Raises:
        ValueError: if the layer is of another kind, whose mask may not be a band.
    """
    config: Any = module.config
    index = getattr(module, "layer_idx", None)
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if kinds is None or index is None:
        return window
    if kinds[index] == "full_attention":
        return None
    if kinds[index] == "sliding_attention":
        return window
    chunk = getattr(config, "attention_chunk_size", None)
    if kinds[index] == "chunked_attention" and isinstance(chunk, int):
        if chunk < _SEQ:
            raise ValueError(f"its layer attends within chunks of {chunk} tokens, fewer than the {_SEQ} of a check")
        return None
    raise ValueError(f"its layer is of the kind {kinds[index]!r}: only full, sliding and chunked attention are known")


def layer_kind(module: nn.Module) -> Any:
    """The kind of layer that an attention belongs to, if the configuration names kinds."""
    kinds, index = getattr(module.config, "layer_types", None), getattr(module, "layer_idx", None)
    return kinds[index] if kinds is not None and index is not None else None


def positions(module: nn.Module, seq: int, device: torch.device) -> dict[str, Tensor]:
    """The position ids that a module's forward requires, as `rope.make` counts them; empty if it requires none."""
    parameter = inspect.signature(forward_function(module)).parameters.get("position_ids")
    if parameter is None or parameter.default is not parameter.empty:
        return {}
    return {"position_ids": torch.arange(3, 3 + seq, device=device).unsqueeze(0)}


def with_attention(config: Any, name: str) -> Any:
    """A copy of a configuration that names another attention."""
    made = copy.copy(config)
    vars(made)[attention.NAMED] = name
    return made


class SharedStates(dict[Any, tuple[Tensor, Tensor]]):
    """Keys and values of other layers, for a check: random ones for whatever layer is asked for."""

    def __init__(self, module: nn.Module, like: Tensor) -> None:
        super().__init__()
        config: Any = module.config
        shape = (2, config.num_key_value_heads, _SEQ, getattr(module, "head_dim", None) or config.head_dim)
        self._states = tuple(agreement.random(*shape, like=like, dtype=torch.float32, seed=seed) for seed in (3, 4))

    def __missing__(self, layer: Any) -> tuple[Tensor, Tensor]:
        keys, values = self._states
        return keys, values


def first(result: Any) -> Tensor:
    """The hidden states among an attention module's results."""
    states: Tensor = result[0] if isinstance(result, tuple) else result
    return states


@dataclass(frozen=True, eq=False)
class Probe:
    """The arguments that an attention module is called with in a check.

    Attributes:
        module: The module.
        trial: Calls of it with random values.
        given: Keywords for its forward, without a mask.
        mask: The mask ``(2, 1, seq, seq)`` that eager attention needs, added to the scores.
        window: The window that the layer's mask would have, as a module passes it on; None without one.
    """

    module: nn.Module
    trial: Trial
    given: dict[str, Any]
    mask: Tensor
    window: int | None

    def under(self, name: str, forward: Any = None) -> Trial:
        """Calls under another attention, and with another forward if one is given."""
        config = with_attention(vars(self.module)["config"], name)

        def prepare(made: nn.Module) -> None:
            vars(made)["config"] = config
            if forward is not None:
                vars(made)["forward"] = forward.__get__(made)

        return self.trial.where(prepare)

    @property
    def masked(self) -> dict[str, Any]:
        """The keywords, including the mask."""
        return {**self.given, "attention_mask": self.mask}

    @functools.cached_property
    def expected(self) -> Tensor:
        """The module's result with its own forward and transformers' eager attention."""
        return first(self.under("eager")(**self.masked))


def probe(survey: Survey, path: str) -> Probe | str:
    """The arguments of a check of an attention module, or the reason why it cannot or need not be checked."""
    return survey.once(("probe", path), lambda: _probe(survey, path))


def key_of(survey: Survey, path: str) -> tuple[Any, ...]:
    """What two attention modules must have in common for one check to cover both."""
    module = survey.modules[path]
    return agreement.signature_of(module), layer_kind(module), survey.tables_of(path)


def _probe(survey: Survey, path: str) -> Probe | str:
    module = survey.modules[path]
    if (foreign := whose_forward(module)) is not None:
        return foreign
    if agreement.on_meta(module):
        return "it is on the meta device, where nothing can be checked: load the weights first"
    causal = bool(getattr(module, "is_causal", True))
    if not causal and (others := sorted(_OF_OTHERS & inspect.signature(forward_function(module)).parameters.keys())):
        return f"it attends in both directions, and its keys may be those of another sequence (`{'`, `'.join(others)}`)"
    if not causal and _only_causal_masks(survey, path):
        return "it attends in both directions, but the masks of its model are causal"
    if not any("attention_mask" in inspect.signature(f).parameters for f in _forwards(module) if _asks_registry(f)):
        return "its forward takes no `attention_mask`: its mask is not the one that opmux makes"
    try:
        window = window_of(module)
    except ValueError as error:
        return str(error)
    own: Any = vars(module)["config"]
    like = agreement.like(module)
    x = agreement.random(2, _SEQ, own.hidden_size, like=like, dtype=torch.float32)
    given: dict[str, Any] = {"hidden_states": x, "attention_mask": None, **positions(module, _SEQ, x.device)}
    parameters = inspect.signature(forward_function(module)).parameters
    given |= {name: None for name in CACHES if name in parameters}
    if SHARED in parameters:
        given[SHARED] = SharedStates(module, like)
    tables = survey.tables_of(path)
    if tables is not None:
        maker = survey.modules[tables.path]
        given["position_embeddings"] = make(maker, tables.kind_of(module), _SEQ, torch.float32)
    elif (parameter := parameters.get("position_embeddings")) is not None and parameter.default is parameter.empty:
        return NO_TABLES
    if (needs := agreement.unknown_needs(module, given)) is not None:
        return needs
    if window is not None and not causal:
        window += 1  # transformers' masks in both directions count the keys on each side, without the query's own
    left = -1 if window is None else window - 1
    options = {"causal": causal, "window": (left, -1 if causal else left)}
    band = attention.band(_SEQ, _SEQ, options, x.device)
    mask = torch.zeros(2, 1, _SEQ, _SEQ, device=x.device).masked_fill(~band, torch.finfo(torch.float32).min)
    made = Probe(module, Trial.random(module), given, mask, window)
    try:
        with still():
            made.expected  # noqa: B018  # tried here, so that no kind has to
    except Exception as error:  # a forward may raise anything
        return agreement.raised(module, given, error)
    return made
