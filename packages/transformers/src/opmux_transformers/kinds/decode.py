"""Decoding by attention modules of the usual wiring: one new token for each sequence, keys and values in pages.

The forward of an attention module handles any cache, mask and number of tokens, with views and transposes that do
nothing for a single new token, and on which the host then spends more time than on the ops. A forward that uses only
the usual wiring,

    q, k, v = projections(x); [q, k = norms(q, k)]; rotate; write; attend; output projection

gets a shorter path for that case, which is first compared with the forward on random input. The forward handles every
other case.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux_transformers import agreement
from opmux_transformers.attention import NAME, NAMED, PASSED_OVER
from opmux_transformers.calls import all_are_watched, call, computes
from opmux_transformers.fed import products
from opmux_transformers.foreign import mark
from opmux_transformers.kinds.attention import ATTENTION
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.kinds.norm import NORM, Norm
from opmux_transformers.kinds.norm import forward_of as norm_forward_of
from opmux_transformers.kinds.rope import ROPE, rotating_function
from opmux_transformers.kinds.rotation import Layout, Rope
from opmux_transformers.paged_cache import PagedCache
from opmux_transformers.paged_states import PageTable
from opmux_transformers.probe import key_of, window_of, with_attention
from opmux_transformers.survey import Survey
from opmux_transformers.tables import make
from opmux_transformers.trial import Trial, still
from opmux_transformers.undo import Patch

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_NORMS = ("q_norm", "k_norm")
_NAMED = frozenset(
    {
        *_PROJECTIONS, *_NORMS, "shape", "head_dim", "view", "transpose", "reshape", "contiguous", "update",
        "layer_idx", "ALL_ATTENTION_FUNCTIONS", "get_interface", "config", "_attn_implementation",
        "eager_attention_forward", "training", "attention_dropout", "scaling", "sliding_window",
    }
)  # fmt: skip
"""The names that such a module's forward uses, its rotary function included: one that uses more may compute more."""

_UNDERSTOOD = PASSED_OVER | {"hidden_states", "position_embeddings", "attention_mask", "past_key_values"}


