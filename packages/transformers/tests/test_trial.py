"""A check changes nothing: buffers, observers, counters, attributes and hooks of a model see no random data."""

import copy
from collections import deque
from typing import Any

import pytest
import torch
from samples import CLOSE, LLAMA, NAMES, deep_looks, ids, logits, model, pair, reasons, train_alike
from torch import nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver
from torch.nn.utils import parametrizations, parametrize, prune

import opmux_transformers
from opmux_transformers.trial import Trial, difference_in_training, still


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_a_model_that_checkpoints_already_is_judged_without() -> None:
    plain, patched = pair()
    patched.gradient_checkpointing_enable()
    patched.train()
    assert opmux_transformers.patch(patched).left() == []
    assert all(layer.gradient_checkpointing and layer.training for layer in patched.model.layers)
    train_alike(patched, plain)


def test_what_training_writes_into_buffers_stays_out() -> None:
    class Counting(LLAMA.LlamaRMSNorm):
        def forward(self, hidden_states):
            if self.training:
                self.calls += 1
                self.mean.mul_(0.9)
            return super().forward(hidden_states)

    patched = model().train()
    patched.model.norm.__class__ = Counting
    patched.model.norm.register_buffer("calls", torch.tensor(0))
    patched.model.norm.register_buffer("mean", torch.ones(3))
    opmux_transformers.patch(patched)
    assert patched.model.norm.calls == 0
    assert torch.equal(patched.model.norm.mean, torch.ones(3))


WRITES = "it writes its own state when it is called: "


class RunningNorm(LLAMA.LlamaRMSNorm):
    """Keeps a running mean in training, as BatchNorm does."""

    def forward(self, hidden_states):
        if self.training:
            self.running_mean.lerp_(hidden_states.mean((0, 1) if hidden_states.ndim == 3 else 0), 0.1)
            self.num_batches_tracked += 1
        return super().forward(hidden_states)


class CountingNorm(LLAMA.LlamaRMSNorm):
    def forward(self, hidden_states):
        self.calls = self.calls + 1
        return super().forward(hidden_states)


class LoggingNorm(LLAMA.LlamaRMSNorm):
    def forward(self, hidden_states):
        self.seen.append(float(hidden_states.abs().max()))
        return super().forward(hidden_states)


class ReplacingNorm(LLAMA.LlamaRMSNorm):
    def forward(self, hidden_states):
        self.running_mean = hidden_states.mean().expand(3).clone()
        return super().forward(hidden_states)


class CountingMLP(LLAMA.LlamaMLP):
    def forward(self, x):
        self.calls = self.calls + 1
        return super().forward(x)


class CountingSiLU(nn.SiLU):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class CountingLayer(LLAMA.LlamaDecoderLayer):
    def forward(self, hidden_states, **kwargs):
        self.calls = self.calls + 1
        return super().forward(hidden_states, **kwargs)


class CountingAttention(LLAMA.LlamaAttention):
    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None, **kwargs):
        self.calls.add_(1)
        return super().forward(hidden_states, position_embeddings, attention_mask, past_key_values, **kwargs)


def _running(of: Any, cls: type[nn.Module]) -> None:
    norm = of.model.norm
    norm.__class__ = cls
    norm.register_buffer("running_mean", torch.zeros(64 if cls is RunningNorm else 3))
    norm.register_buffer("num_batches_tracked", torch.tensor(0))


def _counting_norm(of: Any) -> None:
    of.model.norm.__class__, of.model.norm.calls = CountingNorm, 0


def _logging_norm(of: Any) -> None:
    of.model.norm.__class__, of.model.norm.seen = LoggingNorm, deque()


def _counting_mlp(of: Any) -> None:
    mlp = of.model.layers[0].mlp
    mlp.__class__, mlp.calls = CountingMLP, 0


def _counting_activation(of: Any) -> None:
    of.model.layers[0].mlp.act_fn = CountingSiLU()


def _counting_layer(of: Any) -> None:
    layer = of.model.layers[0]
    layer.__class__, layer.calls = CountingLayer, 0


def _counting_attention(of: Any) -> None:
    attention = of.model.layers[0].self_attn
    attention.__class__ = CountingAttention
    attention.register_buffer("calls", torch.tensor(0))


