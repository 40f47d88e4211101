"""Attention: modules that use transformers' attention registry, verified numerically under opmux's attention.

A module is judged as a whole: with its own forward and transformers' eager attention under a mask, and with the forward
and the attention that it would get. The keywords that it passes to attention are checked too: an unknown one might
change what is computed, and a window must be the one that the layer's mask would have.
"""

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel

from opmux_transformers import agreement, attention, compressed, masks
from opmux_transformers.foreign import whose_class, whose_forward
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.kinds.rope import ROPE, rotating_function
from opmux_transformers.kinds.rotation import Rope
from opmux_transformers.probe import (
    CACHES,
    Probe,
    first,
    forward_function,
    is_candidate,
    key_of,
    probe,
    strangers,
    unregistered,
)
from opmux_transformers.stand_ins import switch
from opmux_transformers.survey import Survey
from opmux_transformers.trial import Trial, still
from opmux_transformers.undo import Patch

RECORDING = "opmux_recording"
"""The name of the attention that a check runs under: opmux's own, with its arguments recorded."""

_UNREGISTERED = "it mixes tokens in its own code, not through transformers' attention registry"

_TORCHS = "it calls torch's scaled_dot_product_attention by name, which cannot be replaced for one model alone"

_ROUNDED = "compressed-tensors rounds its keys and values (kv_cache_scheme), between its projections and its cache"

_BIASES = frozenset({"alibi", "position_bias"})
"""Names of the parameters that take what an attention adds to its scores."""

_seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []


