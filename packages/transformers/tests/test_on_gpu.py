"""On a GPU with the Triton backend: no op of the families falls to the reference; steps in a graph; Inductor."""

import copy
import statistics
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from samples import GREEDY, NAMES, greedy_by_steps, ids, logits
from torch import Tensor

import opmux
import opmux_transformers
from opmux_transformers import PagedCache, check
from opmux_transformers.configs import small_config
from opmux_transformers.quantised_check import compare_quantised

pytestmark = pytest.mark.gpu


def others(trace: Any) -> list[tuple[str, str]]:
    """What did not run on Triton's kernels, except for the products of the loss, which any backend may compute."""
    products = ("linear", "linear_backward")
    rows = [row for row in trace.rows if row.op not in products]
    return [(row.op, row.backend) for row in rows if row.backend.partition(":")[0] != "triton"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_the_families_on_kernels(name: str, dtype: torch.dtype) -> None:
    with opmux.trace() as trace:
        comparisons, report = check.compare(small_config(name), dtype, "cuda")
    assert [c for c in comparisons if not c.passed] == []
    assert {row.kind for row in report.left()} <= {"residual"}
    assert {"attention", "attention_backward", "paged_attention", "write_kv_cache"} <= {row.op for row in trace.rows}
    assert others(trace) == []
    assert sum(row.fallbacks for row in trace.rows) == 0


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_padded_batches_on_kernels(name: str) -> None:
    plain = check.build(small_config(name), torch.float32, "cuda")
    patched = copy.deepcopy(plain)
    opmux_transformers.patch(patched)
    tokens, mask = ids().cuda(), torch.ones_like(ids()).cuda()
    mask[0, :4] = 0
    with opmux.trace() as trace:
        own = patched.generate(tokens, attention_mask=mask, **GREEDY)
    assert torch.equal(own, plain.generate(tokens, attention_mask=mask, **GREEDY))
    assert {row.backend.partition(":")[0] for row in trace.rows} == {"triton"}


@pytest.mark.parametrize("codes", ["fp8", "int8"])
@pytest.mark.parametrize("name", ["llama", "mixtral", "deepseek_v3"])
def test_quantised_models_on_kernels(name: str, codes: str) -> None:
    comparisons, report = compare_quantised(small_config(name), codes, "cuda")
    assert [c for c in comparisons if not c.passed] == []
    assert report.replaced("quantize") > 0


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_steps_captured_in_a_graph(name: str) -> None:
    plain = check.build(small_config(name), torch.float32, "cuda")
    patched = copy.deepcopy(plain)
    opmux_transformers.patch(patched)
    tokens = ids(20).cuda()
    expected = logits(plain, tokens)
    for i, out in replayed(patched, tokens):
        torch.testing.assert_close(out, expected[:, i : i + 1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("codes", ["fp8", "int8"])
@pytest.mark.parametrize(
    ("name", "batch", "grouped"),
    [("llama", 2, set()), ("mixtral", 2, {"scaled_grouped_linear"}), ("mixtral", 3, {"scaled_masked_grouped_linear"})],
    ids=["llama", "mixtral-sorted", "mixtral-masked"],
)
def test_quantised_steps_captured_in_a_graph(name: str, batch: int, grouped: set[str], codes: str) -> None:
    """Replays give what the same steps give in eager mode, though tokens choose other experts.

    The mixture has four experts, of which a token takes two: those of two tokens are sorted.
    """
    patched = check.build(small_config(name), torch.float32, "cuda")
    opmux_transformers.patch(patched, quantize=codes)
    tokens = ids(20, batch).cuda()
    cache = PagedCache(patched, max_length=64)
    logits(patched, tokens[:, :12], past_key_values=cache)
    with opmux.trace() as trace:
        expected = [logits(patched, tokens[:, i : i + 1], past_key_values=cache) for i in range(12, 20)]
    for i, out in replayed(patched, tokens):
        torch.testing.assert_close(out, expected[i - 12], rtol=1e-3, atol=1e-3)
    ran = {row.op for row in trace.rows}
    assert "scaled_linear" in ran
    assert {op for op in ran if "grouped" in op} == grouped
    assert others(trace) == []


def test_single_rows_of_plain_linears_are_captured_on_kernels() -> None:
    """One sequence in 16 bits: every linear but the head runs on a kernel of the backend."""
    plain = check.build(small_config("llama"), torch.bfloat16, "cuda")
    patched = copy.deepcopy(plain)
    linears = opmux_transformers.patch(patched).replaced("vector")
    tokens = ids(20, 1).cuda()
    cache = PagedCache(patched, max_length=64)
    logits(patched, tokens[:, :12], past_key_values=cache)
    with opmux.trace() as trace:
        expected = [logits(patched, tokens[:, i : i + 1], past_key_values=cache) for i in range(12, 20)]
    rows = [row for row in trace.rows if row.op == "linear"]
    assert linears == 14
    assert {row.backend.partition(":")[0] for row in rows} == {"triton"}
    assert sum(row.calls for row in rows) == 8 * linears
    for i, out in replayed(patched, tokens):
        torch.testing.assert_close(out, expected[i - 12], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("codes", ["fp8", "int8"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_steps_of_a_cache_of_codes_captured_in_a_graph(name: str, codes: Any) -> None:
    """Replays give what the same steps give in eager mode, on kernels."""
    patched = check.build(small_config(name), torch.bfloat16, "cuda")
    opmux_transformers.patch(patched)
    tokens = ids(20).cuda()
    cache = PagedCache(patched, max_length=64, dtype=codes)
    with opmux.trace() as trace:
        logits(patched, tokens[:, :12], past_key_values=cache)
        expected = [logits(patched, tokens[:, i : i + 1], past_key_values=cache) for i in range(12, 20)]
    assert {layer.keys.element_size() for layer in cache.layers} == {1}
    for i, out in replayed(patched, tokens, codes):
        torch.testing.assert_close(out, expected[i - 12], rtol=2e-2, atol=2e-2)
    assert others(trace) == []
    assert {"paged_attention", "write_kv_cache"} <= {row.op for row in trace.rows}


def replayed(patched: Any, tokens: Tensor, codes: Any = None) -> Iterator[tuple[int, Tensor]]:
    """The logits at each place from 12 on, by replays of one captured step."""
    cache = PagedCache(patched, max_length=64, dtype=codes)
    first = logits(patched, tokens[:, :12], past_key_values=cache)
    token = tokens[:, 12:13].clone()
    out = torch.empty_like(first[:, :1])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            out.copy_(logits(patched, token, past_key_values=cache))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(logits(patched, token, past_key_values=cache))
    cache.crop(12)
    for i in range(12, 20):
        token.copy_(tokens[:, i : i + 1])
        graph.replay()
        yield i, out


def compiled_pair(name: str) -> tuple[Any, Any]:
    """A model, and its patched copy, which Inductor compiles when it is called."""
    plain = check.build(small_config(name), torch.float32, "cuda")
    patched = copy.deepcopy(plain)
    opmux_transformers.patch(patched)
    return plain, patched


def only_kernels(trace: Any) -> dict[str, int]:
    """How often each op was called, of which Triton's kernels have computed every one."""
    assert others(trace) == []
    assert sum(row.fallbacks for row in trace.rows) == 0
    return {row.op: row.calls for row in trace.rows}


SAID_BY_TORCH = (
    "TensorFloat32 tensor cores",  # advice for float32
    r"\s*Online softmax is disabled",  # the router's softmax of two experts
    "The .grad attribute of a Tensor that is not a leaf",  # at a graph break
)


def by_inductor(test: Any) -> Any:
    """A test that compiles, where some of what torch warns of is no fault of the model's."""
    for said in SAID_BY_TORCH:
        test = pytest.mark.filterwarnings(f"ignore:{said}:UserWarning")(test)
    return test


@by_inductor
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_compiled_by_inductor(name: str, use_cache: bool) -> None:
    plain, patched = compiled_pair(name)
    compiled = torch.compile(patched, fullgraph=True)
    tokens = ids().cuda()
    with opmux.trace() as trace:
        got = logits(compiled, tokens, use_cache=use_cache)
    torch.testing.assert_close(got, logits(plain, tokens), rtol=1e-3, atol=1e-3)
    assert {"attention", "apply_rope", "rms_norm"} <= only_kernels(trace).keys()


@by_inductor
@pytest.mark.parametrize("name", NAMES)
def test_steps_compiled_by_inductor_give_the_same_tokens(name: str) -> None:
    plain, patched = compiled_pair(name)
    tokens = ids().cuda()
    cache = PagedCache(patched, max_length=32)
    step = torch.compile(patched, fullgraph=True)
    with opmux.trace() as trace:
        found = greedy_by_steps(step, tokens, cache, patched)
    assert torch.equal(found, plain.generate(tokens, attention_mask=torch.ones_like(tokens), **GREEDY))
    ran = only_kernels(trace)
    assert ran["paged_attention"] == ran["write_kv_cache"] == 2 * GREEDY["max_new_tokens"]


@by_inductor
@pytest.mark.parametrize("name", NAMES)
def test_gradients_compiled_by_inductor(name: str) -> None:
    plain, patched = compiled_pair(name)
    tokens = ids().cuda()
    with opmux.trace() as trace:
        torch.compile(patched)(tokens, labels=tokens).loss.backward()
    plain(tokens, labels=tokens).loss.backward()
    pairs = [(own.grad, p.grad) for own, p in zip(patched.parameters(), plain.parameters(), strict=True)]
    exact = [(own, theirs) for own, theirs in pairs if theirs is not None]
    assert all(own is None for own, theirs in pairs if theirs is None)
    least = 1e-3 * statistics.median(float(theirs.abs().max()) for _, theirs in exact)  # of a key's bias it is 0
    for own, theirs in exact:
        assert float((own - theirs).abs().max()) <= 1e-3 * max(float(theirs.abs().max()), least)
    assert {"attention_backward", "apply_rope_backward", "rms_norm_backward"} <= only_kernels(trace).keys()
