"""The paged cache in 8 bits: what it rounds, by how much, and everything that the cache in 16 bits does."""

import copy
from typing import Any

import pytest
import torch
from samples import NAMES, generated, ids, logits, model, ops_of
from torch import Tensor
from transformers import DynamicCache

import opmux
import opmux_transformers
from opmux.errors import InvalidArgument
from opmux_transformers import PagedCache, paged_layer
from opmux_transformers.attention import opmux_attention

CODES = ("fp8", "int8")
LARGEST = {"fp8": 448.0, "int8": 127.0}
ROOM = {"fp8": 2.0, "int8": 1.5}
FLIPS = 5e-3
"""What rounding may add where keys differ by their last bits: a value between two codes gets the other one."""


def rounded(states: Tensor, scale: Tensor, codes: str) -> Tensor:
    """Keys or values, ``(batch, heads, tokens, dim)``, as codes stand for them, in torch alone."""
    scale = scale.view(-1, 1, 1)
    found = (states / scale).clamp(-LARGEST[codes], LARGEST[codes])
    found = found.to(torch.float8_e4m3fn).float() if codes == "fp8" else found.round()
    return found * scale


def scale_of(states: Tensor, codes: str) -> Tensor:
    """Of each head, from the first tokens."""
    return states.abs().amax((0, 2, 3)) * ROOM[codes] / LARGEST[codes]


class RoundingCache(DynamicCache):
    """transformers' own cache, of rounded keys and values: the reference."""

    def __init__(self, config: Any, codes: str) -> None:
        super().__init__(config=config)
        self.codes, self.scales = codes, {}

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        if layer_idx not in self.scales:
            self.scales[layer_idx] = [scale_of(states, self.codes) for states in (keys, values)]
        k_scale, v_scale = self.scales[layer_idx]
        made = rounded(keys, k_scale, self.codes), rounded(values, v_scale, self.codes)
        return super().update(*made, layer_idx, *args, **kwargs)


def patched_pair(name: str = "llama", **options: Any) -> tuple[Any, Any]:
    plain = model(name)
    patched = copy.deepcopy(plain)
    opmux_transformers.patch(patched, **options)
    return plain, patched


def steps(of: Any, cache: Any, tokens: Tensor, prompt: int) -> Tensor:
    """The logits after the prompt and after each later token."""
    found = [logits(of, tokens[:, :prompt], past_key_values=cache)[:, -1]]
    found += [logits(of, tokens[:, at : at + 1], past_key_values=cache)[:, -1] for at in range(prompt, tokens.shape[1])]
    return torch.stack(found, 1)


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("name", NAMES)
def test_tokens_against_caches_of_torch(name: str, codes: str) -> None:
    """The logits are those of the same rounding in torch; only tokens that this explains differ from those unrounded.

    If rounding the cache moves no logit of a step by more than e, the largest one can change only where the second
    is within 2 e of it.
    """
    plain, patched = patched_pair(name)
    tokens = generated(plain, ids(), max_new_tokens=24, min_new_tokens=24)
    cache = PagedCache(patched, dtype=codes)
    with opmux.trace() as trace:
        found = steps(patched, cache, tokens, 12)
    assert {"paged_attention", "write_kv_cache"} <= {row.op for row in trace.rows}
    assert {layer.keys.element_size() for layer in cache.layers} == {1}
    reference = steps(plain, RoundingCache(plain.config, codes), tokens, 12)
    exact = steps(plain, DynamicCache(config=plain.config), tokens, 12)
    moved = (reference - exact).norm()
    assert (found - reference).norm() < max(0.2 * moved, 1e-5 * exact.norm())
    assert moved > 1e-4 * exact.norm()
    allowed = 2 * (reference - exact).abs().amax(-1)
    first, second = exact.topk(2, dim=-1).values.unbind(-1)
    differ = found.argmax(-1) != exact.argmax(-1)
    assert bool((first - second <= 1.2 * allowed)[differ].all())


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_scales_of_one_token_leave_room_for_those_that_follow(name: str, codes: str) -> None:
    plain, patched = patched_pair(name)
    tokens, off = ids(40), []
    for prompt in (1, 12):
        exact = steps(plain, DynamicCache(config=plain.config), tokens, prompt)
        found = steps(patched, PagedCache(patched, dtype=codes), tokens, prompt)
        off.append((found - exact).norm() / exact.norm())
    assert off[0] < {"fp8": 1.2, "int8": 2.5}[codes] * off[1]


