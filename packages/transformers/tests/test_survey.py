"""The survey of many families: every attention has a row, and every reason says something true of the module."""

import re
from typing import Any

import pytest
import torch
import transformers
from samples import GREEDY, NAMES, ids, reasons
from torch import nn

import opmux_transformers
from opmux_transformers import PagedCache, check
from opmux_transformers.configs import FAMILIES, small_config

SIZES = {"vocab_size": 128, "pad_token_id": 0}


GPT = {**SIZES, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}


NOT_SHRUNK = {
    "bloom": lambda: transformers.BloomConfig(**SIZES, hidden_size=64, n_layer=2, n_head=4),
    "codegen": lambda: transformers.CodeGenConfig(**GPT, rotary_dim=8),
    "ctrl": lambda: transformers.CTRLConfig(**GPT, dff=96),
    "falcon": lambda: transformers.FalconConfig(
        **SIZES, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, alibi=False
    ),
    "gpt2": lambda: transformers.GPT2Config(**GPT),
    "gpt_bigcode": lambda: transformers.GPTBigCodeConfig(**GPT),
    "gpt_neo": lambda: transformers.GPTNeoConfig(
        **SIZES, hidden_size=64, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
        max_position_embeddings=64,
    ),
    "gptj": lambda: transformers.GPTJConfig(**GPT, rotary_dim=8),
    "mamba": lambda: transformers.MambaConfig(**SIZES, hidden_size=64, num_hidden_layers=2, state_size=8),
    "mpt": lambda: transformers.MptConfig(**SIZES, d_model=64, n_layers=2, n_heads=4, max_seq_len=64),
    "openai-gpt": lambda: transformers.OpenAIGPTConfig(**GPT),
    "xglm": lambda: transformers.XGLMConfig(
        **SIZES, d_model=64, ffn_dim=96, num_layers=2, attention_heads=4, max_position_embeddings=64
    ),
    "xlnet": lambda: transformers.XLNetConfig(**SIZES, d_model=64, n_layer=2, n_head=4, d_inner=96),
}  # fmt: skip
"""Families whose configurations name their sizes in ways of their own."""


OTHERS = (
    "arcee", "biogpt", "cohere", "cohere2", "deepseek_v3", "diffllama", "doge", "ernie4_5", "exaone4",
    "gemma", "gemma3n_text", "glm", "glm4", "gpt_neox", "gpt_neox_japanese", "granitemoe", "helium", "jamba", "jetmoe",
    "llama4_text", "minimax", "mixtral", "moshi", "nemotron", "olmo", "olmoe", "opt", "persimmon", "phi", "qwen2_moe",
    "qwen3_moe", "qwen3_next", "roformer", "seed_oss", "smollm3", "stablelm", "starcoder2",
)  # fmt: skip


ALL = tuple(sorted({*NAMES, *NOT_SHRUNK, *OTHERS}))


def small(name: str) -> Any:
    """A small model of a family that can run."""
    config = NOT_SHRUNK[name]() if name in NOT_SHRUNK else small_config(name)
    return check.build(config, torch.float32)


RAW = re.compile(r"\w+Error: |NoneType|object has no|not subscriptable|unexpected keyword|size of tensor|unpack")
"""What only Python or torch says."""


def test_as_many_families_as_the_survey_had_are_known() -> None:
    assert len(ALL) >= 55
    assert set(FAMILIES) <= set(ALL)


@pytest.mark.filterwarnings("ignore")  # what transformers says of configurations this small
@pytest.mark.parametrize("name", ALL)
def test_every_attention_has_a_row_and_no_reason_is_an_exception(name: str) -> None:
    model = small(name)
    report = opmux_transformers.patch(model)
    assert [row for row in report.rows if RAW.search(row.reason)] == []
    assert [row for row in report.left() if not row.reason] == []
    rows = [row.module for row in report.rows if row.kind == "attention"]
    attentions = [path for path, m in model.named_modules() if is_attention(m)]
    assert attentions or name == "mamba"
    for path in attentions:
        above_or_below = [row for row in rows if f"{path}.".startswith(f"{row}.") or row.startswith(f"{path}.")]
        assert above_or_below, f"{path} has no row"
    named = {row.module: row.class_name for row in report.rows}
    classes = {path: type(module).__name__ for path, module in model.named_modules()}
    assert all(classes[path] == class_name for path, class_name in named.items())


def is_attention(module: nn.Module) -> bool:
    """By its name, which the survey itself does not look at."""
    return "Attention" in type(module).__name__ and next(module.parameters(), None) is not None


@pytest.mark.parametrize("name", ["bloom", "falcon", "gptj", "mpt", "xglm"])
def test_attention_that_does_not_ask_the_registry_says_so(name: str) -> None:
    left = reasons(opmux_transformers.patch(small(name)), "attention")
    assert len(left) == 2
    (reason,) = set(left.values())
    by_torch = "it calls torch's scaled_dot_product_attention by name, which cannot be replaced for one model alone"
    own = "it mixes tokens in its own code, not through transformers' attention registry"
    assert reason.startswith(by_torch if name == "falcon" else own)


@pytest.mark.parametrize("name", ["mamba", "xlnet", "jamba"])
def test_convolutions_and_attentions_are_no_mixtures_of_experts(name: str) -> None:
    report = opmux_transformers.patch(small(name))
    assert {row.class_name for row in report.rows if row.kind == "experts"} <= {"JambaExperts"}


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("doge", "attention", "it makes its own attention mask"),
        ("diffllama", "attention", "its forward calls attention 2 times, expected once"),
        ("moshi", "attention", "its forward may need `position_ids`, `codebook_idx`, which a check cannot provide"),
        ("jetmoe", "experts", "it computes its experts in its own code, not through transformers' experts registry"),
        ("moshi", "gate", "its forward raises ValueError on the input of a check"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_reasons(name: str, kind: str, reason: str) -> None:
    assert reason in reasons(opmux_transformers.patch(small(name)), kind).values()


@pytest.mark.filterwarnings("ignore")  # older versions of transformers script some of their functions
@pytest.mark.parametrize("name", ["gpt_neox", "gpt_bigcode"])
def test_a_cache_by_another_name_is_a_cache(name: str) -> None:
    """Its parameter is called ``layer_past``."""
    plain, patched = small(name), small(name)
    assert opmux_transformers.patch(patched).replaced("cache") == 1
    mask = torch.ones_like(ids())
    for padded in (0, 3):
        mask[0, :padded] = 0
        settings = {"attention_mask": mask, **GREEDY, "return_dict_in_generate": True}
        own, theirs = (of.generate(ids(), **settings) for of in (patched, plain))
        assert isinstance(own.past_key_values, PagedCache)
        assert torch.equal(own.sequences, theirs.sequences)


def test_a_model_without_a_cache_of_generate_says_why() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = small("llama").model.norm

    report = opmux_transformers.patch(Holder())
    assert list(reasons(report, "cache").values()) == ["generate keeps its ordinary cache: the model does not generate"]
