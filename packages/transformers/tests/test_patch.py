"""Patching and unpatching: one model alone, exactly undone, and what is asked for twice."""

import copy
import io
from collections.abc import Iterator

import pytest
import torch
import transformers
from samples import CLOSE, NAMES, ids, logits, looks, model, pair
from torch import distributed
from torch.distributed.fsdp import fully_shard

import opmux
import opmux_transformers
from opmux.errors import InvalidArgument, UnsupportedCall
from opmux_transformers import versions
from opmux_transformers.configs import small_config
from opmux_transformers.undo import STATE

KINDS = ("norm", "gate", "rope", "attention", "residual", "cache")


def ops_of(of) -> set[str]:
    with opmux.trace() as trace:
        logits(of, ids())
    return {row.op for row in trace.rows}


@pytest.mark.parametrize("name", NAMES)
def test_unpatch_puts_the_very_objects_back(name: str) -> None:
    patched = model(name)
    before, expected = looks(patched), logits(patched, ids())
    report = opmux_transformers.patch(patched)
    assert looks(patched) != before
    assert opmux_transformers.report(patched) is report
    assert opmux_transformers.unpatch(patched) is report
    assert looks(patched) == before
    assert torch.equal(logits(patched, ids()), expected)
    assert not report.active
    assert ops_of(patched) == set()


def test_other_models_do_not_notice_not_even_those_of_the_same_configuration() -> None:
    config = model().config
    one, other = (type(model())(config).eval() for _ in range(2))
    before, expected = looks(other), logits(other, ids())
    opmux_transformers.patch(one)
    assert looks(other) == before
    assert torch.equal(logits(other, ids()), expected)
    assert ops_of(other) == set()
    assert "attention" in ops_of(one)
    assert config._attn_implementation != one.config._attn_implementation == "opmux"


def test_names_and_values_of_parameters_stay() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    own, theirs = patched.state_dict(), plain.state_dict()
    assert list(own) == list(theirs)
    assert all(torch.equal(own[name], theirs[name]) for name in own)


def test_what_is_set_in_the_configuration_meanwhile_stays_set() -> None:
    patched = model()
    config = patched.config
    opmux_transformers.patch(patched)
    patched.config.use_cache = False
    patched.config.name_of_my_own = 3
    opmux_transformers.unpatch(patched)
    assert patched.config is config
    assert (config.use_cache, config.name_of_my_own) == (False, 3)
    assert config._attn_implementation == "eager"


def test_transformers_own_way_to_change_attention_still_works() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    patched.set_attn_implementation("sdpa")
    assert "attention" not in ops_of(patched)
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)


def test_the_report_says_which_attention_it_is_now() -> None:
    patched = model()
    report = opmux_transformers.patch(patched)
    patched.set_attn_implementation("sdpa")
    now = opmux_transformers.report(patched)
    assert now.counts()["attention"] == {"replaced": 0, "left": 2}
    assert {row.reason for row in now.left("attention")} == {
        "it was given back to transformers' 'sdpa' (set_attn_implementation)"
    }
    assert [row.reason for row in now.left("cache")] == [
        "generate keeps its ordinary cache: attention was given back to transformers' 'sdpa'"
    ]
    assert now.counts()["norm"] == report.counts()["norm"]
    assert opmux_transformers.patch(patched).as_dict() == now.as_dict()
    patched.set_attn_implementation("opmux")
    assert opmux_transformers.report(patched) is report
    opmux_transformers.unpatch(patched)
    assert patched.config._attn_implementation == "eager"


def test_a_model_of_a_patched_models_configuration_is_named() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    note = (
        "its configuration is that of a patched model and names opmux's attention already, which unpatch leaves;"
        " set_attn_implementation takes another"
    )
    for made in (
        type(patched)(patched.config),
        transformers.AutoModelForCausalLM.from_config(copy.deepcopy(patched.config)),
    ):
        made.load_state_dict(plain.state_dict())
        report = opmux_transformers.patch(made.eval())
        assert note in report.notes
        torch.testing.assert_close(logits(made, ids()), logits(plain, ids()), **CLOSE)
        opmux_transformers.unpatch(made)
        assert ops_of(made) == {"attention"}
        made.set_attn_implementation("eager")
        assert ops_of(made) == set()
    assert note not in opmux_transformers.report(patched).notes


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


def test_weights_that_come_after_the_patch_are_looked_at_by_the_next_one() -> None:
    plain = model()
    with torch.device("meta"):
        patched = transformers.LlamaForCausalLM(small_config("llama")).eval()
    first = opmux_transformers.patch(patched)
    assert first.replaced("norm") == first.replaced("attention") == 0
    assert first.notes[0] == "some of its tensors are on the meta device: load them, and call patch(model) again"
    assert opmux_transformers.patch(patched) is first
    patched.to_empty(device="cpu").load_state_dict(plain.state_dict())
    patched.model.rotary_emb.load_state_dict(plain.model.rotary_emb.state_dict())
    for name, buffer in plain.named_buffers():
        patched.get_buffer(name).copy_(buffer)
    second = opmux_transformers.patch(patched)
    assert not first.active
    assert second.left() == second.notes[1:] == []
    assert opmux_transformers.patch(patched) is second
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)
    assert "attention" in ops_of(patched)


