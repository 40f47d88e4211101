"""The named families: everything is replaced, and the patched model computes what the unpatched one does."""

import copy

import pytest
import torch
import transformers
from samples import (
    CLOSE,
    GREEDY,
    HAS_GATE,
    NAMES,
    children,
    first_of,
    greedy_by_steps,
    ids,
    logits,
    model,
    pair,
)

import opmux
import opmux_transformers
from opmux_transformers import PagedCache, check
from opmux_transformers.configs import small_config

LAYERS = 2
RESIDUALS = {"olmo2": 0}
"""OLMo 2 norms the outputs before the sum: no norm follows one inside of a layer."""


def test_the_families_are_those_that_are_promised() -> None:
    assert opmux_transformers.families() == NAMES
    assert set(NAMES) == {
        "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3", "olmo2", "granite", "gpt_oss",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_norm_rotation_gate_and_attention_is_replaced(name: str) -> None:
    plain = model(name)
    norms = children(plain, lambda m: "RMSNorm" in type(m).__name__)
    mlps = children(plain, lambda m: type(m).__name__.endswith("MLP")) if name in HAS_GATE else []
    attentions = children(plain, lambda m: type(m).__name__.endswith("Attention"))
    assert len(norms) >= 2 * LAYERS + 1
    assert len(attentions) == LAYERS

    report = opmux_transformers.patch(plain)
    by_kind = {
        kind: {r.module for r in report.rows if r.kind == kind and r.status == "replaced"} for kind in report.counts()
    }
    assert by_kind["norm"] == set(norms)
    assert by_kind.get("gate", set()) == set(mlps)
    assert by_kind["rope"] == set(attentions)
    assert by_kind["attention"] == set(attentions)
    assert by_kind["cache"] == {""}
    assert report.replaced("rope tables") == 1
    assert report.replaced("residual") == RESIDUALS.get(name, LAYERS)
    assert {row.kind for row in report.left()} <= {"residual"}
    assert report.replaced("experts") == (LAYERS if name == "gpt_oss" else 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_logits_gradients_and_tokens_agree(name: str, dtype: torch.dtype) -> None:
    comparisons, _ = check.compare(small_config(name), dtype)
    assert [c.what for c in comparisons] == ["logits", "gradients", "tokens"]
    assert [c for c in comparisons if not c.passed] == []


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_equal_with_and_without_padding(name: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    tokens = ids()
    for mask in (torch.ones_like(tokens), torch.ones_like(tokens).index_fill_(1, torch.arange(4), 0)):
        mask[1] = 1
        expected = plain.generate(tokens, attention_mask=mask, **GREEDY)
        assert torch.equal(patched.generate(tokens, attention_mask=mask, **GREEDY), expected)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("name", first_of(NAMES))
def test_under_torch_compile_it_is_one_graph_of_opmuxs_ops(name: str, use_cache: bool) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    tokens = ids()
    compiled = torch.compile(patched, backend="eager", fullgraph=True)
    with opmux.trace() as trace:
        got = logits(compiled, tokens, use_cache=use_cache)
    torch.testing.assert_close(got, logits(plain, tokens), **CLOSE)
    ran = {row.op: row.calls for row in trace.rows}
    gates = sum(ran.get(op, 0) for op in ("silu_mul", "gelu_mul", "silu_and_mul"))
    norms = len(children(plain, lambda m: "RMSNorm" in type(m).__name__))
    assert ran["attention"] == ran["apply_rope"] == LAYERS
    assert gates == (LAYERS if name in HAS_GATE else 0)
    assert ran["rms_norm"] + ran.get("add_rms_norm", 0) == norms


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # torch, at a graph break
@pytest.mark.parametrize("name", first_of(NAMES))
def test_gradients_agree_under_torch_compile(name: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    tokens = ids()
    torch.compile(patched, backend="aot_eager")(tokens, labels=tokens).loss.backward()
    plain(tokens, labels=tokens).loss.backward()
    for (path, own), (_, theirs) in zip(patched.named_parameters(), plain.named_parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(own.grad, theirs.grad, **CLOSE, msg=lambda m, path=path: f"{path}: {m}")


@pytest.mark.parametrize("name", first_of(NAMES))
def test_compiled_steps_give_the_same_tokens(name: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    tokens = ids()
    cache = PagedCache(patched, max_length=32)
    step = torch.compile(patched, fullgraph=True, backend="eager")
    expected = plain.generate(tokens, attention_mask=torch.ones_like(tokens), **GREEDY)
    assert torch.equal(greedy_by_steps(step, tokens, cache, patched), expected)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_is_no_further_from_the_truth_than_without_the_patch(name: str) -> None:
    plain, patched = pair(name)
    exact = copy.deepcopy(plain)
    opmux_transformers.patch(patched)
    grads = []
    for of, cast in ((exact, False), (plain, True), (patched, True)):
        of.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            out = of(ids(), labels=ids(), use_cache=False)
        out.loss.backward()
        grads.append(torch.cat([p.grad.flatten() for p in of.parameters() if p.grad is not None]))
    theirs, own = ((grad - grads[0]).norm() / grads[0].norm() for grad in grads[1:])
    assert own <= 1.5 * theirs + 2**-8


class Rows(torch.utils.data.Dataset):
    """Rows of unequal lengths, padded on the right, without labels there."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.randint(3, 128, (12,), generator=torch.Generator().manual_seed(index))
        mask = (torch.arange(12) < 7 + index % 6).long()
        return {"input_ids": row * mask, "labels": row.masked_fill(mask == 0, -100), "attention_mask": mask}


@pytest.mark.filterwarnings("ignore")  # what Trainer's own dependencies warn of
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_trainer_in_bfloat16_takes_the_same_steps(name: str, tmp_path) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    losses = []
    for of in (plain, patched):
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=4, learning_rate=1e-3, use_cpu=True,
            bf16=True, report_to=[], disable_tqdm=True, save_strategy="no", seed=3, dataloader_pin_memory=False,
        )  # fmt: skip
        with opmux.trace() as trace:
            losses.append(transformers.Trainer(model=of, args=arguments, train_dataset=Rows()).train().training_loss)
    assert {"attention_varlen_backward", "rms_norm_backward"} <= {row.op for row in trace.rows}
    assert losses[1] == pytest.approx(losses[0], rel=5e-3)


def test_a_model_that_was_compiled_before_it_was_patched_runs_patched() -> None:
    plain, patched = pair()
    compiled = torch.compile(patched, backend="eager")
    tokens = ids()
    logits(compiled, tokens)
    opmux_transformers.patch(patched)
    with opmux.trace() as trace:
        got = logits(compiled, tokens)
    assert {"attention", "rms_norm"} <= {row.op for row in trace.rows}
    torch.testing.assert_close(got, logits(plain, tokens), **CLOSE)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 500.0},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
        {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64},
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_every_rule_of_frequencies_is_transformers_own(rope: dict) -> None:
    plain, patched = pair("llama", rope_parameters=rope)
    opmux_transformers.patch(patched)
    tokens = ids(40)
    torch.testing.assert_close(logits(patched, tokens), logits(plain, tokens), **CLOSE)


def test_packed_and_custom_masks_and_probabilities_without_an_op_fall_back() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    tokens = ids(12, 1)
    packed = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]])
    with opmux.trace() as trace:
        got = logits(patched, tokens, position_ids=packed, use_cache=False)
    torch.testing.assert_close(got, logits(plain, tokens, position_ids=packed, use_cache=False), **CLOSE)
    assert "attention" not in {row.op for row in trace.rows}

    custom = torch.ones(1, 1, 12, 12, dtype=torch.bool).tril()
    custom[..., 5:, 2] = False
    added = torch.zeros(custom.shape).masked_fill(~custom, torch.finfo(torch.float32).min)
    expected = logits(plain, tokens, attention_mask=added)
    torch.testing.assert_close(logits(patched, tokens, attention_mask=custom), expected, **CLOSE)
    torch.testing.assert_close(logits(patched, tokens, attention_mask=added), expected, **CLOSE)


def test_packed_sequences_with_offsets_become_ragged_attention() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    tokens = ids(12, 1)
    packed = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]])
    offsets = torch.tensor([0, 5, 8, 12], dtype=torch.int32)
    with opmux.trace() as trace:
        lengths = {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": 5, "max_length_k": 5}
        got = logits(patched, tokens, position_ids=packed, use_cache=False, **lengths)
    torch.testing.assert_close(got, logits(plain, tokens, position_ids=packed, use_cache=False), **CLOSE)
    assert "attention_varlen" in {row.op for row in trace.rows}


def test_hidden_states_are_captured_as_before() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    with torch.no_grad():
        own, theirs = (m(ids(), output_hidden_states=True).hidden_states for m in (patched, plain))
    assert len(own) == len(theirs) == LAYERS + 1
    for mine, other in zip(own, theirs, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


def test_a_copy_of_a_patched_model_stands_on_its_own() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    other = copy.deepcopy(patched)
    with torch.no_grad():
        for parameter in patched.parameters():
            parameter.zero_()
    torch.testing.assert_close(logits(other, ids()), logits(plain, ids()), **CLOSE)
    opmux_transformers.unpatch(other)
    torch.testing.assert_close(logits(other, ids()), logits(plain, ids()), **CLOSE)
    assert opmux_transformers.report(patched).active