@pytest.mark.parametrize("codes", CODES)
def test_what_rounding_may_change_in_attention(codes: str) -> None:
    """A bound for each value of the result, from the error of each key and value.

    A code of fp8 is off by at most 2**-4 of the number, or by half a step of 2**-9 of the scale; one of int8 by half a
    scale. With d_j the bound on the error of score j, and D the largest of them, each probability changes by a factor
    between exp(-2 D) and exp(2 D); so sum_j p_j v_j changes by at most
    ``exp(2 D) sum_j p_j dv_j + (exp(2 D) - 1) sum_j p_j |v_j|``.
    """
    _, patched = patched_pair()
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(2, 4, 21, 16, generator=generator) / 4
    k, v = (torch.randn(2, 2, 21, 16, generator=generator) for _ in range(2))
    cache = PagedCache(patched, dtype=codes)
    module = patched.model.layers[0].self_attn
    found, _ = opmux_attention(module, q, *cache.layers[0].update(k, v), None)
    exact, _ = opmux_attention(module, q, k, v, None)

    def error(states: Tensor) -> Tensor:
        unit = scale_of(states, codes).view(-1, 1, 1)
        off = unit / 2 if codes == "int8" else torch.maximum(states.abs() * 2.0**-4, unit * 2.0**-10)
        return off.expand_as(states).repeat_interleave(2, 1)

    seen = torch.ones(21, 21, dtype=torch.bool).tril()
    wide_k, wide_v = (states.repeat_interleave(2, 1) for states in (k, v))
    scores = (q @ wide_k.mT / 4).masked_fill(~seen, -torch.inf)
    off = (q.abs() @ error(k).mT / 4).masked_fill(~seen, 0)
    grown = (2 * off.amax(-1, keepdim=True)).exp()
    p = scores.softmax(-1)
    bound = grown * (p @ error(v)) + (grown - 1) * (p @ wide_v.abs())
    off = (found - exact).transpose(1, 2).abs()
    assert bool((off <= bound + 1e-5).all())
    assert float(off.norm()) > 0.05 * float(bound.norm())


@pytest.mark.parametrize("codes", CODES)
def test_generate_takes_codes_when_asked(codes: str) -> None:
    plain, patched = patched_pair(cache=codes)
    (row,) = (row for row in opmux_transformers.report(patched).rows if row.kind == "cache")
    assert row.reason == f"PagedCache in generate, of {codes} codes"
    got = generated(patched, ids(), return_dict_in_generate=True)
    assert {layer.keys.element_size() for layer in got.past_key_values.layers} == {1}
    given = generated(patched, ids(), past_key_values=PagedCache(patched, dtype=codes))
    assert torch.equal(got.sequences, given)
    expected = generated(plain, ids(), past_key_values=RoundingCache(plain.config, codes))
    assert torch.equal(got.sequences, expected)
    opmux_transformers.unpatch(patched)
    assert torch.equal(generated(patched, ids()), generated(plain, ids()))


@pytest.mark.parametrize("codes", CODES)
def test_it_grows_and_is_cropped(codes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_layer, "_FIRST_ROOM", 4)
    _, patched = patched_pair()
    tokens = ids(40)
    long, cache = PagedCache(patched, max_length=64, dtype=codes), PagedCache(patched, dtype=codes)
    expected = steps(patched, long, tokens, 8)
    torch.testing.assert_close(steps(patched, cache, tokens, 8), expected)
    cache.crop(-10)
    got = logits(patched, tokens[:, 30:31], past_key_values=cache)[:, -1]
    torch.testing.assert_close(got, expected[:, 30 - 7])
    cache.reset()
    again = logits(patched, tokens[:, :8], past_key_values=cache)[:, -1]
    torch.testing.assert_close(again, expected[:, 0])


@pytest.mark.parametrize("codes", CODES)
def test_sequences_can_be_picked_and_repeated(codes: str) -> None:
    _, patched = patched_pair()
    tokens, step = ids(12, 3), torch.tensor([[5], [6], [7], [8]])
    cache = PagedCache(patched, dtype=codes)
    logits(patched, tokens, past_key_values=cache)
    other = copy.deepcopy(cache)
    cache.batch_select_indices(torch.tensor([1, 2]))
    cache.batch_repeat_interleave(2)
    got = logits(patched, step, past_key_values=cache)
    other.reorder_cache(torch.tensor([1, 1, 2, 2]))
    torch.testing.assert_close(logits(patched, step, past_key_values=other), got)
    assert cache.layers[0].keys.dtype == other.layers[0].keys.dtype
    beams = generated(patched, ids(), num_beams=3, past_key_values=PagedCache(patched, dtype=codes))
    assert beams.shape == (2, 22)


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("mask", ["left", "holes"])
def test_padded_steps(mask: str, codes: str) -> None:
    plain, patched = patched_pair("mistral")
    tokens, kept = ids(12), torch.ones(2, 13, dtype=torch.long)
    kept[0, {"left": [0, 1, 2], "holes": [2, 5, 6]}[mask]] = 0
    found = []
    whole, ordinary = PagedCache(patched, dtype=codes), RoundingCache(plain.config, codes)
    logits(patched, tokens, past_key_values=whole)  # what a model computes for padding differs, and scales with it
    scales = [(layer.k_scale, layer.v_scale) for layer in whole.layers]
    ordinary.scales = dict(enumerate(scales))
    for of, past in ((patched, PagedCache(patched, dtype=codes, scales=scales)), (plain, ordinary)):
        logits(of, tokens, attention_mask=kept[:, :12], past_key_values=past)
        found.append(logits(of, tokens[:, :1], attention_mask=kept, past_key_values=past))
    assert (found[0] - found[1]).norm() < FLIPS * found[1].norm()


