"""Training: a plain loop, transformers' Trainer, checkpointing, dropout, frozen parts."""

import copy
import warnings

import pytest
import torch
import transformers
from samples import CLOSE, ids, logits, model, pair

import opmux
import opmux_transformers


def steps(of, count: int = 4) -> list[float]:
    of.train()
    optimiser = torch.optim.SGD(of.parameters(), lr=0.05)
    losses = []
    for seed in range(count):
        tokens = torch.randint(3, 128, (2, 12), generator=torch.Generator().manual_seed(seed))
        loss = of(tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "phi3", "gpt_oss"])
def test_a_plain_loop_takes_the_same_steps(name: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    with opmux.trace() as trace:
        own = steps(patched)
    assert {"attention_backward", "rms_norm_backward", "apply_rope_backward"} <= {row.op for row in trace.rows}
    assert own == pytest.approx(steps(plain), rel=1e-4)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    tokens = ids()
    patched.gradient_checkpointing_enable()
    for of in (plain, patched):
        of.train()
        of(tokens, labels=tokens, use_cache=False).loss.backward()
    for own, theirs in zip(patched.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, theirs.grad, **CLOSE)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_gradient_checkpointing_computes_layers_again() -> None:
    patched = model()
    opmux_transformers.patch(patched)
    calls = []
    patched.model.layers[0].self_attn.register_forward_hook(lambda *call: calls.append(call))
    patched.gradient_checkpointing_enable()
    patched.train()
    patched(ids(), labels=ids(), use_cache=False).loss.backward()
    assert len(calls) == 2


def test_padded_batches_have_the_same_gradients() -> None:
    plain, patched = pair("gpt_oss")
    opmux_transformers.patch(patched)
    tokens = ids()
    mask = torch.ones_like(tokens)
    mask[0, 8:] = 0
    labels = tokens.masked_fill(mask == 0, -100)
    for of in (plain, patched):
        of(tokens, attention_mask=mask, labels=labels, use_cache=False).loss.backward()
    for own, theirs in zip(patched.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, theirs.grad, rtol=1e-3, atol=2e-5)


def test_dropout_of_probabilities_is_torchs() -> None:
    plain, patched = pair(attention_dropout=0.5)
    report = opmux_transformers.patch(patched)
    assert "attention drops 0.5 of its probabilities in training: torch computes it there" in report.notes
    patched.train()
    with opmux.trace() as trace:
        first, second = (logits(patched, ids(), use_cache=False) for _ in range(2))
    assert "attention" not in {row.op for row in trace.rows}
    assert not torch.equal(first, second)
    patched.eval()
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)


def test_a_frozen_base_gets_no_gradients() -> None:
    patched = model()
    opmux_transformers.patch(patched)
    patched.model.requires_grad_(False)
    patched(ids(), labels=ids()).loss.backward()
    assert patched.lm_head.weight.grad is not None
    assert all(p.grad is None for p in patched.model.parameters())


class Rows(torch.utils.data.Dataset):
    """Sixteen rows of random tokens."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.randint(3, 128, (10,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)}


@pytest.mark.filterwarnings("ignore")  # what Trainer's own dependencies warn of
def test_trainer_trains_saves_and_resumes(tmp_path) -> None:
    def train(of, folder, **changed):
        arguments = transformers.TrainingArguments(
            output_dir=str(folder), max_steps=4, per_device_train_batch_size=4, learning_rate=1e-2, use_cpu=True,
            report_to=[], disable_tqdm=True, save_strategy="steps", save_steps=2, logging_steps=1, seed=3,
            dataloader_pin_memory=False, **changed,
        )  # fmt: skip
        return transformers.Trainer(model=of, args=arguments, train_dataset=Rows())

    plain, patched = pair()
    opmux_transformers.patch(patched)
    resumed = copy.deepcopy(patched)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with opmux.trace() as trace:
            own = train(patched, tmp_path / "own").train()
        theirs = train(plain, tmp_path / "theirs").train()
        assert "attention_backward" in {row.op for row in trace.rows}
        assert own.training_loss == pytest.approx(theirs.training_loss, rel=1e-4)
        train(resumed, tmp_path / "own").train(resume_from_checkpoint=str(tmp_path / "own" / "checkpoint-2"))
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(logits(resumed, ids()), logits(patched, ids()), rtol=1e-3, atol=1e-3)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "own" / "checkpoint-4").eval()
    torch.testing.assert_close(logits(loaded, ids()), logits(patched.eval(), ids()), **CLOSE)
    assert opmux_transformers.report(patched).active
