"""``opmux models``."""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from samples import NAMES, SIZES, opmux_cli

from opmux_transformers import check, configs, model_check, prompted

PAGE = Path(__file__).resolve().parents[3] / "docs" / "users" / "transformers.md"


@pytest.fixture(autouse=True)
def narrow(monkeypatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
def test_check_prints_the_report_and_the_comparisons(name: str) -> None:
    done = opmux_cli("models", "check", name)
    assert done.exit_code == 0, done.stdout + done.stderr
    assert "patched against unpatched" in done.stdout
    assert re.search(r"logits +float32 .* passed", done.stdout)
    assert re.search(r"attention +[12] +attention", done.stdout)


def test_check_as_json() -> None:
    done = opmux_cli("models", "check", "qwen3", "--json")
    assert done.exit_code == 0
    data = json.loads(done.stdout)
    assert set(data) == {"name", "family", "device", "passed", "failures", "comparisons", "report"}
    assert data["passed"] is True
    assert [(c["what"], c["dtype"]) for c in data["comparisons"]] == [
        (what, dtype) for dtype in ("float32", "bfloat16") for what in ("logits", "gradients", "tokens")
    ]
    assert data["report"]["counts"]["attention"] == {"replaced": 2, "left": 0}


def test_a_failure_exits_with_1(monkeypatch) -> None:
    monkeypatch.setitem(check.ROUNDING, torch.float32, -1.0)
    done = opmux_cli("models", "check", "llama")
    assert done.exit_code == 1
    assert re.search(r"logits +float32 .* failed", done.stdout)
    data = json.loads(opmux_cli("models", "check", "llama", "--json").stdout)
    assert data["failures"][0].startswith("logits in float32: ")


def test_a_configuration_in_a_file_and_any_model_type(tmp_path) -> None:
    config = transformers.MistralConfig(hidden_size=4096, sliding_window=4096, num_hidden_layers=32, rms_norm_eps=1e-4)
    config.save_pretrained(tmp_path)
    for path in (tmp_path, tmp_path / "config.json"):
        small = configs.small_config(str(path))
        assert (small.hidden_size, small.num_hidden_layers, small.sliding_window) == (64, 2, configs.WINDOW)
        assert small.rms_norm_eps == 1e-4
    done = opmux_cli("models", "check", str(tmp_path), "--json")
    assert done.exit_code == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name",
    [
        "smollm3",
        "cohere2",
        "qwen2_moe",
        "gemma",
        "stablelm",
        "glm",
        "helium",
        "starcoder2",
        "hunyuan_v1_dense",
        "gemma3n_text",
        "gemma4_text",
        "jamba",
        "modernbert",
    ],
)
@pytest.mark.filterwarnings("ignore")  # what transformers says of kernels that are not installed
def test_models_of_other_families_stay_correct(name: str) -> None:
    comparisons, report = check.compare(configs.small_config(name), torch.float32)
    assert [c for c in comparisons if not c.passed] == []
    assert report.rows


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("check", "no-such-model"),
            "error: opmux models: `name` expected a family, a model_type of transformers or a config.json, got"
            f" 'no-such-model'; tested are {', '.join(NAMES)}\n",
        ),
        (
            ("check", "llama", "--device", "tpu"),
            "error: opmux models check: `device` expected cpu, or cuda where torch sees a GPU, got tpu; pass cpu\n",
        ),
        (
            ("check", "vit"),
            "error: opmux models check: `name` expected a model for text that runs at a small size, got 'vit':"
            " ValueError: Unrecognized configuration class"
            " <class 'transformers.models.vit.configuration_vit.ViTConfig'> for this kind of AutoModel:"
            " AutoModelForCausalLM.; name another, or pass your model to opmux_transformers.patch\n",
        ),
        (
            ("check", "moonshine"),
            "error: opmux models check: `name` expected a model for text that runs at a small size, got 'moonshine':"
            " ValueError: its encoder reads neither tokens nor a spectrum of sound, which a check could make; name"
            " another, or pass your model to opmux_transformers.patch\n",
        ),
    ],
    ids=["unknown", "device", "no-text", "no-tokens"],
)
def test_wrong_use_exits_with_2(words: tuple[str, ...], message: str) -> None:
    done = opmux_cli("models", *words)
    assert (done.exit_code, done.stderr) == (2, message)


def test_a_model_that_does_not_become_small_exits_with_2(monkeypatch) -> None:
    monkeypatch.setattr(model_check, "LARGEST", 1000)
    done = opmux_cli("models", "check", "llama")
    size = sum(p.numel() for p in check.build(configs.small_config("llama"), torch.float32).parameters())
    assert (done.exit_code, done.stderr) == (
        2,
        "error: opmux models check: `name` expected a model for text that runs at a small size, got 'llama':"
        f" ValueError: it has {size} parameters when it is made small, more than 1000; name another, or pass your model"
        " to opmux_transformers.patch\n",
    )