@pytest.mark.parametrize("codes", CODES)
def test_compiled_steps_are_one_graph_that_is_not_compiled_anew(codes: str) -> None:
    _, patched = patched_pair()
    tokens = ids(20)
    expected = steps(patched, PagedCache(patched, dtype=codes), tokens, 14)
    cache = PagedCache(patched, max_length=64, dtype=codes)
    logits(patched, tokens[:, :14], past_key_values=cache)
    where = [[t.data_ptr() for t in (x.keys, x.values, x.k_scale, x.v_scale)] for x in cache.layers]
    graphs = []

    def keep(graph: Any, example_inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    step = torch.compile(patched, backend=keep, fullgraph=True)
    for at in range(14, 20):
        got = logits(step, tokens[:, at : at + 1], past_key_values=cache)[:, -1]
        torch.testing.assert_close(got, expected[:, at - 13], rtol=1e-4, atol=1e-5)
    assert len(graphs) == 1
    assert where == [[t.data_ptr() for t in (x.keys, x.values, x.k_scale, x.v_scale)] for x in cache.layers]


def test_scales_of_the_user() -> None:
    _, patched = patched_pair()
    whole = [(torch.tensor([0.5]), torch.tensor([0.25]))] * 2
    by_head = [(torch.full((2,), 0.5), torch.full((2,), 0.25))] * 2
    found = []
    for scales in (whole, by_head):
        cache = PagedCache(patched, dtype="int8", scales=scales)
        found.append(logits(patched, ids(), past_key_values=cache))
        assert torch.equal(cache.layers[1].k_scale, scales[1][0])
    assert torch.equal(*found)
    found.append(logits(patched, ids(), past_key_values=PagedCache(patched, dtype="int8")))
    assert not torch.equal(found[0], found[2])


def test_heads_without_a_largest_number_have_the_scale_one() -> None:
    states = torch.randn(2, 4, 3, 8)
    states[:, 0], states[0, 1, 0, 0], states[0, 2, 0, 0] = 0, float("nan"), float("inf")
    found = paged_layer.scale_for(states, torch.int8)
    assert found[:3].tolist() == [1, 1, 1]
    torch.testing.assert_close(found[3], states[:, 3].abs().max() * 1.5 / 127)


def test_a_copy_of_its_states_is_what_the_codes_stand_for() -> None:
    _, patched = patched_pair()
    cache = PagedCache(patched, dtype="fp8")
    logits(patched, ids(), past_key_values=cache)
    assert [none for _, _, none in PagedCache(patched, dtype="fp8")] == [None, None]
    for (keys, values, _), layer in zip(cache, cache.layers, strict=True):
        assert keys.dtype == values.dtype == torch.float32
        assert keys.shape == values.shape == (2, 2, 12, 16)
        codes = layer.keys.view(2, -1, 2, 16)[:, :12].float().transpose(1, 2)
        torch.testing.assert_close(keys, codes * layer.k_scale.view(-1, 1, 1))


def test_the_short_path_reads_codes() -> None:
    """One token by the forward of the module and by the short path."""
    _, patched = patched_pair()
    found = []
    for watched in (False, True):
        cache = PagedCache(patched, dtype="fp8")
        logits(patched, ids(), past_key_values=cache)
        handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None) if watched else None
        found.append(logits(patched, ids()[:, :1], past_key_values=cache))
        if handle is not None:
            handle.remove()
    torch.testing.assert_close(*found)
    assert "add_rms_norm" in ops_of(patched)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"dtype": "fp4"},
            "PagedCache: `dtype` expected 'fp8', 'int8', one of float8_e4m3fn, float8_e4m3fnuz, float8_e5m2,"
            " float8_e5m2fnuz, int8, or None, got 'fp4'; None stores keys and values in the dtype in which the model"
            " computes them",
        ),
        (
            {"dtype": torch.bfloat16},
            "PagedCache: `dtype` expected 'fp8', 'int8', one of float8_e4m3fn, float8_e4m3fnuz, float8_e5m2,"
            " float8_e5m2fnuz, int8, or None, got bfloat16; None stores keys and values in the dtype in which the"
            " model computes them",
        ),
        (
            {"scales": [(torch.ones(2), torch.ones(2))] * 2},
            "PagedCache: `scales` expected None for a cache that is not 8-bit, got scales; pass dtype='fp8' too",
        ),
        (
            {"dtype": "fp8", "scales": [(torch.ones(2), torch.ones(2))]},
            "PagedCache: `scales` expected float32[kv_heads] or float32[1] for the keys and for the values of each of 2"
            " layers, got 1 pairs; leave scales out to find them from the first keys and values",
        ),
        (
            {"dtype": "fp8", "scales": [(torch.ones(2), torch.ones(2)), (torch.ones(2, 1), torch.ones(2))]},
            "PagedCache: `scales` expected float32[kv_heads] or float32[1] for the keys and for the values of each of 2"
            " layers, got float32[2, 1] for layer 1; leave scales out to find them from the first keys and values",
        ),
        (
            {"dtype": "fp8", "scales": [(0.5, torch.ones(2))] * 2},
            "PagedCache: `scales` expected float32[kv_heads] or float32[1] for the keys and for the values of each of 2"
            " layers, got 0.5 for layer 0; leave scales out to find them from the first keys and values",
        ),
    ],
    ids=["name", "bits", "no codes", "layers", "dims", "number"],
)
def test_wrong_use_is_said(given: dict[str, Any], message: str) -> None:
    _, patched = patched_pair()
    with pytest.raises(InvalidArgument) as caught:
        PagedCache(patched, **given)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("scales", "got"),
    [
        (0.5, "0.5"),
        (torch.ones(2, 2, 2), "float32[2, 2, 2]"),
        ({0: 1, 1: 2}, "a dict"),
        ([0.5, 0.5], "0.5 for layer 0"),
        ([torch.ones(2), torch.ones(2)], "float32[2] for layer 0"),
        ([(torch.ones(2),)] * 2, "a tuple of 1 for layer 0"),
        ([(torch.ones(2), torch.ones(2)), [torch.ones(2)] * 3], "a list of 3 for layer 1"),
        ([(None, None)] * 2, "None for layer 0"),
        ([(torch.ones(2).bfloat16(), torch.ones(2))] * 2, "bfloat16[2] for layer 0"),
        ([(torch.ones(2), torch.tensor([1.0, 0.0]))] * 2, "scales for layer 0 that are not all positive and finite"),
        ([(torch.tensor([torch.nan]), torch.ones(2))] * 2, "scales for layer 0 that are not all positive and finite"),
    ],
)
def test_scales_that_are_none_are_refused_before_the_model_runs(scales: Any, got: str) -> None:
    _, patched = patched_pair()
    with pytest.raises(InvalidArgument) as caught:
        PagedCache(patched, dtype="fp8", scales=scales)
    assert str(caught.value) == (
        "PagedCache: `scales` expected float32[kv_heads] or float32[1] for the keys and for the values of each of 2"
        f" layers, got {got}; leave scales out to find them from the first keys and values"
    )


