"""The paged cache: through `generate`, by hand, grown, cropped, reordered, compiled."""

import copy
import gc
import weakref

import pytest
import torch
import transformers
from samples import CLOSE, GREEDY, NAMES, generated, ids, logits, model, pair
from transformers import DynamicCache

import opmux
import opmux_transformers
from opmux.errors import InvalidArgument
from opmux_transformers import PagedCache, paged_cache, paged_layer
from opmux_transformers.configs import small_config


@pytest.mark.parametrize("name", NAMES)
def test_generate_takes_pages_by_itself(name: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    with opmux.trace() as trace:
        got = generated(patched, ids(), return_dict_in_generate=True)
    assert isinstance(got.past_key_values, PagedCache)
    ran = {row.op: row.calls for row in trace.rows}
    assert ran["paged_attention"] == ran["write_kv_cache"] == 2 * GREEDY["max_new_tokens"]
    assert not {"attention", "attention_varlen"} & ran.keys()
    assert torch.equal(got.sequences, generated(plain, ids()))


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 3},
        {"num_beams": 3, "num_return_sequences": 2},
        {"cache_implementation": "static", "disable_compile": True},
        {"cache_implementation": "dynamic"},
        {"use_cache": False},
        {"prompt_lookup_num_tokens": 2},
    ],
    ids=lambda settings: "-".join(map(str, settings)),
)
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_other_ways_to_generate_give_the_same_tokens(name: str, settings: dict) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    batch = 1 if "prompt_lookup_num_tokens" in settings else 2
    assert torch.equal(generated(patched, ids(12, batch), **settings), generated(plain, ids(12, batch), **settings))


def test_it_grows_when_it_is_full(monkeypatch) -> None:
    monkeypatch.setattr(paged_layer, "_FIRST_ROOM", 4)
    plain, patched = pair()
    opmux_transformers.patch(patched)
    cache = PagedCache(patched)
    length = {"max_new_tokens": 60, "min_new_tokens": 60}
    got = generated(patched, ids(), past_key_values=cache, **length)
    assert torch.equal(got, generated(plain, ids(), **length))
    assert cache.table is not None
    assert cache.get_seq_length() == 71
    assert cache.table.capacity >= 71
    assert cache.get_max_length() == -1


def test_a_cache_that_is_dropped_gives_its_memory_back_at_once() -> None:
    """Without the collector of cycles, which does not know how much memory of a device hangs on one."""
    _, patched = pair()
    opmux_transformers.patch(patched)

    def use() -> list[weakref.ref]:
        cache = PagedCache(patched)
        logits(patched, ids(8), past_key_values=cache)
        logits(patched, ids(1), past_key_values=cache)
        cache.batch_repeat_interleave(2)
        return [weakref.ref(held) for held in (cache, cache.shared, *cache.layers, cache.layers[0].keys)]

    gc.collect()
    gc.disable()
    try:
        assert [held() for held in use() if held() is not None] == []
    finally:
        gc.enable()


def test_growth_that_fails_for_want_of_memory_can_be_tried_again(monkeypatch) -> None:
    monkeypatch.setattr(paged_layer, "_FIRST_ROOM", 4)
    plain, patched = pair()
    opmux_transformers.patch(patched)
    tokens, cache = ids(40), PagedCache(patched)
    logits(patched, tokens[:, :8], past_key_values=cache)
    move = paged_layer.PagedLayer.move

    def failing(*_: object) -> None:
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(paged_layer.PagedLayer, "move", failing)
    with pytest.raises(torch.OutOfMemoryError):
        logits(patched, tokens[:, 8:30], past_key_values=cache)
    assert cache.get_seq_length() == 8
    monkeypatch.setattr(paged_layer.PagedLayer, "move", move)
    got = logits(patched, tokens[:, 8:30], past_key_values=cache)
    torch.testing.assert_close(got, logits(plain, tokens[:, :30])[:, 8:], **CLOSE)


