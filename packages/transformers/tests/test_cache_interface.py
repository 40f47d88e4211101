"""`PagedCache` has the whole interface of the installed transformers' caches, and what older ones had that is used."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from samples import CLOSE, GREEDY, ids, logits, pair
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

import opmux_transformers
from opmux_transformers import PagedCache
from opmux_transformers.paged_layer import PagedLayer

BATCH, TOKENS, HEADS, DIM, LAYERS = 2, 6, 2, 16, 2


def states(tokens: int, seed: int) -> torch.Tensor:
    return torch.randn(BATCH, HEADS, tokens, DIM, generator=torch.Generator().manual_seed(seed))


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")} | {"__len__", "__iter__"} & set(dir(cls))


CALLS: dict[str, Callable[[Any], Any]] = {
    "activate_past_recording": lambda c: c.activate_past_recording(),
    "batch_repeat_interleave": lambda c: c.batch_repeat_interleave(2),
    "batch_select_indices": lambda c: c.batch_select_indices(torch.tensor([1])),
    "crop": lambda c: c.crop(-2),
    "early_initialization": lambda c: c.early_initialization(BATCH, HEADS, DIM, torch.float32, torch.device("cpu")),
    "get_conv_state": lambda c: c.get_conv_state(0),
    "get_mask_sizes": lambda c: c.get_mask_sizes(1, 0),
    "get_max_cache_shape": lambda c: c.get_max_cache_shape(),
    "get_max_length": lambda c: c.get_max_length(),
    "get_query_offset": lambda c: c.get_query_offset(),
    "get_recurrent_state": lambda c: c.get_recurrent_state(0),
    "get_seq_length": lambda c: (c.get_seq_length(), c.get_seq_length(1)),
    "has_previous_state": lambda c: c.has_previous_state(),
    "is_recording_past": lambda c: c.is_recording_past(0),
    "reorder_cache": lambda c: c.reorder_cache(torch.tensor([1, 0])),
    "update_conv_state": lambda c: c.update_conv_state(states(1, 5), 0),
    "update_indexer": lambda c: c.update_indexer(states(1, 5), 0),
    "update_recurrent_state": lambda c: c.update_recurrent_state(states(1, 5), 0),
    "is_compileable": lambda c: c.is_compileable,
    "is_croppable": lambda c: c.is_croppable,
    "is_dummy": lambda c: c.is_dummy,
    "is_initialized": lambda c: c.is_initialized,
    "is_linear": lambda c: c.is_linear,
    "is_sliding": lambda c: c.is_sliding,
    "max_cache_len": lambda c: c.max_cache_len,
    "update": lambda c: [c.update(states(1, 3), states(1, 4), at) for at in range(LAYERS)] and None,
    "__len__": len,
    "__iter__": lambda c: [tuple(layer) for layer in c],
}
"""How each method of a cache is called, and each attribute read."""

OTHERWISE: dict[str, Callable[[Any], Any]] = {
    "offload": lambda c: c.offload(0),
    "prefetch": lambda c: c.prefetch(0),
    "reset": lambda c: c.reset(),
    "batch_size": lambda c: c.batch_size,
    "max_batch_size": lambda c: c.max_batch_size,
}
"""Those that a `DynamicCache` answers otherwise: it does not know its batch, only one with offloading offloads, and in
transformers 5.17 one that was reset kept its length."""


@pytest.fixture
def caches() -> tuple[DynamicCache, PagedCache]:
    """transformers' cache and opmux's with the same tokens in them."""
    plain, patched = pair()
    opmux_transformers.patch(patched)
    made = DynamicCache(config=plain.config), PagedCache(patched)
    for cache in made:
        for at in range(LAYERS):
            cache.update(states(TOKENS, 1 + at), states(TOKENS, 11 + at), at)
    return made


def answer(call: Callable[[Any], Any], cache: Any) -> Any:
    try:
        return call(cache)
    except (ValueError, NotImplementedError, AttributeError) as error:
        return type(error)


def same(own: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        return torch.equal(own, theirs)
    if isinstance(theirs, (list, tuple)):
        return len(own) == len(theirs) and all(map(same, own, theirs))
    return own == theirs


def test_every_method_and_attribute_of_a_cache_is_known_here() -> None:
    unknown = (public(Cache) | public(DynamicCache)) - CALLS.keys() - OTHERWISE.keys()
    assert not unknown, (
        f"this transformers' caches have {sorted(unknown)}: see that PagedCache has it, and call it here"
    )


@pytest.mark.parametrize("name", sorted(CALLS))
def test_it_answers_as_transformers_own_cache_does(name: str, caches) -> None:
    theirs, own = caches
    if not hasattr(Cache, name) and not hasattr(DynamicCache, name):  # of other versions of transformers
        assert answer(CALLS[name], own) is not AttributeError or name in NEWER
        return
    assert same(answer(CALLS[name], own), answer(CALLS[name], theirs))
    assert own.get_seq_length() == theirs.get_seq_length()
    if own.get_seq_length():  # what the call left in the cache is the same too
        assert same([tuple(layer) for layer in own], [tuple(layer) for layer in theirs])


NEWER = {"get_conv_state", "get_recurrent_state", "is_dummy", "is_recording_past"}
"""What older versions' caches do not have, and so nothing made for them asks for."""


