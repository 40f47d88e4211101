"""The KV cache of ``generate``: a patched model uses opmux's pages in place of its ordinary cache."""

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from opmux_transformers.attention import NAME
from opmux_transformers.foreign import mark
from opmux_transformers.kinds.attention import ATTENTION
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.paged_cache import PagedCache, not_keys_and_values
from opmux_transformers.probe import is_candidate
from opmux_transformers.survey import Survey
from opmux_transformers.undo import Patch

METHOD = "_prepare_cache_for_generation"
"""transformers' method that makes the cache of a `generate`; there is no public hook for it."""

_ARGUMENTS = ("generation_config", "model_kwargs")


@dataclass(frozen=True)
class Pages:
    """A cache of pages.

    Attributes:
        codes: ``"fp8"`` or ``"int8"``; None stores keys and values as they are.
    """

    codes: Any = None


class CacheKind(Kind[Pages]):
    """The KV cache of ``generate``."""

    name = option = "cache"

    def find(self, survey: Survey) -> Iterable[str]:
        """The outermost modules that generate, since a wrapper may hold one; else the model itself."""
        makers = [path for path, module in survey.modules.items() if hasattr(type(module), METHOD)]
        inner = [p for p in makers if any(p != o and p.startswith(f"{o}." if o else "") for o in makers)]
        return [path for path in makers if path not in inner] or [""]

    def judge(self, survey: Survey, path: str) -> Pages | str:
        """Whether its ``generate`` can use pages."""
        module = survey.modules[path]
        reason = _no_generate(module) or _why_not_paged(survey, module) or _why_not_its_own(module)
        if reason is not None:
            return f"generate keeps its ordinary cache: {reason}"
        named = survey.options[self.name]
        return Pages(named if isinstance(named, str) else None)

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Give each a method that makes a `PagedCache`."""
        for path, pages in survey.found(self).items():
            module = survey.modules[path]
            patch.set(module, METHOD, preparing(pages.codes).__get__(module), self.name)

    def op(self, finding: Pages) -> str:
        """The two ops of a paged cache."""
        return "paged_attention, write_kv_cache"

    def note(self, finding: Pages) -> str:
        """Where the pages come from, and what they hold."""
        return "PagedCache in generate" + (f", of {finding.codes} codes" if finding.codes else "")


def _no_generate(module: nn.Module) -> str | None:
    return None if hasattr(type(module), METHOD) else "the model does not generate"


def _why_not_paged(survey: Survey, module: nn.Module) -> str | None:
    """Which attention of the text model cannot read its keys and values from pages; None if all can."""
    config: Any = getattr(module, "config", None)
    attended = survey.found(ATTENTION)
    if not attended or config is None:
        return "not all of its attention is opmux's"
    text = config.get_text_config(decoder=True)
    users = [path for path, m in survey.modules.items() if is_candidate(m) and m.config is text]
    if not attended.keys() >= set(users):
        return "not all of its attention is opmux's"
    computing = next((path for path in users if not attended[path].paged), None)
    return f"{computing} computes with the keys and values that a cache gives" if computing else None


def _why_not_its_own(module: nn.Module) -> str | None:
    """Why the cache that transformers would make cannot be replaced by pages; None if it can."""
    if getattr(module.config, "is_encoder_decoder", False):
        return "it has an encoder"
    if METHOD in vars(module):
        return "already patched by another library"
    if not cast("Any", module)._supports_default_dynamic_cache():
        return "it has its own kind of cache"
    if (reason := not_keys_and_values(_text_config(module))) is not None:
        return reason
    if not set(_ARGUMENTS) <= set(inspect.signature(getattr(type(module), METHOD)).parameters):
        return f"{METHOD} of this transformers has other arguments"
    return None


def _text_config(model: Any) -> Any:
    """The configuration of the layers that generate text."""
    return model.config.get_text_config(decoder=True)


@functools.cache
def preparing(codes: Any) -> Callable[..., Any]:
    """The method that makes a cache, of these codes; None stores keys and values as they are."""

    def prepare_cache(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Make the cache, unless the caller passed or named one: then transformers proceeds as usual."""
        own: Callable[..., Any] = getattr(type(self), METHOD)
        bound = inspect.signature(own).bind(self, *args, **kwargs).arguments
        config, given = bound["generation_config"], bound["model_kwargs"]
        ordinary = (
            given.get("past_key_values") is not None
            or config.use_cache is False
            or config.cache_implementation is not None
            or getattr(config, "is_assistant", False)
            or _text_config(self)._attn_implementation != NAME  # set_attn_implementation has chosen another attention
        )
        if ordinary:
            return own(self, *args, **kwargs)
        given["past_key_values"] = PagedCache(self, dtype=codes)
        return None

    return mark(prepare_cache)


CACHE = CacheKind()
