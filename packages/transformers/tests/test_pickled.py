"""Patched models in ``torch.save`` and ``copy.deepcopy``."""

import copy
import io

import pytest
import torch
from samples import NAMES, ids, logits, looks, ops_of, pair

import opmux_transformers


def saved_and_loaded(of) -> tuple[torch.nn.Module, bytes]:
    file = io.BytesIO()
    torch.save(of, file)
    file.seek(0)
    return torch.load(file, weights_only=False), file.getvalue()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_has_the_model_without_the_patch(name: str) -> None:
    plain, patched = pair(name)
    before = looks(patched)
    report = opmux_transformers.patch(patched)
    patched.config.use_cache = False
    loaded, content = saved_and_loaded(patched)
    assert b"opmux" not in content
    assert looks(loaded).keys() == before.keys()
    assert {path: seen[1].keys() for path, seen in looks(loaded).items() if isinstance(seen, tuple)} == {
        path: seen[1].keys() for path, seen in before.items() if isinstance(seen, tuple)
    }
    assert loaded.config is loaded.model.config
    assert (loaded.config._attn_implementation, loaded.config.use_cache) == ("eager", False)
    assert torch.equal(logits(loaded, ids()), logits(plain, ids()))
    assert opmux_transformers.patch(loaded).counts() == report.counts()
    torch.testing.assert_close(logits(loaded, ids()), logits(patched, ids()))
    assert "attention" in ops_of(patched)  # saving has changed nothing
    opmux_transformers.unpatch(patched)
    assert looks(patched) == before


def test_a_part_and_a_copy_of_a_patched_model_can_be_saved() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    other = copy.deepcopy(patched)
    with torch.no_grad():
        for parameter in patched.parameters():
            parameter.zero_()
    for of, expected in ((other, plain), (copy.deepcopy(other), plain), (other.model, plain.model)):
        loaded, content = saved_and_loaded(of)
        assert b"opmux" not in content
        with torch.no_grad():
            assert torch.equal(loaded(ids())[0], expected(ids())[0])
    layer = copy.deepcopy(other.model.layers[0])
    assert layer.mlp.forward.__self__ is layer.mlp
    opmux_transformers.unpatch(other)
    assert looks(other).keys() == looks(plain).keys()
    assert not any("__" in name for seen in looks(other).values() if isinstance(seen, tuple) for name in seen[1])


def test_a_part_that_is_patched_besides_can_be_saved() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched, gate=False)
    opmux_transformers.patch(patched.model)
    assert b"opmux" not in saved_and_loaded(patched)[1]
    loaded, _ = saved_and_loaded(patched.model)
    with torch.no_grad():
        assert torch.equal(loaded(ids())[0], plain.model(ids())[0])
    opmux_transformers.unpatch(patched.model)
    opmux_transformers.unpatch(patched)
    assert torch.equal(logits(patched, ids()), logits(plain, ids()))