def test_a_copy_of_a_cache_goes_on_by_itself(monkeypatch) -> None:
    monkeypatch.setattr(paged_layer, "_FIRST_ROOM", 4)
    plain, patched = pair()
    opmux_transformers.patch(patched)
    tokens = ids(40)
    cache = PagedCache(patched, page_size=16)
    logits(patched, tokens[:, :8], past_key_values=cache)
    other = copy.deepcopy(cache)
    for one, rows in ((cache, tokens), (other, tokens.flip(0))):
        one.batch_select_indices(torch.tensor([0, 1] if one is cache else [1, 0]))
        got = [logits(patched, rows[:, at : at + 8], past_key_values=one) for at in range(8, 40, 8)]
        torch.testing.assert_close(torch.cat(got, 1), logits(plain, rows)[:, 8:], **CLOSE)
        assert one.get_seq_length() == 40
        assert {layer.table is one.table for layer in one.layers} == {True}


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_chunks_of_a_prompt_and_steps_by_hand(page_size: int) -> None:
    plain, patched = pair("gemma2")
    opmux_transformers.patch(patched)
    cache = PagedCache(patched, max_length=64, page_size=page_size)
    tokens = ids(20)
    expected = logits(plain, tokens)
    parts = [logits(patched, part, past_key_values=cache) for part in tokens.split([9, 1, 6, 1, 3], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), expected, **CLOSE)
    assert cache.get_seq_length() == 20
    assert cache.get_max_length() == 64

    cache.crop(-5)
    torch.testing.assert_close(logits(patched, tokens[:, 15:], past_key_values=cache), expected[:, 15:], **CLOSE)
    cache.crop(10)
    assert cache.get_seq_length() == 10
    cache.reset()
    torch.testing.assert_close(logits(patched, tokens, past_key_values=cache), expected, **CLOSE)


def test_sequences_can_be_picked_and_repeated() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    tokens = ids(12, 3)
    next_ones = torch.tensor([[5], [6], [7], [8]])
    for act, rows in (
        (lambda c: c.reorder_cache(torch.tensor([2, 0, 0])), [2, 0, 0]),
        (lambda c: c.batch_select_indices(torch.tensor([True, False, True])), [0, 2]),
        (lambda c: c.batch_repeat_interleave(1), [0, 1, 2]),
        (lambda c: (c.batch_select_indices(torch.tensor([1, 2])), c.batch_repeat_interleave(2)), [1, 1, 2, 2]),
    ):
        cache, ordinary = PagedCache(patched), DynamicCache(config=plain.config)
        logits(patched, tokens, past_key_values=cache)
        act(cache)
        logits(plain, tokens[rows], past_key_values=ordinary)
        step = next_ones[: len(rows)]
        got, expected = logits(patched, step, past_key_values=cache), logits(plain, step, past_key_values=ordinary)
        torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("mask", ["left", "right", "holes"])
def test_padded_steps_by_hand(mask: str) -> None:
    plain, patched = pair("mistral")
    opmux_transformers.patch(patched)
    tokens = ids(12)
    kept = torch.ones(2, 13, dtype=torch.long)
    kept[0, {"left": [0, 1, 2], "right": [9, 10, 11], "holes": [2, 5, 6]}[mask]] = 0
    cache, ordinary = PagedCache(patched), DynamicCache(config=plain.config)
    for of, past in ((patched, cache), (plain, ordinary)):
        logits(of, tokens, attention_mask=kept[:, :12], past_key_values=past)
    got, expected = (
        logits(of, tokens[:, :1], attention_mask=kept, past_key_values=past)
        for of, past in ((patched, cache), (plain, ordinary))
    )
    if mask == "right":  # the newest token of the first row follows padding: no row of one stretch, its mask has a hole
        assert cache.get_seq_length() == 13
    torch.testing.assert_close(got, expected, **CLOSE)