@pytest.mark.parametrize("name", sorted(OTHERWISE))
def test_what_it_answers_otherwise(name: str, caches) -> None:
    _, own = caches
    expected = {"batch_size": BATCH, "max_batch_size": BATCH}.get(name)
    assert OTHERWISE[name](own) == expected
    assert own.get_seq_length() == (0 if name == "reset" else TOKENS)


@pytest.mark.parametrize("name", sorted(public(DynamicLayer)))
def test_a_layer_has_what_transformers_layers_have(name: str, caches) -> None:
    theirs, own = caches
    assert hasattr(own.layers[0], name)
    function = getattr(DynamicLayer, name)
    if inspect.isfunction(function):
        needed = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
        assert set(needed) <= set(inspect.signature(getattr(PagedLayer, name)).parameters)
    assert vars(theirs.layers[0]).keys() <= {*vars(own.layers[0])}


CHANGING = ("crop", "reorder_cache", "batch_select_indices", "batch_repeat_interleave")


@pytest.mark.parametrize("method", CHANGING)
def test_layers_can_be_asked_one_after_the_other(method: str, caches) -> None:
    theirs, own = caches
    argument = {"crop": (-2,), "batch_repeat_interleave": (2,)}.get(method, (torch.tensor([1, 0]),))
    for cache in (theirs, own):
        for layer in cache.layers:
            getattr(layer, method)(*argument)
    assert own.get_seq_length() == theirs.get_seq_length()
    if own.get_seq_length():
        assert same([tuple(layer) for layer in own], [tuple(layer) for layer in theirs])


def test_a_cache_without_tokens() -> None:
    _, patched = pair()
    opmux_transformers.patch(patched)
    cache = PagedCache(patched)
    assert (cache.batch_size, cache.max_batch_size, cache.get_seq_length()) == (-1, -1, 0)
    assert [tuple(layer) for layer in cache] == [(None, None, None)] * LAYERS
    for act in CHANGING:
        CALLS[act](cache)
    assert cache.get_seq_length() == 0
    assert PagedCache(patched, max_length=32).max_cache_len == 32


def test_an_ordinary_cache_is_made_of_one(caches) -> None:
    theirs, own = caches
    made = DynamicCache(own)
    assert same([tuple(layer)[:2] for layer in made], [tuple(layer)[:2] for layer in theirs])


# PEFT ------------------------------------------------------------------------------------------------------------


def with_a_prefix(of: Any, prefix: Callable[[], DynamicCache]) -> None:
    """As PEFT's prefix tuning: `generate`'s empty cache is exchanged for one with learned keys and values."""
    own = of.prepare_inputs_for_generation

    def prepare(*args: Any, **kwargs: Any) -> Any:
        given = own(*args, **kwargs)
        cache = given.get("past_key_values")
        if cache is not None and cache.get_seq_length() >= given["input_ids"].shape[1]:
            given["input_ids"] = given["input_ids"][:, -1:]
        if (mask := given.get("attention_mask")) is not None:
            given["attention_mask"] = torch.cat((mask.new_ones(len(mask), TOKENS), mask), dim=1)
        if cache is None or (isinstance(cache, Cache) and not cache.get_seq_length()):
            if isinstance(cache, Cache) and not isinstance(cache, DynamicCache):
                assert cache.max_cache_len == -1  # no bound; PEFT hands it to what makes the prefix
            given["past_key_values"] = prefix()
        given.pop("position_ids", None)
        return given

    of.prepare_inputs_for_generation = prepare


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_prefix_tuning_generates_the_same_tokens(name: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)

    def prefix() -> DynamicCache:
        cache = DynamicCache(config=plain.config)
        for at in range(LAYERS):
            cache.update(states(TOKENS, 1 + at), states(TOKENS, 11 + at), at)
        return cache

    for of in (plain, patched):
        with_a_prefix(of, prefix)
    mask = torch.ones_like(ids())
    for padded in (0, 3):
        mask[0, :padded] = 0
        own, theirs = (of.generate(ids(), attention_mask=mask, **GREEDY) for of in (patched, plain))
        assert torch.equal(own, theirs)


class Wrapper(torch.nn.Module):
    """A model that holds another and generates by it, as PEFT's do."""

    def __init__(self, base_model: torch.nn.Module) -> None:
        super().__init__()
        self.base_model, self.config = base_model, base_model.config

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model.generate(*args, **kwargs)


def test_a_wrapped_model_generates_with_pages() -> None:
    plain, patched = pair()
    wrapped = Wrapper(patched)
    report = opmux_transformers.patch(wrapped)
    assert [(row.module, row.status) for row in report.rows if row.kind == "cache"] == [("base_model", "replaced")]
    settings = {"attention_mask": torch.ones_like(ids()), **GREEDY, "return_dict_in_generate": True}
    got = wrapped.generate(ids(), **settings)
    assert isinstance(got.past_key_values, PagedCache)
    assert torch.equal(got.sequences, plain.generate(ids(), **settings).sequences)
    torch.testing.assert_close(logits(wrapped, ids()), logits(plain, ids()), **CLOSE)
    opmux_transformers.unpatch(wrapped)
    assert not hasattr(vars(patched).get("_prepare_cache_for_generation"), "__func__")
