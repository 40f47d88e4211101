"""Families by name: loaded or made, their models come patched; what is saved has nothing of the patch."""

import copy
import json
from collections.abc import Iterator

import pytest
import torch
import transformers
from samples import CLOSE, NAMES, SIZES, ids, logits, model, pair

import opmux_transformers
from opmux.errors import InvalidArgument
from opmux_transformers import configs
from opmux_transformers.undo import STATE


@pytest.fixture
def family() -> Iterator[str]:
    """Llama, patched by name for one test."""
    opmux_transformers.patch("llama")
    yield "llama"
    opmux_transformers.unpatch("llama")


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded_again_nothing_is_lost(name: str, tmp_path) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    patched.save_pretrained(tmp_path / "patched")
    plain.save_pretrained(tmp_path / "plain")
    own, theirs = (json.loads((tmp_path / which / "config.json").read_text()) for which in ("patched", "plain"))
    assert own == theirs
    assert "opmux" not in json.dumps(own)

    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "patched", attn_implementation="eager").eval()
    assert STATE not in vars(loaded)
    assert torch.equal(logits(loaded, ids()), logits(plain, ids()))
    report = opmux_transformers.patch(loaded)
    assert report.counts() == opmux_transformers.report(patched).counts()
    torch.testing.assert_close(logits(loaded, ids()), logits(patched, ids()))


@pytest.mark.parametrize("name", NAMES)
def test_a_family_patched_by_name_is_patched_when_it_is_loaded(name: str, tmp_path) -> None:
    plain = model(name)
    plain.save_pretrained(tmp_path)
    family_report = opmux_transformers.patch(name)
    try:
        assert opmux_transformers.patch(name) is family_report
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    finally:
        opmux_transformers.unpatch(name)
    report = opmux_transformers.report(loaded)
    assert report.replaced("attention") == 2
    torch.testing.assert_close(logits(loaded, ids()), logits(plain, ids()), **CLOSE)
    assert not family_report.active
    assert STATE not in vars(transformers.AutoModelForCausalLM.from_pretrained(tmp_path))


@pytest.mark.usefixtures("family")
def test_models_that_are_made_come_patched_too() -> None:
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    assert opmux_transformers.report(made).replaced("norm") == 5
    assert STATE not in vars(made.model)
    automatic = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SIZES))
    assert opmux_transformers.report(automatic).replaced("attention") == 2
    inner = transformers.LlamaModel(transformers.LlamaConfig(**SIZES))
    assert opmux_transformers.report(inner).replaced("attention") == 2


def test_a_model_on_the_meta_device_waits_for_its_weights() -> None:
    note = (
        "models of this family that are loaded or made from now on are patched; report(model) says how. One made on the"
        " meta device is patched when from_pretrained has loaded it; fill it by hand, and call patch(model)"
    )
    assert opmux_transformers.patch("llama").notes == [note]
    try:
        with torch.device("meta"):
            made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
        assert STATE not in vars(made)
        made.to_empty(device="cpu").init_weights()
        assert opmux_transformers.patch(made).replaced("attention") == 2
    finally:
        opmux_transformers.unpatch("llama")


@pytest.mark.usefixtures("family")
def test_a_construction_that_fails_hinders_no_later_one() -> None:
    class Fails(transformers.LlamaForCausalLM):
        def post_init(self):
            raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        Fails(transformers.LlamaConfig(**SIZES))
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    assert opmux_transformers.report(made).active


@pytest.mark.usefixtures("family")
def test_other_families_are_not_patched() -> None:
    assert STATE not in vars(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES)))


@pytest.mark.usefixtures("family")
def test_loading_says_what_it_says_without_the_patch(tmp_path) -> None:
    opmux_transformers.unpatch(patched := transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)))
    patched.save_pretrained(tmp_path)
    loaded, information = transformers.LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert opmux_transformers.report(loaded).active
    assert not information["missing_keys"]


def test_unpatching_a_family_restores_its_class() -> None:
    base = transformers.models.llama.modeling_llama.LlamaPreTrainedModel
    before = dict(vars(base))
    opmux_transformers.patch("llama", gate=False)
    with pytest.raises(InvalidArgument) as caught:
        opmux_transformers.patch("llama")
    assert str(caught.value) == (
        "opmux_transformers.patch: `model` expected the options that the family llama is patched with (gate=False), got"
        ' gate=True; unpatch("llama") first, or leave the options as they were'
    )
    opmux_transformers.unpatch("llama")
    assert dict(vars(base)) == before


def test_a_family_that_loads_in_its_own_way_is_refused(monkeypatch) -> None:
    base = transformers.models.llama.modeling_llama.LlamaPreTrainedModel
    monkeypatch.setattr(base, "from_pretrained", classmethod(lambda cls: None), raising=False)
    with pytest.raises(InvalidArgument) as caught:
        opmux_transformers.patch("llama")
    assert str(caught.value) == (
        "opmux_transformers.patch: `model` names a family whose LlamaPreTrainedModel has its own from_pretrained; patch"
        " its models one by one"
    )


def test_other_names_of_families() -> None:
    assert configs.canonical("Gemma3") == "gemma3_text"
    assert configs.canonical("gpt-oss") == "gpt_oss"
    assert configs.canonical("cohere") == "cohere"


def test_a_patched_state_dict_loads_into_an_unpatched_model() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    other = copy.deepcopy(plain)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert str(other.load_state_dict(patched.state_dict())) == "<All keys matched successfully>"
    assert torch.equal(logits(other, ids()), logits(plain, ids()))
