"""What several tests share: small models, what they compute, and what a patch must change and restore of them."""

import contextlib
import copy
import io
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from torch import Tensor, nn

import opmux
from opmux_transformers import check
from opmux_transformers.configs import FAMILIES, SIZES, small_config

__all__ = ["SIZES"]

NAMES = tuple(FAMILIES)


def first_of(names: Iterable[str]) -> list[Any]:
    """Parameters of a test that compiles a model for each: all but the first one are left to the whole session."""
    first, *others = names
    return [first, *(pytest.param(name, marks=pytest.mark.long) for name in others)]


HAS_GATE = tuple(name for name in NAMES if name != "gpt_oss")
CLOSE = {"rtol": 1e-4, "atol": 2e-5}
TRAINING = "it computes something different in training"
LLAMA = transformers.models.llama.modeling_llama
GREEDY: dict[str, Any] = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False}


def model(name: str = "llama", dtype: torch.dtype = torch.float32, **changed: Any) -> Any:
    """A small random model of a family; keywords change its configuration."""
    config = small_config(name)
    for key, value in changed.items():
        setattr(config, key, value)
    return check.build(config, dtype)


def pair(name: str = "llama", dtype: torch.dtype = torch.float32, **changed: Any) -> tuple[Any, Any]:
    """The same model twice: one to leave as it is, one to patch."""
    plain = model(name, dtype, **changed)
    return plain, copy.deepcopy(plain)


def ids(seq: int = 12, batch: int = 2) -> Tensor:
    """Random tokens."""
    return torch.randint(3, 128, (batch, seq), generator=torch.Generator().manual_seed(5))


def logits(of: Any, tokens: Tensor, **keywords: Any) -> Tensor:
    """What a model gives, without gradients."""
    with torch.no_grad():
        return of(tokens, **keywords).logits


def greedy_by_steps(step: Any, tokens: Tensor, cache: Any, first: Any) -> Tensor:
    """The prompt and what follows it as in `GREEDY`: the prompt by ``first``, then one token at a time by ``step``."""
    new = logits(first, tokens, past_key_values=cache)[:, -1:].argmax(-1)
    found = [tokens, new]
    for _ in range(GREEDY["max_new_tokens"] - 1):
        new = logits(step, new, past_key_values=cache)[:, -1:].argmax(-1)
        found.append(new)
    return torch.cat(found, 1)


def looks(of: nn.Module) -> dict[str, Any]:
    """Every object that a patch may touch: each module's own attributes by identity, and the names of its class."""
    seen = {}
    for path, module in of.named_modules():
        seen[path] = (type(module), {key: id(value) for key, value in vars(module).items()})
        for key in ("_parameters", "_buffers"):
            seen[f"{path}.{key}"] = {name: id(value) for name, value in vars(module)[key].items()}
    return seen


def deep_looks(of: nn.Module) -> dict[str, Any]:
    """Everything that a module and its children hold: each object by identity, and what is in it bit by bit."""

    def inside(value: Any) -> Any:
        if isinstance(value, Tensor):
            bits = value.detach().flatten().view(torch.uint8).tolist()
            return value.dtype, tuple(value.shape), value._version, bits
        if isinstance(value, Mapping):
            return {key: seen(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple, set, deque)):
            return [seen(inner) for inner in value]
        if isinstance(value, transformers.PreTrainedConfig):
            return {key: seen(inner) for key, inner in vars(value).items()}
        return value if isinstance(value, (bool, int, float, str)) else None

    def seen(value: Any) -> tuple[Any, ...]:
        return type(value), None if isinstance(value, (bool, int, float, str)) else id(value), inside(value)

    return {
        path: (type(module), {name: seen(value) for name, value in vars(module).items()})
        for path, module in of.named_modules()
    }


def reasons(report: Any, kind: str) -> dict[str, str]:
    """Why each module was left that a report names for a kind."""
    return {row.module: row.reason for row in report.left(kind)}


def children(of: nn.Module, matches: Callable[[nn.Module], bool]) -> list[str]:
    """The paths of the modules that match."""
    return [path for path, module in of.named_modules() if matches(module)]


def subclassed(module: nn.Module, forward) -> None:
    """Give a module a class that subclasses its own and computes something else."""
    own = {"forward": forward, "__module__": forward.__module__}
    module.__class__ = type(f"My{type(module).__name__}", (type(module),), own)


def changed_attention():
    """LlamaAttention's forward in a class of its own, with something changed."""
    source = transformers.models.llama.modeling_llama
    module = types.ModuleType("strangers_modeling")
    module.__dict__.update({k: v for k, v in vars(source).items() if not k.startswith("__")})
    code = """
class StrangersAttention(LlamaAttention):
    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None, **kwargs):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        k = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        cos, sin = position_embeddings
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        out, weights = attend(self, q, k, v, attention_mask, scaling=SCALING, dropout=0.0, EXTRA**kwargs)
        return self.o_proj(out.reshape(*hidden_states.shape[:-1], -1)) * FACTOR, weights
"""
    return module, code


class Adapted(nn.Module):
    """A linear with a low-rank term and dropout before it, as PEFT wraps them."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.in_features, self.out_features = base, base.in_features, base.out_features
        self.drop = nn.Dropout(0.1)
        self.down = nn.Linear(base.in_features, 4, bias=False, dtype=base.weight.dtype)
        self.up = nn.Linear(4, base.out_features, bias=False, dtype=base.weight.dtype)

    def forward(self, x):
        return self.base(x) + self.up(self.down(self.drop(x)))


def agree(patched, plain) -> None:
    """Both give the same logits."""
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)


def train_alike(patched, plain) -> None:
    """From the same random numbers on both take the same step, and leave the generator at the same place."""
    seen = []
    for of in (plain, patched):
        of.train()
        torch.manual_seed(7)
        loss = of(ids(), labels=ids()).loss
        loss.backward()
        seen.append((loss.detach(), torch.get_rng_state(), [p.grad for p in of.parameters() if p.grad is not None]))
        of.eval()
    (theirs, their_state, their_grads), (own, own_state, own_grads) = seen
    torch.testing.assert_close(own, theirs, **CLOSE)
    assert torch.equal(own_state, their_state)
    for mine, other in zip(own_grads, their_grads, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


def t5(rate: float):
    """A small T5 with such dropout."""
    config = transformers.T5Config(
        vocab_size=128, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
        dropout_rate=rate, pad_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config).eval()


def ops_of(of) -> set[str]:
    """The ops that a model calls."""
    with opmux.trace() as trace:
        logits(of, ids())
    return {row.op for row in trace.rows}


def generated(of, tokens, **changed):
    """What a model generates, greedily."""
    return of.generate(tokens, attention_mask=torch.ones_like(tokens), **{**GREEDY, **changed})


def opmux_cli(*words: str) -> SimpleNamespace:
    """Run the command line in this process: its ``exit_code``, ``stdout`` and ``stderr``."""
    (script,) = entry_points(group="console_scripts", name="opmux")
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["opmux", *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            script.load()()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return SimpleNamespace(exit_code=code, stdout=out.getvalue(), stderr=err.getvalue())
