"""Plain models, quantised on request: near the reference on dequantised values, and restored bit by bit."""

import copy
import io
from typing import Any

import pytest
import torch
import transformers
from quantised import dequantised
from samples import deep_looks, generated, ids, logits, model, ops_of, reasons, train_alike
from torch import nn

import opmux_transformers
from opmux.errors import InvalidArgument


@pytest.mark.parametrize("codes", ["fp8", "int8"])
@pytest.mark.parametrize("name", ["llama", "phi3", "gemma3_text"])
def test_greedy_tokens_are_those_of_the_dequantised_model(name: str, codes: str) -> None:
    plain = model(name)
    patched, reference = copy.deepcopy(plain), dequantised(plain, codes)
    report = opmux_transformers.patch(patched, quantize=codes)
    assert report.counts()["quantize"]["left"] == 1
    assert report.replaced("attention") == report.replaced("gate") == 2
    assert {"quantize", "scaled_linear"} <= ops_of(patched)
    found, expected, exact = logits(patched, ids()), logits(reference, ids()), logits(plain, ids())
    assert (found - expected).norm() < 0.25 * (exact - expected).norm()  # a code may round otherwise, no more
    tokens, theirs = generated(patched, ids()), generated(reference, ids())
    scores = logits(reference, tokens)[:, ids().shape[1] - 1 : -1]
    chosen = scores.gather(-1, tokens[:, ids().shape[1] :, None]).squeeze(-1)
    assert torch.equal(tokens, theirs) or bool((scores.amax(-1) - chosen < 0.02 * scores.abs().max()).all())


def test_unpatch_restores_the_model() -> None:
    patched = model()
    before, result = deep_looks(patched), logits(patched, ids())
    saved = {name: tensor.clone() for name, tensor in patched.state_dict().items()}
    opmux_transformers.patch(patched, quantize="fp8")
    assert not torch.equal(logits(patched, ids()), result)
    assert {name: torch.equal(t, saved[name]) for name, t in patched.state_dict().items()} == dict.fromkeys(saved, True)
    file = io.BytesIO()
    torch.save(patched, file)
    file.seek(0)
    assert torch.equal(logits(torch.load(file, weights_only=False), ids()), result)
    opmux_transformers.unpatch(patched)
    assert deep_looks(patched) == before
    assert torch.equal(logits(patched, ids()), result)


def test_weights_that_are_in_no_linear_are_named() -> None:
    class Conv1D(nn.Module):  # as GPT-2's
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(256, 1024))

    patched = model()
    patched.model.extra = Conv1D()
    notes = opmux_transformers.patch(patched, quantize="fp8").notes
    assert "1 weight of Conv1D (1.0 MiB) stays as it is: only torch's linear layers are converted" in notes
    mixture = opmux_transformers.patch(model("mixtral"), quantize="fp8").notes
    assert [note for note in mixture if "Experts" in note] == [], "experts are quantised as such"


def test_what_is_left_and_what_it_takes() -> None:
    patched = model()
    patched.model.layers[0].mlp.up_proj.register_forward_hook(lambda *_: None)
    report = opmux_transformers.patch(patched, quantize="int8")
    left = reasons(report, "quantize")
    assert left["lm_head"].startswith("the head: ")
    assert left["model.layers.0.mlp.up_proj"] == "it has hooks, which would not move along"
    assert len(left) == 2
    assert report.replaced("quantize") == 13
    assert {row.op for row in report.rows if row.kind == "quantize" and row.op} == {"quantize, scaled_linear (token)"}
    (note,) = (note for note in report.notes if "codes" in note)
    assert note == (
        "the codes take 0.00 GiB beside the weights, which stay as they are for unpatch;"
        " opmux.nn.quantize_(model) before patch(model) frees those of linears"
    )


def test_codes_follow_the_weights() -> None:
    patched = model()
    opmux_transformers.patch(patched, quantize="fp8")
    other = copy.deepcopy(patched)
    before = logits(patched, ids())
    assert torch.equal(logits(other, ids()), before)
    with torch.no_grad():
        patched.model.layers[0].mlp.down_proj.weight.mul_(-1)
    changed = logits(patched, ids())
    assert not torch.equal(changed, before)
    assert torch.equal(logits(other, ids()), before)
    opmux_transformers.unpatch(patched)
    opmux_transformers.patch(patched, quantize="fp8")
    assert torch.equal(logits(patched, ids()), changed)
    patched.to(torch.bfloat16)
    assert logits(patched, ids()).dtype is torch.bfloat16