def recording_attention(module: nn.Module, *tensors: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """`opmux_attention`, with its arguments recorded."""
    _seen.append((tensors, kwargs))
    return attention.opmux_attention(module, *tensors, **kwargs)


def register() -> None:
    """Put opmux's attention and mask into transformers' registries; models that do not name them are not affected."""
    AttentionInterface.register(attention.NAME, attention.opmux_attention)
    AttentionMaskInterface.register(attention.NAME, masks.opmux_mask)
    AttentionInterface.register(RECORDING, recording_attention)


class WatchedCache(DynamicCache):  # type: ignore[misc]
    """transformers' own cache, which records what it returned."""

    given: tuple[Any, Any] = (None, None)

    def update(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """As in transformers' own."""
        self.given = super().update(*args, **kwargs)
        return self.given


@dataclass(frozen=True)
class Attention:
    """What was found of an attention module.

    Attributes:
        ops: What computes its attention now.
        paged: Whether it passes keys and values to attention exactly as its cache returned them, so that they may be
            pages.
    """

    ops: str
    paged: bool


class AttentionKind(Kind[Attention]):
    """Attention, through transformers' registry."""

    name = option = "attention"

    def find(self, survey: Survey) -> Iterable[str]:
        """Every attention module: those that use the registry, and the others, which are left unchanged."""
        others = unregistered(survey)
        return [path for path, module in survey.modules.items() if is_candidate(module) or path in others]

    def judge(self, survey: Survey, path: str) -> Attention | str:
        """The layers of one configuration get the same masks, so all of them change their attention or none does."""
        module = survey.modules[path]
        if not is_candidate(module):
            return whose_forward(module) or _own_way(module) + _bias_of(module)
        alone = self._alone(survey, path)
        if isinstance(alone, str):
            return alone
        config = module.config
        cause = survey.once(("cause", id(config)), lambda: self._cause(survey, config))
        return f"it is replaced only together with {cause}" if cause else alone

    def _alone(self, survey: Survey, path: str) -> Attention | str:
        foreign = whose_class(path, survey.modules)
        if compressed.quantizes_attention(survey.modules[path]):
            return _ROUNDED
        return foreign or survey.once(("attention", key_of(survey, path)), lambda: _judge(survey, path))

    def _cause(self, survey: Survey, config: Any) -> str | None:
        """The attention of a configuration that has to be left unchanged; None if all can be replaced."""
        for path, module in strangers(survey).items():
            if module.config is config:
                return f"{path}, which does not use the registry"
        for path, module in survey.modules.items():
            if is_candidate(module) and module.config is config and isinstance(self._alone(survey, path), str):
                return f"{path}, whose attention is left"
        return None

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Name opmux's attention in the configurations, and have models pass a mask even if nothing is padded."""
        for path in _makers_of_masks(survey):
            module = survey.modules[path]
            patch.set(module, "forward", masks.with_own_positions(module).__get__(module), self.name)
        switch(survey, patch, survey.found(self), attention.NAMED, attention.NAME, self.name)

    def undo(self, patch: Patch) -> None:
        """Put back the model's own configurations, with what has been set in their copies since."""
        super().undo(patch)
        for config in patch.configs:
            config.hand_back()
        patch.configs.clear()

    def op(self, finding: Attention) -> str:
        """The op, and the special options of this attention."""
        return finding.ops

    def report(self, survey: Survey, patch: Patch) -> None:
        """The rows, and notes on what they do not show."""
        super().report(survey, patch)
        found, notes = survey.found(self), patch.report.notes
        if not isinstance(survey.model, PreTrainedModel) and not survey.results[self.name]:
            notes.append("no attention of transformers was found in it")
        if getattr(getattr(survey.model, "config", None), "is_encoder_decoder", False):
            notes.append("an encoder and a decoder: attention is replaced only where it is causal")
        if not found:
            return
        own = {c.own._attn_implementation for c in patch.configs if c.made._attn_implementation == attention.NAME}
        if "sdpa" in own and any("softcap" in finding.ops for finding in found.values()):
            notes.append("transformers' sdpa omits or refuses the softcap; opmux's attention applies it")
        rates = [vars(module).get("attention_dropout") for module in survey.modules.values()]
        dropout = max((rate for rate in rates if isinstance(rate, float)), default=0.0)
        if dropout:
            notes.append(f"attention drops {dropout:g} of its probabilities in training: torch computes it there")
        notes.append(
            "padding becomes ragged attention; custom and packed masks, static caches, and padding under torch.compile"
            " are computed by torch under a whole mask; attention gives no probabilities (output_attentions)"
        )


def _own_way(module: nn.Module) -> str:
    """How an attention outside of transformers' registry is computed, as a reason to leave it."""
    named = forward_function(module).__code__.co_names
    return _TORCHS if "scaled_dot_product_attention" in named else _UNREGISTERED


def _bias_of(module: nn.Module) -> str:
    """What an attention adds to its scores, in words; empty if nothing."""
    names = sorted(_BIASES & inspect.signature(forward_function(module)).parameters.keys())
    if not names or not getattr(vars(module).get("config"), "alibi", True):  # Falcon takes one and may not use it
        return ""
    return f"; it adds a bias to its scores (`{names[0]}`), which opmux.attention does not have"


def _judge(survey: Survey, path: str) -> Attention | str:
    made = probe(survey, path)
    if isinstance(made, str):
        return made
    turning = survey.judged(ROPE, path)
    forward = rotating_function(made.module, turning) if isinstance(turning, Rope) else None
    trial = made.under(RECORDING, forward)
    try:
        with still():
            _seen.clear()
            got = trial(**made.given)
            calls = list(_seen)
            paged = _hands_over(trial, made.given)
    except Exception as error:  # a forward may raise anything
        return agreement.raised(made.module, made.given, error)
    return _fault(made, calls, first(got)) or Attention(_ops(calls), paged)


def _fault(made: Probe, calls: list[Any], got: Tensor) -> str | None:
    """Why a module that ran under opmux's attention is left nevertheless; None if it can be replaced."""
    if len(calls) != 1:
        return f"its forward calls attention {len(calls)} times, expected once"
    ((_, passed),) = calls
    unknown = sorted(k for k, v in passed.items() if v is not None and k not in attention.TAKEN | attention.PASSED_OVER)
    if "attention_mask" in unknown:
        return "it makes its own attention mask"
    if unknown:
        return f"it hands attention `{'`, `'.join(unknown)}`, which opmux.attention does not have"
    if passed.get("sliding_window") != made.window:
        return f"it passes the window {passed.get('sliding_window')}, but its mask would have {made.window}"
    return agreement.difference(got, made.expected) or made.trial.written


def _ops(calls: list[Any]) -> str:
    ((_, passed),) = calls
    known = (("window", "sliding_window"), ("softcap", "softcap"), ("sinks", "s_aux"))
    extras = [word for word, key in known if passed.get(key) is not None]
    return "attention" + (f" with {', '.join(extras)}" if extras else "")


def _hands_over(trial: Trial, given: dict[str, Any]) -> bool:
    """Whether the keys and values from a cache reach attention unchanged; some models compute with them first."""
    parameter = next((name for name in CACHES if name in given), None)
    if parameter is None:
        return False
    cache = WatchedCache()
    _seen.clear()
    try:
        trial(**{**given, parameter: cache})
        ((tensors, _),) = _seen
        return tensors[1] is cache.given[0] and tensors[2] is cache.given[1]
    except Exception:  # a forward may want its own kind of cache, or call attention in another way
        return False


def _makers_of_masks(survey: Survey) -> list[str]:
    """The models that make the masks of replaced attentions, not those that only call such a model."""
    modules, attended = survey.modules, survey.found(ATTENTION)
    above = {path for path in modules if any(a.startswith(f"{path}." if path else "") for a in attended)}
    makers = [p for p in above if masks.makes_masks(modules[p]) and whose_forward(modules[p]) is None]
    return [p for p in makers if not any(o != p and o.startswith(f"{p}." if p else "") for o in makers)]


ATTENTION = AttentionKind()