@dataclass(frozen=True)
class Decoding:
    """How a module of the usual wiring decodes.

    Attributes:
        layout: How its cos and sin hold their angles.
        interleaved: Whether it rotates neighbouring dims.
        norms: Those of q and k, applied to each head; empty if it has none.
        windowed: Whether its forward reads a window from it.
    """

    layout: Layout
    interleaved: bool
    norms: tuple[Norm, ...]
    windowed: bool

    def step(self, module: nn.Module, x: Tensor, cos: Tensor, sin: Tensor, cache: PagedCache) -> Tensor | None:
        """The module's result for ``x``, ``(batch, 1, hidden)``; None if its forward has to compute it."""
        held: Any = module
        layer: Any = cache.layer_of(held.layer_idx)
        batch, new, _ = x.shape
        if new != 1 or not layer.is_initialized:
            return None
        tables = self._tables(cache.table, cos, sin, batch)  # type: ignore[arg-type]  # the layer has one
        if tables is None:
            return None
        children, head_dim = held._modules, held.head_dim
        projections = [children[name] for name in _PROJECTIONS[:3]]
        projected = products(projections, x) or [call(projection, x) for projection in projections]
        q, k, v = (states.view(batch, -1, head_dim) for states in projected)
        if self.norms:
            q, k = call(children["q_norm"], q), call(children["k_norm"], k)
        q, k = opmux.apply_rope(q, k, tables[2], tables[3], interleaved=self.interleaved)
        table = layer.write(k, v, 1)
        window = held.sliding_window if self.windowed else None
        out = opmux.paged_attention(
            q,
            layer.keys,
            layer.values,
            table.cu_seqlens_q,
            table.seq_lens,
            table.block_table,
            None,
            None,
            layer.k_scale,
            layer.v_scale,
            max_seqlen_q=1,
            max_seqlen_k=table.reach,
            scale=held.scaling,
            causal=held.is_causal,
            window=(-1, -1) if window is None else (window - 1, -1),
        )
        result: Tensor = call(children["o_proj"], out.view(batch, 1, -1))
        return result

    def _tables(
        self, table: PageTable, cos: Tensor, sin: Tensor, batch: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """A row for each sequence: views of the halved tables, made once for all layers."""
        known, half = table.angles, self.layout.half
        if known is not None and known[0] is cos and known[1] is sin and known[2].shape == (batch, half):
            return known
        for given in (cos, sin):
            plain = given.dtype == torch.float32 and given.is_contiguous()
            if not plain or given.shape not in ((1, 1, half), (batch, 1, half)):
                return None
        rows = (given.view(-1, half).expand(batch, half) for given in (cos, sin))
        table.angles = (cos, sin, *rows)  # type: ignore[assignment]
        return table.angles


def find_decoding(
    module: nn.Module, rope: Rope, norms: dict[str, Norm], angles: tuple[Tensor, Tensor]
) -> Decoding | None:
    """Judge an attention module whose rotation and attention are replaced.

    Args:
        module: the module.
        rope: how it rotates.
        norms: its child norms that were replaced, by name.
        angles: cos and sin of some positions, float32, as the forward takes them.

    Returns:
        How it decodes, or None if that is left to its forward.
    """
    rotating, window = rotating_function(module, rope), window_of(module)
    named = {*rotating.__code__.co_names} - {rope.name}
    children = {name for name, child in module._modules.items() if child is not None}
    own: Any = vars(module)
    usual = (
        not rope.sorted
        and named <= _NAMED
        and children in ({*_PROJECTIONS}, {*_PROJECTIONS, *_NORMS})
        and children - {*_PROJECTIONS} == norms.keys()
        and all(
            isinstance(own.get(k), kind) for k, kind in (("scaling", float), ("head_dim", int), ("is_causal", bool))
        )
        and (own.get("sliding_window") if "sliding_window" in named else None) == window
    )
    if not usual:
        return None
    both = tuple(norms[name] for name in _NORMS if name in norms)
    found = Decoding(rope.layout, rope.interleaved, both, "sliding_window" in named)
    try:
        with still():
            return found if _agrees(module, found, rotating, angles) else None
    except Exception:  # a forward may raise anything
        return None


def _agrees(module: nn.Module, found: Decoding, rotating: Callable[..., Any], angles: tuple[Tensor, Tensor]) -> bool:
    """Whether a token after others gives the forward's result, with one position for all and with one per sequence."""
    own: Any = vars(module)["config"]
    trial = Trial.random(module)
    like, past = agreement.like(module), angles[0].shape[1] - 1
    x = agreement.random(2, past + 1, own.hidden_size, like=like, dtype=torch.float32)
    halved = [found.layout.once(t).float().contiguous() for t in angles]

    def short(self: nn.Module, hidden_states: Tensor, cos: Tensor, sin: Tensor, cache: PagedCache) -> Tensor | None:
        return found.step(self, hidden_states, cos, sin, cache)

    def by(forward: Callable[..., Any]) -> Trial:
        return trial.where(lambda made: vars(made).update(forward=forward.__get__(made), config=paged))

    def run(rows: int, short_way: bool) -> Any:
        cache = PagedCache(by(rotating).copy())
        cache.shared.first = module.layer_idx  # type: ignore[assignment]  # this layer alone is called
        before, last = ([t[:, at] for t in halved] for at in (slice(0, past), slice(past, past + 1)))
        last = [torch.cat([t * (1 - row / 8) for row in range(rows)]) for t in last]
        given: dict[str, Any] = {"attention_mask": None, "past_key_values": cache}
        by(rotating)(hidden_states=x[:, :past], position_embeddings=tuple(before), **given)
        if short_way:
            return by(short)(x[:, past:], *last, cache)
        result, _ = by(rotating)(hidden_states=x[:, past:], position_embeddings=tuple(last), **given)
        return result

    paged = with_attention(own, NAME)
    return all(agreement.difference(run(rows, True), run(rows, False)) is None for rows in (1, 2))


@functools.cache
def forward_of(function: Callable[..., Any], found: Decoding) -> Callable[..., Any]:
    """The forward of a module of the usual wiring: the short path if it applies, else this function."""
    norm_forwards = [(name, norm_forward_of(spec)) for name, spec in zip(_NORMS, found.norms, strict=False)]

    @functools.wraps(function)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        cache, angles = kwargs.get("past_key_values"), kwargs.get("position_embeddings")
        if (
            cache.__class__ is PagedCache
            and angles.__class__ is tuple
            and not args
            and not self.training
            and kwargs.get("attention_mask") is None
            and not all_are_watched()
            and _UNDERSTOOD.issuperset(kwargs)
            and object.__getattribute__(self.config, NAMED) == NAME
            and all(computes(self._modules[name], own) for name, own in norm_forwards)
        ):
            cos, sin = angles
            result = found.step(self, kwargs["hidden_states"], cos, sin, cache)
            if result is not None:
                return result, None
        return function(self, *args, **kwargs)

    return mark(forward)


class DecodeKind(Kind[Decoding]):
    """The short path for one new token. It has no rows: other attentions decode by the same ops."""

    name = "decode"

    def find(self, survey: Survey) -> Iterable[str]:
        """Attention modules whose rotation and attention are replaced, and which may read pages."""
        turning, attended = survey.found(ROPE), survey.found(ATTENTION)
        return [path for path, finding in attended.items() if path in turning and finding.paged]

    def judge(self, survey: Survey, path: str) -> Decoding | None:
        """Judge one of all modules that differ only in the values of their tensors."""
        module, tables = survey.modules[path], survey.tables_of(path)
        if tables is None or tables.is_complex:
            return None
        norms, turning = survey.children_found(NORM, path), survey.found(ROPE)[path]

        def find() -> Decoding | None:
            angles = make(survey.modules[tables.path], tables.kind_of(module), 7, torch.float32)
            return find_decoding(module, turning, norms, angles)

        return survey.once(("decode", key_of(survey, path), tuple(norms.items())), find)

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Give each a forward with the short path, on top of the one that rotates."""
        for path, decoding in survey.found(self).items():
            module = survey.modules[path]
            own = rotating_function(module, survey.found(ROPE)[path])
            patch.set(module, "forward", forward_of(own, decoding).__get__(module), self.name)

    def report(self, survey: Survey, patch: Patch) -> None:
        """No rows."""


DECODE = DecodeKind()