@pytest.fixture
def mesh() -> Iterator[distributed.DeviceMesh]:
    """One process, as torchrun would have it."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.device_mesh.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def shard(of, mesh: distributed.DeviceMesh) -> None:
    for layer in of.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(of, mesh=mesh)


def test_what_is_sharded_already_is_left_with_one_reason(mesh: distributed.DeviceMesh) -> None:
    plain, patched = pair()
    shard(patched, mesh)
    report = opmux_transformers.patch(patched)
    assert [(row.kind, row.module, row.reason) for row in report.rows] == [
        (
            "model",
            "",
            "its parameters are sharded already (DTensor), and only whole ones can be checked: nothing was changed;"
            " patch a model first, then shard it",
        )
    ]
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)
    assert opmux_transformers.unpatch(patched) is report


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_a_patched_model_that_is_sharded_trains_alike(name: str, mesh: distributed.DeviceMesh) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    shard(patched, mesh)
    with opmux.trace() as trace:
        for of in (plain, patched):
            of.train()(ids(), labels=ids(), use_cache=False).loss.backward()
    assert {"attention_backward", "rms_norm_backward", "apply_rope_backward"} <= {row.op for row in trace.rows}
    for (path, own), theirs in zip(patched.named_parameters(), plain.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(own.grad.full_tensor(), theirs.grad, **CLOSE, msg=lambda m, p=path: f"{p}: {m}")


def test_patched_twice_is_patched_once() -> None:
    patched = model()
    before = looks(patched)
    report = opmux_transformers.patch(patched)
    once = looks(patched)
    assert opmux_transformers.patch(patched) is report
    assert looks(patched) == once
    opmux_transformers.unpatch(patched)
    assert looks(patched) == before


def test_patched_twice_with_other_options_is_refused() -> None:
    patched = model()
    opmux_transformers.patch(patched, gate=False)
    with pytest.raises(InvalidArgument) as caught:
        opmux_transformers.patch(patched)
    assert str(caught.value) == (
        "opmux_transformers.patch: `model` is patched already, with gate=False; unpatch(model) first, or leave the"
        " options as they were"
    )


def test_a_part_of_a_patched_model_is_left_alone() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    report = opmux_transformers.patch(patched.model)
    assert {row.reason for row in report.left("norm")} == {"already patched by opmux, as a part of another model"}
    assert report.replaced("norm") == report.replaced("attention") == 0
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_can_be_left_alone(kind: str) -> None:
    plain, patched = pair()
    report = opmux_transformers.patch(patched, **{kind: False})
    assert report.replaced(kind) == 0
    assert {row.reason for row in report.left(kind)} <= {
        f"not asked for: {kind}=False",
        "no norm follows a residual sum inside of it",
    }
    others = [other for other in KINDS if other not in (kind, "residual", "cache")]
    assert all(report.replaced(other) for other in others)
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)


def test_hooks_on_the_fused_norm_still_fire() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    seen = []
    handle = patched.model.layers[0].post_attention_layernorm.register_forward_hook(lambda *call: seen.append(call))
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)
    assert len(seen) == 1
    handle.remove()


def test_a_failed_patch_changes_nothing(monkeypatch) -> None:
    from opmux_transformers.kinds.cache import CacheKind

    patched = model()
    before = looks(patched)

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(CacheKind, "replace", fails)
    with pytest.raises(RuntimeError, match="no luck"):
        opmux_transformers.patch(patched)
    assert looks(patched) == before
    assert STATE not in vars(patched)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: opmux_transformers.patch(3),
            "opmux_transformers.patch: `model` expected a torch.nn.Module or a family's name, got int; pass the model,"
            ' or a name as "llama"',
        ),
        (
            lambda: opmux_transformers.patch(transformers.LlamaForCausalLM),
            "opmux_transformers.patch: `model` expected a torch.nn.Module or a family's name, got the class"
            ' LlamaForCausalLM; pass the model, or a name as "llama"',
        ),
        (
            lambda: opmux_transformers.patch("meta-llama/Llama-3.2-1B"),
            "opmux_transformers.patch: `model` expected a model or the name of a family, got 'meta-llama/Llama-3.2-1B',"
            " which looks like a place of weights; load them and pass the model, or name its family before, as"
            ' "llama"',
        ),
        (
            lambda: opmux_transformers.patch(model(), gate="no"),
            "opmux_transformers.patch: `gate` expected True or False, got 'no'; False leaves that alone",
        ),
        (
            lambda: opmux_transformers.patch("llama", norm=0),
            "opmux_transformers.patch: `norm` expected True or False, got 0; False leaves that alone",
        ),
        (
            lambda: opmux_transformers.unpatch(None),
            "opmux_transformers.unpatch: `model` expected a torch.nn.Module or a family's name, got NoneType; pass the"
            ' model, or a name as "llama"',
        ),
        (
            lambda: opmux_transformers.unpatch(3),
            "opmux_transformers.unpatch: `model` expected a torch.nn.Module or a family's name, got int; pass the"
            ' model, or a name as "llama"',
        ),
        (
            lambda: opmux_transformers.report(None),
            "opmux_transformers.report: `model` expected a torch.nn.Module, got NoneType; pass the model",
        ),
        (
            lambda: opmux_transformers.report("llama"),
            "opmux_transformers.report: `model` expected a torch.nn.Module, got str; pass the model",
        ),
        (
            lambda: opmux_transformers.patch("lama"),
            "opmux_transformers.patch: `model` expected the name of a family, got 'lama'; tested are llama, qwen2,"
            " qwen3, mistral, gemma2, gemma3_text, phi3, olmo2, granite, gpt_oss, and any other model_type of"
            " transformers may be named",
        ),
        (
            lambda: opmux_transformers.unpatch(torch.nn.Linear(2, 2)),
            "opmux_transformers.unpatch: `model` expected a model that patch(model) has patched, got Linear without a"
            " patch; nothing needs to be undone",
        ),
        (
            lambda: opmux_transformers.unpatch("llama"),
            'opmux_transformers.unpatch: `model` names the family llama, which patch("llama") has not patched',
        ),
        (
            lambda: opmux_transformers.report(torch.nn.Linear(2, 2)),
            "opmux_transformers.report: `model` expected a patched model, got Linear without a patch; call"
            " opmux_transformers.patch(model) first",
        ),
    ],
    ids=[
        "no-model", "class", "hub-name", "no-bool", "no-bool-of-a-family", "undo-none", "undo-number", "report-none",
        "report-name", "no-family", "nothing-to-undo", "family-not-patched", "no-report",
    ],
)  # fmt: skip
def test_wrong_use_is_said(call, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize("version", ["5.17.0", "5.20.2", "5.23.0", "5.23.9"])
def test_versions_that_are_known(version: str) -> None:
    versions.check_transformers(version)


@pytest.mark.parametrize("version", ["4.57.6", "5.16.1", "5.24.0", "6.0.0", "unknown"])
def test_versions_that_are_not_known_are_refused(version: str, monkeypatch) -> None:
    monkeypatch.setattr(versions.transformers, "__version__", version)
    with pytest.raises(UnsupportedCall) as caught:
        opmux_transformers.patch(model())
    assert str(caught.value) == (
        f"opmux_transformers: `transformers` expected a version from 5.17 to 5.23, got {version};"
        ' pip install "transformers>=5.17,<5.24", or see whether a newer opmux-transformers knows it'
    )


def test_the_report_is_data_and_a_table() -> None:
    patched = model("olmo2")
    report = opmux_transformers.patch(patched)
    data = report.as_dict()
    assert data["model"] == "Olmo2ForCausalLM"
    assert data["family"] == "olmo2"
    assert data["counts"]["norm"] == {"replaced": 9, "left": 0}
    assert data["rows"][0] == {
        "kind": "norm",
        "module": "model.layers.0.self_attn.q_norm",
        "status": "replaced",
        "op": "rms_norm",
        "reason": "",
        "class_name": "Olmo2RMSNorm",
    }
    text = str(report)
    assert "Olmo2ForCausalLM (olmo2)" in text
    assert ["norm", "9", "rms_norm", "model.layers.0.self_attn.q_norm", "and", "8", "more"] in [
        x.split() for x in text.splitlines()
    ]
    assert "no norm follows a residual sum inside of it" in text
    opmux_transformers.unpatch(patched)
    assert "Olmo2ForCausalLM (olmo2), undone" in str(report)


def test_importing_the_package_loads_no_transformers() -> None:
    import subprocess
    import sys

    code = "import sys, opmux_transformers, opmux_transformers.plugin; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_copy_made_before_the_patch_is_not_patched() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    assert STATE not in vars(plain)
    assert ops_of(copy.deepcopy(plain)) == set()


def test_the_checks_use_whole_float32_whatever_is_set() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        report = opmux_transformers.patch(model())
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert report.left() == []


def test_patching_leaves_the_generators_and_the_modes_alone() -> None:
    patched = model().train()
    patched.model.layers[0].eval()
    modes = [m.training for m in patched.modules()]
    state = torch.get_rng_state()
    opmux_transformers.patch(patched)
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in patched.modules()] == modes