@pytest.mark.parametrize(
    ("change", "kind", "module", "names"),
    [
        (lambda of: _running(of, RunningNorm), "norm", "model.norm", "`num_batches_tracked`, `running_mean`"),
        (lambda of: _running(of, ReplacingNorm), "norm", "model.norm", "`running_mean`"),
        (_counting_norm, "norm", "model.norm", "`calls`"),
        (_logging_norm, "norm", "model.norm", "`seen`"),
        (_counting_mlp, "gate", "model.layers.0.mlp", "`calls`"),
        (_counting_activation, "gate", "model.layers.0.mlp", "`act_fn.calls`"),
        (_counting_layer, "residual", "model.layers.0", "`calls`"),
        (_counting_attention, "attention", "model.layers.0.self_attn", "`calls`"),
    ],
    ids=["running-mean", "another-buffer", "number", "deque", "mlp", "activation", "layer", "attention"],
)
@pytest.mark.parametrize("training", [False, True])
def test_a_module_that_writes_its_own_state_is_left_and_named(change, kind, module, names, training) -> None:
    plain = model().train(training)
    change(plain)
    before = deep_looks(plain)
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(plain)
    assert reasons(report, kind)[module] == WRITES + names
    opmux_transformers.unpatch(plain)
    assert deep_looks(plain) == before
    opmux_transformers.patch(patched)
    for of in (plain, patched):
        logits(of, ids())
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)
    own, theirs = patched.state_dict(), plain.state_dict()
    assert all(torch.allclose(own[name].float(), theirs[name].float(), atol=1e-5) for name in theirs)


class Observed(nn.Linear):
    """A linear with fake quantisation of its input and weight, and an observer for each."""

    @classmethod
    def of(cls, linear: nn.Linear) -> "Observed":
        made = cls(linear.in_features, linear.out_features, bias=False)
        made.weight = linear.weight
        made.of_input, made.of_weight = (
            FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255) for _ in range(2)
        )
        return made

    def forward(self, x):
        return nn.functional.linear(self.of_input(x), self.of_weight(self.weight), self.bias)


def quantised_for_training() -> Any:
    made = model().train()
    for layer in made.model.layers:
        for part in (layer.mlp, layer.self_attn):
            for name, child in list(part.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(part, name, Observed.of(child))
    logits(made, ids())  # the observers have seen data
    return made


@pytest.mark.filterwarnings("ignore")  # torch.ao is deprecated
def test_an_attribute_that_is_no_number_is_not_written() -> None:
    module = nn.Identity()
    module.best, module.seen = float("nan"), [float("nan")]
    trial = Trial.random(module)
    trial(torch.ones(2))
    assert trial.written is None


def test_observers_of_quantisation_aware_training_see_no_random_data() -> None:
    patched = quantised_for_training()
    plain = copy.deepcopy(patched)
    before = deep_looks(patched)
    opmux_transformers.patch(patched)
    state = patched.state_dict()
    assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())
    opmux_transformers.unpatch(patched)
    assert deep_looks(patched) == before
    assert torch.equal(logits(patched.eval(), ids()), logits(plain.eval(), ids()))


@pytest.mark.filterwarnings("ignore")  # torch.ao is deprecated
def test_a_patched_model_in_quantisation_aware_training_observes_as_before() -> None:
    patched = quantised_for_training()
    plain = copy.deepcopy(patched)
    opmux_transformers.patch(patched)
    for of in (plain, patched):
        logits(of, ids(9))
    own, theirs = patched.state_dict(), plain.state_dict()
    for name in theirs:
        torch.testing.assert_close(own[name], theirs[name], rtol=1e-3, atol=1e-3, msg=name)


PLACES = ("model.norm", "model.layers.0", "model.layers.0.mlp", "model.layers.0.mlp.gate_proj", "model.rotary_emb",
          "model.layers.0.self_attn", "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.act_fn")  # fmt: skip
WHOLE = ("", "model")
"""Modules whose result is no tensor, as hooks of a backward need one."""


def test_no_hook_fires_on_random_data() -> None:
    patched = model()
    seen: list[str] = []
    for path in (*WHOLE, *PLACES):
        module = patched.get_submodule(path)
        module.register_forward_pre_hook(lambda *_: seen.append("before"))
        module.register_forward_hook(lambda *_: seen.append("after"), always_call=True)
        if path in WHOLE:
            continue
        module.register_full_backward_pre_hook(lambda *_: seen.append("before the backward"))
        module.register_full_backward_hook(lambda *_: seen.append("after the backward"))
    everywhere = nn.modules.module.register_module_forward_hook(lambda *_: seen.append("everywhere"))
    before_all = nn.modules.module.register_module_forward_pre_hook(lambda *_: seen.append("everywhere"))
    before = deep_looks(patched)
    try:
        opmux_transformers.patch(patched)
        assert seen == []
        opmux_transformers.unpatch(patched)
        assert seen == []
        assert deep_looks(patched) == before
        logits(patched, ids())
        assert {"before", "after", "everywhere"} <= set(seen)
    finally:
        everywhere.remove()
        before_all.remove()


