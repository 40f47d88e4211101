"""What is known of an attention module before it is called."""

import torch
from samples import model

from opmux_transformers.probe import Probe, is_candidate, probe, rotary_functions, rotates, unregistered, window_of
from opmux_transformers.survey import Survey

OPTIONS = dict.fromkeys(("norm", "gate", "rope", "attention", "residual", "cache"), True)


def test_candidates_ask_the_registry() -> None:
    of = model("qwen3")
    attention = of.model.layers[0].self_attn
    assert is_candidate(attention)
    assert rotates(attention)
    assert not is_candidate(of.model.layers[0])
    assert list(rotary_functions(type(attention).forward)) == ["apply_rotary_pos_emb"]


def test_the_window_of_a_layer() -> None:
    of = model("gemma2")
    assert [window_of(layer.self_attn) for layer in of.model.layers] == [6, None]
    assert window_of(model("mistral").model.layers[0].self_attn) == 6
    assert window_of(model().model.layers[0].self_attn) is None


def test_a_probe_has_what_a_forward_needs() -> None:
    survey = Survey(model(), OPTIONS)
    made = probe(survey, "model.layers.0.self_attn")
    assert isinstance(made, Probe)
    assert {"hidden_states", "attention_mask", "position_embeddings", "past_key_values"} == made.given.keys()
    assert made.mask.shape == (2, 1, 9, 9)
    assert made.expected.shape == (2, 9, 64)
    assert made.trial.written is None
    assert probe(survey, "model.layers.0.self_attn") is made
    assert torch.equal(made.expected, probe(survey, "model.layers.0.self_attn").expected)  # type: ignore[union-attr]


def test_a_probe_says_why_there_is_none() -> None:
    of = model()
    of.model.layers[0].self_attn.is_causal = False
    of.model.layers[1].self_attn.to("meta")
    survey = Survey(of, OPTIONS)
    assert probe(survey, "model.layers.0.self_attn") == (
        "it attends in both directions, but the masks of its model are causal"
    )
    assert probe(survey, "model.layers.1.self_attn") == (
        "it is on the meta device, where nothing can be checked: load the weights first"
    )


def test_what_does_not_ask_the_registry_is_found_by_its_mask() -> None:
    assert unregistered(Survey(model("bloom"), OPTIONS)) == [f"transformer.h.{i}.self_attention" for i in range(2)]
    assert unregistered(Survey(model(), OPTIONS)) == []
