"""The makers of cos and sin."""

import torch
from samples import model
from torch import nn

from opmux_transformers.tables import Tables, find_tables, make, nearest


def test_they_are_found_by_their_frequencies() -> None:
    of = model()
    assert find_tables("model.rotary_emb", of.model.rotary_emb, torch.float32) == Tables("model.rotary_emb", 16, ((),))
    assert find_tables("model.norm", of.model.norm, torch.float32) is None


def test_each_kind_of_layer_has_its_own() -> None:
    of = model("gemma3_text")
    tables = find_tables("model.rotary_emb", of.model.rotary_emb, torch.float32)
    assert tables is not None
    assert tables.kinds == (("full_attention",), ("sliding_attention",))
    assert tables.kind_of(of.model.layers[0].self_attn) == ("sliding_attention",)
    angles = [make(of.model.rotary_emb, kind, 4, torch.float32)[0] for kind in tables.kinds]
    assert not torch.equal(*angles)


def test_other_holders_of_frequencies_are_none() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("inv_freq", torch.ones(8))

        def forward(self, x):
            return x

    assert find_tables("holder", Holder(), torch.float32) is None
    of = model()
    of.model.rotary_emb.to("meta")
    assert find_tables("model.rotary_emb", of.model.rotary_emb, torch.float32) is None


def test_making_them_writes_nothing() -> None:
    of = model(rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0})
    maker = of.model.rotary_emb
    before = {name: buffer.clone() for name, buffer in maker.named_buffers()}
    cached = maker.max_seq_len_cached
    make(maker, (), 300, torch.float32)  # longer than the model's own length: the maker takes other frequencies
    assert maker.max_seq_len_cached == cached
    assert all(torch.equal(buffer, before[name]) for name, buffer in maker.named_buffers())


def test_the_nearest_above_a_path() -> None:
    tables = ["model.rotary_emb", "model.vision.rotary_emb"]
    assert nearest("model.layers.0.self_attn", tables) == "model.rotary_emb"
    assert nearest("model.vision.blocks.0.attn", tables) == "model.vision.rotary_emb"
    assert nearest("other.attn", tables) is None
    assert nearest("other.attn", ["rotary_emb"]) == "rotary_emb"
