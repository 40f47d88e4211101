"""Attention modules: found by their use of transformers' registry, proved by their numbers under another attention.

A module is judged whole: with its own forward and transformers' eager attention under a mask, and with the forward and
the attention that it would get. The keywords that it hands to attention are looked at too: one that opmux does not know
might change what is computed, and a window must be the one that its mask would have had.
"""

import copy
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache

from opmux_transformers import agreement, attention, rope
from opmux_transformers.foreign import whose_forward

RECORDING = "opmux_recording"
"""The attention under which a check runs: opmux's own, which notes what it was called with."""

_seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []


def recording_attention(module: nn.Module, *tensors: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """`opmux_attention`, with its arguments noted."""
    _seen.append((tensors, kwargs))
    return attention.opmux_attention(module, *tensors, **kwargs)


class WatchedCache(DynamicCache):  # type: ignore[misc]
    """transformers' own cache, which notes what it gave."""

    given: tuple[Any, Any] = (None, None)

    def update(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """As transformers' own."""
        self.given = super().update(*args, **kwargs)
        return self.given


@dataclass(frozen=True)
class Attention:
    """What was found of an attention module.

    Attributes:
        reason: Why its attention is left alone; empty where it can be replaced.
        rope: How it rotates, or why that is left alone.
        ops: What computes its attention now.
        paged: Whether it hands attention the keys and values as its cache gave them, so that they may be pages.
    """

    reason: str
    rope: rope.Rope | str
    ops: str = ""
    paged: bool = False


def forward_function(module: nn.Module) -> Any:
    """The function of a module's forward, without decorators."""
    return inspect.unwrap(type(module).forward)


def is_candidate(module: nn.Module) -> bool:
    """Whether a module's forward, or one that its class inherits, asks transformers' registry for its attention."""
    return "config" in vars(module) and any(_asks_registry(forward) for forward in _forwards(module))


def rotates(module: nn.Module) -> bool:
    """Whether a module's forward, or one that its class inherits, calls a rotary function."""
    return any(rope.candidates(forward) for forward in _forwards(module) if hasattr(forward, "__code__"))


def _forwards(module: nn.Module) -> list[Any]:
    """The forwards of a module's class and of those it inherits from, without decorators."""
    return [inspect.unwrap(vars(cls)["forward"]) for cls in type(module).__mro__ if "forward" in vars(cls)]


def _asks_registry(forward: Any) -> bool:
    code, scope = getattr(forward, "__code__", None), getattr(forward, "__globals__", {})
    return code is not None and any(isinstance(scope.get(name), AttentionInterface) for name in code.co_names)


def strangers(modules: dict[str, nn.Module], candidates: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Modules that take masks or cos and sin, and neither are nor hold an attention of the registry."""
    found = {}
    for path, module in modules.items():
        prefix = f"{path}." if path else ""
        if path in candidates or any(other.startswith(prefix) for other in candidates) or not hasattr(module, "config"):
            continue
        try:
            names = inspect.signature(forward_function(module)).parameters
        except (TypeError, ValueError):
            continue
        if {"attention_mask", "position_embeddings"} & set(names):
            found[path] = module
    return found


def window_of(module: nn.Module) -> int | None:
    """The window that the mask of a module's layer would have.

    Raises:
        ValueError: where the layer's mask is of a kind that is no band.
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
    raise ValueError(f"the mask of its layer is {kinds[index]!r}, which is no window")


def find_attention(module: nn.Module, tables: rope.Tables | None, maker: nn.Module | None) -> Attention:
    """Judge an attention module, its rotation first."""
    left = "nothing was found that makes its cos and sin"
    if (foreign := whose_forward(module)) is not None:
        return Attention(foreign, foreign)
    if agreement.on_meta(module):
        meta = "it is on the meta device, where nothing can be checked: load the weights first"
        return Attention(meta, meta)
    if not getattr(module, "is_causal", True):
        return Attention("it attends in both directions: opmux's mask is made for decoders", left)
    function = forward_function(module)
    if not any("attention_mask" in inspect.signature(f).parameters for f in _forwards(module) if _asks_registry(f)):
        return Attention("its forward takes no `attention_mask`: its mask is not the one that opmux makes", left)
    if function is not type(module).forward:
        left = "its forward is decorated, so its globals cannot be replaced"
    found: rope.Rope | str = left
    head_dim = getattr(module, "head_dim", None)
    if tables is not None and maker is not None and function is type(module).forward:
        found = rope.find_rope(function, tables, maker, head_dim or tables.width)
    try:
        window = window_of(module)
    except ValueError as error:
        return Attention(str(error), str(error) if isinstance(found, rope.Rope) else found)
    try:
        with agreement.still(module):
            return _judge(module, found, window, tables, maker)
    except Exception as error:  # a stranger's forward may raise anything
        failed = f"its check on random input failed: {type(error).__name__}: {error}"
        return Attention(failed, failed if isinstance(found, rope.Rope) else found)


def _judge(
    module: nn.Module, found: rope.Rope | str, window: int | None, tables: rope.Tables | None, maker: nn.Module | None
) -> Attention:
    state = agreement.random_state(module)
    like = agreement.like(module)
    seq = 9
    own: Any = vars(module)["config"]
    x = agreement.random(2, seq, own.hidden_size, like=like, dtype=torch.float32)
    given: dict[str, Any] = {"hidden_states": x, "attention_mask": None, **positions(module, seq, x.device)}
    if "past_key_values" in inspect.signature(forward_function(module)).parameters:
        given["past_key_values"] = None
    if tables is not None and maker is not None:
        kind = kind_of(tables, module)
        given["position_embeddings"] = rope.make(maker, kind, seq, torch.float32)
    if (needs := agreement.unknown_needs(module, given)) is not None:
        return Attention(needs, needs if isinstance(found, rope.Rope) else found)
    band = attention.band(seq, seq, {"causal": True, "window": (-1 if window is None else window - 1, -1)}, x.device)
    mask = torch.zeros(2, 1, seq, seq, device=x.device).masked_fill(~band, torch.finfo(torch.float32).min)
    try:
        vars(module)["config"] = with_attention(own, "eager")
        masked = {**given, "attention_mask": mask}
        expected = _first(agreement.call(module, state, **masked))
        if isinstance(found, rope.Rope):
            found = _rotates_alike(module, found, state, masked, expected)
        vars(module)["config"] = with_attention(own, RECORDING)
        if isinstance(found, rope.Rope):
            vars(module)["forward"] = rotating(module, found)
        _seen.clear()
        got = agreement.call(module, state, **given)
        calls = list(_seen)
        paged = _hands_over(module, state, given)
    finally:
        vars(module)["config"] = own
        vars(module).pop("forward", None)
    if len(calls) != 1:
        return Attention(f"its forward asks for attention {len(calls)} times, expected once", found)
    ((_, passed),) = calls
    unknown = sorted(k for k, v in passed.items() if v is not None and k not in attention.TAKEN | attention.PASSED_OVER)
    if unknown:
        return Attention(f"it hands attention `{'`, `'.join(unknown)}`, which opmux.attention does not have", found)
    if passed.get("sliding_window") != window:
        return Attention(f"it names the window {passed.get('sliding_window')}, its mask would have {window}", found)
    extras = [
        word
        for word, key in (("window", "sliding_window"), ("softcap", "softcap"), ("sinks", "s_aux"))
        if passed.get(key) is not None
    ]
    ops = "attention" + (f" with {', '.join(extras)}" if extras else "")
    return Attention(agreement.difference(_first(got), expected) or "", found, ops, paged)


def _first(result: Any) -> Tensor:
    """The hidden states of what an attention module returns."""
    states: Tensor = result[0] if isinstance(result, tuple) else result
    return states


def _rotates_alike(
    module: nn.Module, found: rope.Rope, state: dict[str, Tensor], given: dict[str, Any], expected: Tensor
) -> rope.Rope | str:
    """The rotation, where it does what the module's own does: a forward may call its function in a way of its own."""
    vars(module)["forward"] = rotating(module, found)
    try:
        return agreement.difference(_first(agreement.call(module, state, **given)), expected) or found
    except Exception as error:  # an argument that the replacement does not have
        return f"its check on random input failed: {type(error).__name__}: {error}"
    finally:
        vars(module).pop("forward")


def _hands_over(module: nn.Module, state: dict[str, Tensor], given: dict[str, Any]) -> bool:
    """Whether the keys and values that a cache gives reach attention as they are; some models compute with them."""
    if "past_key_values" not in given:
        return False
    cache = WatchedCache()
    _seen.clear()
    try:
        agreement.call(module, state, **{**given, "past_key_values": cache})
        ((tensors, _),) = _seen
        return tensors[1] is cache.given[0] and tensors[2] is cache.given[1]
    except Exception:  # a stranger's forward may want a cache of its own kind, or call attention in another way
        return False


def positions(module: nn.Module, seq: int, device: torch.device) -> dict[str, Tensor]:
    """The position ids that a module's forward cannot do without, as `rope.make` counts them; else nothing."""
    parameter = inspect.signature(forward_function(module)).parameters.get("position_ids")
    if parameter is None or parameter.default is not parameter.empty:
        return {}
    return {"position_ids": torch.arange(3, 3 + seq, device=device).unsqueeze(0)}


def kind_of(tables: rope.Tables, module: nn.Module) -> tuple[Any, ...]:
    """Which of the tables' kinds a layer uses."""
    if tables.kinds == ((),):
        return ()
    return (module.config.layer_types[module.layer_idx],)  # type: ignore[union-attr, index]


def with_attention(config: Any, name: str) -> Any:
    """A copy of a configuration that names another attention."""
    made = copy.copy(config)
    vars(made)["_attn_implementation_internal"] = name
    return made


def rotating(module: nn.Module, found: rope.Rope) -> Any:
    """The module's own forward, bound to it, with opmux's rotary function among its globals."""
    return rotating_function(module, found).__get__(module)


_made: dict[tuple[Any, rope.Rope], Any] = {}


def rotating_function(module: nn.Module, found: rope.Rope) -> Any:
    """That forward, not bound: one function for all layers, so that torch.compile sees one."""
    function = forward_function(module)
    key = (function, found)
    if key not in _made:
        _made[key] = rope.with_globals(function, **{found.name: rope.function_of(found)})
    return _made[key]