def test_scales_of_other_heads_are_refused_and_nothing_is_counted() -> None:
    _, patched = patched_pair()
    cache = PagedCache(patched, dtype="int8", scales=[(torch.ones(2), torch.ones(3))] * 2)
    with pytest.raises(InvalidArgument) as caught:
        logits(patched, ids(), past_key_values=cache)
    assert str(caught.value) == (
        "PagedCache: `scales` expected float32[2] or float32[1] for the 2 kv heads of layer 0, got float32[3]; leave"
        " scales out to find them from the first keys and values"
    )
    assert cache.get_seq_length() == 0


def test_the_devices_own_floats_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The AMD GPUs of gfx942 have e4m3 of another range."""
    plain, patched = patched_pair()
    monkeypatch.setattr(opmux, "fp8_dtype", lambda device: torch.float8_e4m3fnuz)
    cache = PagedCache(patched, dtype="fp8")
    found = logits(patched, ids(), past_key_values=cache)
    assert {layer.keys.dtype for layer in cache.layers} == {torch.float8_e4m3fnuz}
    keys = next(iter(cache))[0]
    torch.testing.assert_close(cache.layers[0].k_scale, keys.abs().amax((0, 2, 3)) * 2 / 240, rtol=0.07, atol=0)
    exact = logits(plain, ids())
    assert 1e-3 < (found - exact).norm() / exact.norm() < 0.2


def test_a_wrong_name_of_codes_is_said() -> None:
    with pytest.raises(InvalidArgument) as caught:
        opmux_transformers.patch(model(), cache="fp4")
    assert str(caught.value) == (
        "opmux_transformers.patch: `cache` expected True, False, 'fp8' or 'int8', got 'fp4'; pass a PagedCache to"
        " generate for other dtypes"
    )
