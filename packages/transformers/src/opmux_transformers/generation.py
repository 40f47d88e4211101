"""The KV cache of ``generate``: a patched model takes opmux's pages where it would have taken its ordinary cache."""

import inspect
from collections.abc import Callable
from typing import Any, cast

from torch import nn

from opmux_transformers.attention import NAME
from opmux_transformers.foreign import mark
from opmux_transformers.paged_cache import PagedCache, not_keys_and_values
from opmux_transformers.undo import Patch

METHOD = "_prepare_cache_for_generation"
"""transformers' method that makes the cache of a `generate`; there is no public place for it."""

_ARGUMENTS = ("generation_config", "model_kwargs")


def use_paged_cache(model: nn.Module, patch: Patch, attention: str | None) -> None:
    """Have ``generate`` of this model take a `PagedCache`, or say in the report why it does not.

    Args:
        model: the model.
        patch: its patch, which is added to.
        attention: why the model's attention cannot read pages; None where it can.
    """
    reason = _refusal(model, attention)
    name = type(model).__name__
    if reason is not None:
        patch.report.add("cache", "", reason=f"generate keeps its ordinary cache: {reason}", class_name=name)
        return
    patch.set(model, METHOD, mark(_prepare).__get__(model))
    patch.report.add("cache", "", "paged_attention, write_kv_cache", "PagedCache in generate", name)


def _refusal(model: nn.Module, attention: str | None) -> str | None:
    own = getattr(type(model), METHOD, None)
    if own is None:
        return "the model does not generate"
    if attention is not None:
        return attention
    if getattr(model.config, "is_encoder_decoder", False):
        return "it has an encoder"
    if METHOD in vars(model):
        return "already patched by another library"
    if not cast("Any", model)._supports_default_dynamic_cache():
        return "it has a cache of its own kind"
    if (reason := not_keys_and_values(_text_config(model))) is not None:
        return reason
    if not set(_ARGUMENTS) <= set(inspect.signature(own).parameters):
        return f"{METHOD} of this transformers has other arguments"
    return None


def _text_config(model: Any) -> Any:
    """The configuration of the layers that generate text."""
    return model.config.get_text_config(decoder=True)


def _prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Make the cache, unless the caller brought or named one: then transformers does as it always does."""
    own: Callable[..., Any] = getattr(type(self), METHOD)
    bound = inspect.signature(own).bind(self, *args, **kwargs).arguments
    config, given = bound["generation_config"], bound["model_kwargs"]
    ordinary = (
        given.get("past_key_values") is not None
        or config.use_cache is False
        or config.cache_implementation is not None
        or getattr(config, "is_assistant", False)
        or _text_config(self)._attn_implementation != NAME  # set_attn_implementation has taken it back
    )
    if ordinary:
        return own(self, *args, **kwargs)
    given["past_key_values"] = PagedCache(self)
    return None