def test_compiled_steps_are_one_graph_that_is_not_compiled_anew() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    tokens = ids(20)
    expected = logits(plain, tokens)
    cache = PagedCache(patched, max_length=64)
    torch.testing.assert_close(logits(patched, tokens[:, :14], past_key_values=cache), expected[:, :14], **CLOSE)
    graphs = []

    def keep(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    step = torch.compile(patched, backend=keep, fullgraph=True)
    for i in range(14, 20):
        got = logits(step, tokens[:, i : i + 1], past_key_values=cache)
        torch.testing.assert_close(got, expected[:, i : i + 1], **CLOSE)
    assert len(graphs) == 1
    assert "paged_attention" in str(graphs[0].graph)
    assert cache.get_seq_length() == 20
    torch.testing.assert_close(logits(patched, tokens[:, :1], past_key_values=cache).shape, (2, 1, 128))


ELSEWHERE = (
    "PagedCache: `past_key_values` expected to be passed to a model whose attention opmux has replaced, got a call of"
    " another attention; patch the model, or pass transformers' own cache"
)


@pytest.mark.parametrize("name", ["eager", "sdpa"])
@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("codes", [None, "fp8"])
def test_a_cache_that_outlives_the_patch_says_so(name: str, kv_heads: int, codes: str | None) -> None:
    patched = model(num_key_value_heads=kv_heads)
    patched.set_attn_implementation(name)
    opmux_transformers.patch(patched)
    cache = PagedCache(patched, dtype=codes)
    logits(patched, ids(), past_key_values=cache)
    opmux_transformers.unpatch(patched)
    with pytest.raises((InvalidArgument, AttributeError)) as caught:
        logits(patched, ids(1), past_key_values=cache)
    assert str(caught.value) == ELSEWHERE


@pytest.mark.parametrize("new", [1, 12])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_cache_of_another_batch_says_so_and_counts_nothing(batch: int, new: int) -> None:
    patched = model()
    opmux_transformers.patch(patched)
    cache = PagedCache(patched)
    logits(patched, ids(12, 2), past_key_values=cache)
    with pytest.raises(InvalidArgument) as caught:
        logits(patched, ids(new, batch), past_key_values=cache)
    assert str(caught.value) == (
        f"PagedCache: `past_key_values` expected a cache of {batch} sequences, as the call has, got one of 2; make a"
        " cache for each batch, or use batch_select_indices or batch_repeat_interleave"
    )
    assert cache.get_seq_length() == 12


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])  # with and without the shorter path of decoding
def test_a_cache_of_a_model_with_fewer_layers_says_so(name: str) -> None:
    small, large = model(name, num_hidden_layers=1, layer_types=["full_attention"]), model(name)
    for each in (small, large):
        opmux_transformers.patch(each)
    with pytest.raises(InvalidArgument) as caught:
        logits(large, ids(), past_key_values=PagedCache(small))
    assert str(caught.value) == (
        "PagedCache: `past_key_values` expected a cache with a layer 1, got one of 1 layers, counted from 0; make the"
        " cache from the model that it is passed to"
    )