ENCODING = ("bart", "t5", "marian", "whisper", "t5gemma", "pegasus", "m2m_100")


@pytest.mark.parametrize("name", ENCODING)
@pytest.mark.filterwarnings("ignore")  # what transformers says of tokens that the small models do not have
def test_encoders_with_decoders(name: str) -> None:
    comparisons, report = check.compare(configs.small_config(name), torch.float32)
    assert [(c.what, c.passed) for c in comparisons] == [("logits", True), ("gradients", True), ("tokens", True)]
    assert report.replaced("norm") >= 8
    assert all(row.reason for row in report.left())


def test_the_decoder_of_a_check_depends_on_what_its_encoder_reads() -> None:
    for name in ("bart", "t5", "whisper"):
        model, ids = check.build(configs.small_config(name), torch.float32), check.prompts(configs.small_config(name))
        other = prompted.source(model.config, check.prompts(model.config, 1))
        with torch.no_grad():
            own, theirs = prompted.call(model, ids).logits, model(**other, decoder_input_ids=ids).logits
        assert float((own - theirs).abs().max()) > 0.1
        tokens = prompted.generated(model, ids)
        assert tokens.shape == (2, 1 + prompted.NEW_TOKENS)
        chosen = prompted.logits_after(model, ids, tokens)
        assert torch.equal(chosen.argmax(-1), tokens[:, 1:])


@pytest.mark.parametrize(
    ("name", "codes", "read"),
    [
        ("bart", "fp8", "the same prompts"),
        ("t5", "int8", "the same prompts"),
        ("whisper", "fp8", "random numbers in the place of sound"),
    ],
)
def test_the_command_on_an_encoder_with_a_decoder(name: str, codes: str, read: str) -> None:
    done = opmux_cli("models", "check", name, "--device", "cpu", "--quantize", codes, "--json")
    assert done.exit_code == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    last = [c["what"] for c in result["comparisons"] if c["dtype"] == f"{codes} codes"]
    assert last == ["modules", "logits", "tokens"]
    note = f"its decoder's logits and tokens are compared, after an encoder that reads {read}"
    assert note in result["report"]["notes"]
    left = [row for row in result["report"]["rows"] if row["status"] == "left"]
    assert {row["kind"] for row in left} >= {"attention", "cache"}
    assert all(row["reason"] for row in left)


def test_a_file_that_is_no_configuration_exits_with_2(tmp_path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    file = tmp_path / "other.json"
    file.write_text('{"hidden_size": 64')
    done = opmux_cli("models", "check", str(file))
    assert (done.exit_code, done.stderr) == (
        2,
        f"error: opmux models: `name` expected a configuration that can be read and made small, got {str(file)!r}:"
        f" OSError: It looks like the config file at '{file}' is not a valid JSON file.; name one of a model for"
        " text\n",
    )


def test_the_small_configurations_have_the_sizes_that_are_said() -> None:
    for name in NAMES:
        config = configs.small_config(name)
        assert all(
            getattr(config, key) == value for key, value in SIZES.items() if key in ("hidden_size", "vocab_size")
        )


@pytest.mark.parametrize("name", ["llama4", "gemma3n"])
def test_a_configuration_of_text_and_images_stands_for_its_text_model(name: str) -> None:
    config = configs.small_config(name)
    assert config.model_type == f"{name}_text"
    assert (config.hidden_size, config.num_hidden_layers) == (SIZES["hidden_size"], SIZES["num_hidden_layers"])


def test_an_encoder_that_was_made_no_decoder_fills_masks() -> None:
    config = configs.small_config("roberta")
    assert check.fills_masks(config)
    config.is_decoder = True
    assert not check.fills_masks(config)
    assert not check.fills_masks(configs.small_config("llama"))


def test_a_model_that_only_fills_masks_generates_no_tokens() -> None:
    done = opmux_cli("models", "check", "modernbert", "--device", "cpu", "--quantize", "fp8", "--json")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert [c["what"] for c in result["comparisons"]] == ["logits", "gradients"] * 2 + ["modules", "logits"]
    assert (
        "it fills masks and generates no text: logits and gradients are compared, no tokens"
        in (result["report"]["notes"])
    )


@pytest.mark.parametrize("codes", ["fp8", "int8"])
def test_the_check_of_a_quantised_model(codes: str) -> None:
    done = opmux_cli("models", "check", "qwen3", "--device", "cpu", "--quantize", codes, "--json")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    last = [c for c in result["comparisons"] if c["dtype"] == f"{codes} codes"]
    assert [(c["what"], c["passed"]) for c in last] == [("modules", True), ("logits", True), ("tokens", True)]
    assert result["report"]["counts"]["quantize"] == {"replaced": 14, "left": 1}


def test_an_unknown_form_of_codes() -> None:
    done = opmux_cli("models", "check", "qwen3", "--device", "cpu", "--quantize", "fp4")
    assert done.exit_code == 2
    assert "`quantize` expected fp8 or int8, got fp4; leave it out for none" in done.stderr