def test_a_hook_that_removes_itself_is_left_for_the_first_call() -> None:
    """As of compressed-tensors, whose hook restores the weights."""
    patched = model()
    seen: list[str] = []

    def once(*_: object) -> None:
        seen.append("called")
        handle.remove()

    handle = patched.register_forward_pre_hook(once)
    opmux_transformers.patch(patched)
    assert seen == []
    logits(patched, ids())
    logits(patched, ids())
    assert seen == ["called"]


def test_a_hook_that_changes_what_it_sees_still_does() -> None:
    plain, patched = pair()
    for of in (plain, patched):
        of.model.norm.register_forward_hook(lambda _, args, result: result * 2)
        of.model.layers[0].register_forward_pre_hook(
            lambda _, args, kwargs: ((args[0] * 3, *args[1:]), kwargs), with_kwargs=True
        )
    assert opmux_transformers.patch(patched).replaced("norm") == 5
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)


@pytest.mark.parametrize(
    "change",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        lambda linear: prune.random_unstructured(linear, "weight", 0.3),
        nn.utils.spectral_norm,
    ],
    ids=["weight-norm", "spectral-norm", "pruned", "spectral-norm-by-hook"],
)
@pytest.mark.filterwarnings("ignore:.*spectral_norm.*is deprecated:FutureWarning")
def test_computed_weights_stay_as_they_are(change) -> None:
    patched = model().train()
    for layer in patched.model.layers:
        change(layer.mlp.up_proj)
        change(layer.self_attn.q_proj)
    before, expected = deep_looks(patched), {k: v.clone() for k, v in patched.state_dict().items()}
    report = opmux_transformers.patch(patched)
    assert report.replaced("attention") == 2
    opmux_transformers.unpatch(patched)
    assert deep_looks(patched) == before
    assert all(torch.equal(patched.state_dict()[name], value) for name, value in expected.items())


def test_a_parametrization_that_counts_is_not_called() -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, weight):
            self.calls += 1
            return weight

    patched = model()
    counting = Counting()
    parametrize.register_parametrization(patched.model.layers[0].mlp.up_proj, "weight", counting)
    counting.calls = 0
    opmux_transformers.patch(patched)
    assert counting.calls == 0


MORE = ("bloom", "cohere", "deepseek_v3", "glm4", "gpt_neox", "jamba", "mixtral", "olmoe", "phi",
        "qwen3_moe", "qwen3_next", "smollm3", "stablelm", "starcoder2")  # fmt: skip


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", [*NAMES, *MORE])
def test_after_unpatch_every_attribute_is_what_it_was(name: str, training: bool) -> None:
    patched = model(name).train(training)
    before = deep_looks(patched)
    opmux_transformers.patch(patched)
    opmux_transformers.unpatch(patched)
    assert deep_looks(patched) == before


def test_a_copy_shares_nothing_that_a_call_writes() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.inner = nn.BatchNorm1d(4)
            self.tensor, self.numbers, self.by_name = torch.zeros(4), [1, [2]], {"a": {"b": torch.zeros(2)}}
            self.again = self.step  # bound to the module
            self.count = 0

        def step(self) -> None:
            self.count += 1

        def forward(self, x):
            self.tensor += 1
            self.weight.data += 1
            self.numbers[1].append(3)
            self.by_name["a"]["b"] += 1
            self.again()
            return self.inner(x) * self.weight

    holder = Holder()
    before = deep_looks(holder)
    trial = Trial.own(holder)
    with still():
        x = torch.randn(3, 4)
        assert torch.equal(trial(x), trial(x))
        copied = trial.copy()
        copied(x)
    assert deep_looks(holder) == before
    assert copied.count == 1
    assert copied.numbers == [1, [2, 3]]


def test_what_cannot_be_copied_is_shared() -> None:
    import threading

    norm = LLAMA.LlamaRMSNorm(8)
    norm.lock, norm.outside = threading.Lock(), [nn.Linear(2, 2)]
    copied = Trial.own(norm).copy()
    assert copied.lock is norm.lock
    assert copied.outside[0] is norm.outside[0]


def test_the_modes_and_flags_of_a_module_stay() -> None:
    layer = model().model.layers[0].train()
    layer.gradient_checkpointing = True
    trial = Trial.random(layer)
    copied = trial.copy()
    assert not copied.training
    assert not copied.gradient_checkpointing
    assert layer.training
    assert layer.gradient_checkpointing


def test_what_draws_other_random_numbers_is_another_computation() -> None:
    drop = nn.Dropout(0.5)
    trial = Trial.own(drop)
    x = torch.ones(64)
    with still():
        same = difference_in_training(trial, x.device, lambda: trial(x), lambda: trial(x))
        other = difference_in_training(trial, x.device, lambda: trial(x), lambda: x)
    assert same is None
    assert other == "it computes something different in training"