def test_a_full_cache_of_fixed_length_says_so() -> None:
    patched = model()
    opmux_transformers.patch(patched)
    cache = PagedCache(patched, max_length=16)
    with pytest.raises(InvalidArgument) as caught:
        logits(patched, ids(20), past_key_values=cache)
    assert str(caught.value) == (
        "PagedCache: `max_length` expected 20 tokens or more, got 16; make the cache longer, or leave max_length out to"
        " let it grow"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: PagedCache(model()),
            "PagedCache: `model` expected a model whose attention opmux has replaced, got LlamaForCausalLM without;"
            " call opmux_transformers.patch(model) first, and see its report",
        ),
        (
            lambda: PagedCache(patched_model("qwen3_next")),
            "PagedCache: `model` expected layers that keep keys and values, got Qwen3NextForCausalLM: some of its"
            " layers keep other states than keys and values: LinearAttentionLayer; use transformers' own cache",
        ),
        (
            lambda: PagedCache(patched_model(), page_size=24),
            "PagedCache: `page_size` expected 1 or a multiple of 16, got 24; take 16",
        ),
        (
            lambda: PagedCache(patched_model(), max_length=0),
            "PagedCache: `max_length` expected a whole number, 1 or more, got 0; None grows as needed",
        ),
        (
            lambda: PagedCache(patched_model(), max_length=2.5),
            "PagedCache: `max_length` expected a whole number, 1 or more, got 2.5; None grows as needed",
        ),
        (
            lambda: PagedCache(patched_model(), page_size=16.0),
            "PagedCache: `page_size` expected 1 or a multiple of 16, got 16.0; take 16",
        ),
    ],
    ids=["not-patched", "other-states", "page-size", "length", "half-a-token", "no-whole-page"],
)
def test_wrong_use_is_said(make, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert str(caught.value) == message


def patched_model(name: str = "llama"):
    patched = model(name)
    opmux_transformers.patch(patched)
    return patched


def test_configurations_that_are_no_pages() -> None:
    reason = paged_cache.not_keys_and_values(transformers.Gemma3nTextConfig())  # layers that read those of others
    assert reason is not None
    assert reason in (
        "some of its layers share the keys and values of others",
        "some of its layers keep other states than keys and values: DummyLayer",
    )
    odd = small_config("llama")
    odd.layer_types = ["odd", "odd"]
    assert paged_cache.not_keys_and_values(odd) == (
        "transformers' own cache cannot be made from its configuration: it raises KeyError"
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_mask_under_torch_compile_is_a_whole_mask(name: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    mask = torch.ones(2, 14, dtype=torch.long)
    mask[0, :3] = 0
    cache, ordinary = PagedCache(patched, max_length=32), DynamicCache(config=plain.config)
    step = torch.compile(patched, backend="eager", fullgraph=True)
    for of, past in ((step, cache), (plain, ordinary)):
        logits(of, ids(), past_key_values=past, attention_mask=mask[:, :12])
    for until in (13, 14):
        got, expected = (
            logits(of, ids()[:, :1], past_key_values=past, attention_mask=mask[:, :until])
            for of, past in ((step, cache), (plain, ordinary))
        )
        torch.testing.assert_close(got, expected, **CLOSE)


def test_compiled_steps_past_the_end_write_nothing() -> None:
    patched = patched_model()
    cache = PagedCache(patched, max_length=16)
    logits(patched, ids(16), past_key_values=cache)
    table = cache.table
    assert table is not None
    torch.compile(table.advance, backend="eager")(1)
    assert table.slots is not None
    assert table.slots.tolist() == [-1, -1]


@pytest.mark.filterwarnings("ignore")  # what transformers' own threads warn of
def test_continuous_batching_takes_a_model_whose_attention_is_left() -> None:
    plain, patched = pair()
    for of in (plain, patched):
        of.set_attn_implementation("sdpa")
    settings = transformers.GenerationConfig(**GREEDY, eos_token_id=-1, pad_token_id=0)
    sizes = {"num_blocks": 32, "max_batch_tokens": 64, "use_cuda_graph": False}
    batching = {"generation_config": settings, "inputs": ids().tolist()}
    opmux_transformers.patch(patched, attention=False)
    tokens = []
    for of in (plain, patched):
        config = transformers.ContinuousBatchingConfig(**sizes)
        with opmux.trace() as trace:
            found = of.generate_batch(continuous_batching_config=config, **batching)
        tokens.append([request.generated_tokens for request in found.values()])
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 2
    assert {"rms_norm", "apply_rope", "silu_mul"} <= {row.op for row in trace.rows}


def test_a_model_for_images_and_text_keeps_its_text_in_pages() -> None:
    text = small_config("gemma3_text").to_dict()
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config={**vision, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
        image_token_index=120,
        boi_token_index=118,
        eoi_token_index=119,
    )
    plain = transformers.Gemma3ForConditionalGeneration(config).eval()
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert report.replaced("attention") == 3  # one of them sees images, in both directions
    assert report.replaced("cache") == 1
    left = {(row.module.split(".")[1], row.class_name) for row in report.left("attention")}
    assert left == {("vision_tower", "MultiheadAttention")}
    tokens = ids().clamp(max=110)
    tokens[:, 2:6] = 120
    images = {"pixel_values": torch.randn(2, 3, 28, 28), "token_type_ids": (tokens == 120).long()}
    torch.testing.assert_close(logits(patched, tokens, **images), logits(plain, tokens, **images), **CLOSE)
    with opmux.trace() as trace:
        own = generated(patched, tokens, **images)
    assert torch.equal(own, generated(plain, tokens, **images))
    assert "paged_attention" in {row.op for row in trace.rows}