def test_patching_again_quantises_what_was_written_through_data() -> None:
    patched = model()
    opmux_transformers.patch(patched, quantize="fp8")
    compiled: Any = torch.compile(patched, fullgraph=True, backend="eager")
    before = logits(compiled, ids())
    for layer in patched.model.layers:
        layer.mlp.down_proj.weight.data.mul_(-1)
    opmux_transformers.patch(patched, quantize="fp8")
    changed = logits(patched, ids())
    assert (changed - before).norm() > 0.01 * before.norm()
    torch.testing.assert_close(logits(compiled, ids()), changed, rtol=1e-4, atol=1e-4)
    opmux_transformers.unpatch(patched)
    opmux_transformers.patch(patched, quantize="fp8")
    assert torch.equal(logits(patched, ids()), changed)


def test_codes_follow_inference_tensors() -> None:
    with torch.inference_mode():
        patched = nn.ModuleDict({"linear": nn.Linear(64, 32)})
        opmux_transformers.patch(patched, quantize="int8")
        x = torch.randn(3, 64)
        before = patched["linear"](x)
        patched["linear"].weight.mul_(2)
        bias = patched["linear"].bias
        torch.testing.assert_close(patched["linear"](x), 2 * (before - bias) + bias)


def test_a_model_that_was_made_in_inference_mode_is_patched_outside_of_it() -> None:
    with torch.inference_mode():
        patched = model()
    opmux_transformers.patch(patched, quantize="fp8")
    other = model()
    opmux_transformers.patch(other, quantize="fp8")
    torch.testing.assert_close(logits(patched, ids()), logits(other, ids()))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, compiling an autograd function
def test_compiled_codes_follow_the_weights_that_are_trained() -> None:
    """Weights that are not are quantised before: patching again updates their codes."""
    patched = model()
    opmux_transformers.patch(patched, quantize="int8", loss=False)
    eager = copy.deepcopy(patched)
    compiled: Any = torch.compile(patched, fullgraph=True, backend="eager")
    for of, run in ((patched, compiled), (eager, eager)):
        optimizer = torch.optim.SGD(of.parameters(), lr=0.5)
        for _ in range(2):
            optimizer.zero_grad()
            run(ids(), labels=ids()).loss.backward()
            optimizer.step()
    first = model()
    assert not torch.equal(patched.model.layers[0].mlp.down_proj.weight, first.model.layers[0].mlp.down_proj.weight)
    for (name, own), (_, theirs) in zip(patched.named_parameters(), eager.named_parameters(), strict=True):
        assert (own - theirs).norm() < 1e-2 * theirs.norm(), name
    trained = compiled(ids()).logits.detach()
    torch.testing.assert_close(trained, logits(eager, ids()), rtol=1e-2, atol=1e-2)
    opmux_transformers.patch(patched, quantize="int8", loss=False)
    torch.testing.assert_close(logits(compiled, ids()), trained, rtol=1e-4, atol=1e-4)


def test_gradients_pass_through() -> None:
    plain = model()
    patched = copy.deepcopy(plain)
    opmux_transformers.patch(patched, quantize="int8", loss=False)
    for of in (plain, patched):
        of.train()
        of(ids(), labels=ids()).loss.backward()
    for (name, own), (_, theirs) in zip(patched.named_parameters(), plain.named_parameters(), strict=True):
        assert own.grad is not None, name
        cosine = nn.functional.cosine_similarity(own.grad.flatten(), theirs.grad.flatten(), dim=0)
        assert cosine > 0.8, name


def test_nothing_is_quantised_unless_asked_for() -> None:
    plain = model()
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert "quantize" not in report.counts()
    train_alike(patched, plain)


def test_what_stays_is_noted_only_where_it_was_asked_for() -> None:
    config = transformers.GPT2Config(vocab_size=128, n_embd=64, n_layer=1, n_head=4, n_positions=64)
    for codes, noted in ((None, False), ("fp8", True)):
        report = opmux_transformers.patch(transformers.GPT2LMHeadModel(config).eval(), quantize=codes)
        assert any("weights of Conv1D" in note for note in report.notes) == noted


def test_it_compiles() -> None:
    patched = model()
    opmux_transformers.patch(patched, quantize="fp8", loss=False)
    with torch.no_grad():
        compiled: Any = torch.compile(patched, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(ids()).logits, logits(patched, ids()), rtol=1e-4, atol=1e-4)


def test_an_unknown_name() -> None:
    with pytest.raises(InvalidArgument) as caught:
        opmux_transformers.patch(model(), quantize="fp4")
    assert str(caught.value) == (
        "opmux_transformers.patch: `quantize` expected 'fp8', 'int8' or None, got 'fp4'; opmux.nn.quantize_"
        " before patch(model) takes other dtypes and blocks"
    )
    patched = model()
    opmux_transformers.patch(patched, quantize="fp8")
    with pytest.raises(InvalidArgument, match=r"in force \(quantize='fp8'\), got quantize=None; unpatch"):
        opmux_transformers.patch(patched)
