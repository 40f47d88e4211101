"""Models that are not what they seem: each stays correct, and the report names what was left and why."""

import copy
from collections.abc import Iterator

import pytest
import torch
import transformers
from samples import CLOSE, NAMES, SIZES, ids, logits, looks, model, ops_of, pair, reasons
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import opmux
import opmux_transformers
from opmux.errors import InvalidArgument
from opmux_transformers.configs import small_config
from opmux_transformers.undo import STATE


def test_a_model_on_the_meta_device_is_left_as_it_is() -> None:
    with torch.device("meta"):
        patched = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    before = looks(patched)
    report = opmux_transformers.patch(patched)
    meta = "it is on the meta device, where nothing can be checked: load the weights first"
    for kind in ("norm", "gate", "attention", "rope", "residual"):
        assert set(reasons(report, kind).values()) <= {
            meta,
            "no module was found that makes cos and sin for the check",
        }
        assert report.replaced(kind) == 0
    opmux_transformers.unpatch(patched)
    assert looks(patched) == before


def test_a_model_of_ones_own_without_anything_of_transformers() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(16))
            self.tiny = 1e-5

        def forward(self, x):
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.tiny) * self.weight

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both, self.last = nn.Linear(16, 64), nn.Linear(32, 16)

        def forward(self, x):
            gate, up = self.both(x).chunk(2, -1)
            return self.last(functional.gelu(gate) * up)

    plain = nn.Sequential(Norm(), Packed(), nn.RMSNorm(16, eps=1e-6), nn.LayerNorm(16, bias=False), nn.PReLU(16))
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert {(row.module, row.op) for row in report.rows if row.op} == {
        ("0", "rms_norm"), ("1", "gelu_and_mul"), ("2", "rms_norm"), ("3", "layer_norm"),
    }  # fmt: skip
    assert set(reasons(report, "norm")) == {"4"}
    assert "no attention of transformers was found in it" in report.notes
    x = torch.randn(3, 16)
    with opmux.trace() as trace, torch.no_grad():
        torch.testing.assert_close(patched(x), plain(x), **CLOSE)
    assert {row.op for row in trace.rows} == {"rms_norm", "layer_norm", "gelu_and_mul"}


KINDS = ("norm", "gate", "rope", "attention", "residual", "cache")


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
        "opmux_transformers.patch: `model` expected the options of the patch in force (gate=False), got gate=True;"
        " unpatch(model) first, or leave the options as they were"
    )


def test_linears_that_are_quantised_after_the_patch_are_patched_by_the_next() -> None:
    early, patched = model(), model()
    opmux.nn.quantize_(early)
    opmux_transformers.patch(early)
    first = opmux_transformers.patch(patched)
    report = opmux.nn.quantize_(patched)
    assert report.notes[0].endswith(
        " was replaced before: replace it again, now that layers are converted; if it was by"
        " opmux_transformers.patch(model), call that again"
    )
    again = opmux_transformers.patch(patched)
    assert again is not first
    assert not first.active
    assert again.replaced("linear") == len(report.converted())
    assert opmux_transformers.patch(patched) is again
    assert torch.equal(logits(patched, ids()), logits(early, ids()))
    assert ops_of(patched) == ops_of(early)
    assert "rms_norm_quantize" in ops_of(patched)
    opmux_transformers.unpatch(patched)
    opmux_transformers.unpatch(early)
    assert torch.equal(logits(patched, ids()), logits(early, ids()))


def test_a_part_of_a_patched_model_is_left_alone() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    report = opmux_transformers.patch(patched.model)
    assert {row.reason for row in report.left("norm")} == {"already patched by opmux, as part of another model"}
    assert report.replaced("norm") == report.replaced("attention") == 0
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_can_be_left_alone(kind: str) -> None:
    plain, patched = pair()
    report = opmux_transformers.patch(patched, **{kind: False})
    assert report.replaced(kind) == 0
    assert {row.reason for row in report.left(kind)} <= {
        f"not asked for: {kind}=False",
        "no norm follows a residual sum in it",
    }
    others = [other for other in KINDS if other not in (kind, "residual", "cache")]
    assert all(report.replaced(other) for other in others)
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)


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
            ' or a family such as "llama"',
        ),
        (
            lambda: opmux_transformers.patch(transformers.LlamaForCausalLM),
            "opmux_transformers.patch: `model` expected a torch.nn.Module or a family's name, got the class"
            ' LlamaForCausalLM; pass the model, or a family such as "llama"',
        ),
        (
            lambda: opmux_transformers.patch("meta-llama/Llama-3.2-1B"),
            "opmux_transformers.patch: `model` expected a model or the name of a family, got 'meta-llama/Llama-3.2-1B',"
            " which looks like a place of weights; load them and pass the model, or name its family before, as"
            ' "llama"',
        ),
        (
            lambda: opmux_transformers.patch(model(), gate="no"),
            "opmux_transformers.patch: `gate` expected True or False, got 'no'; pass False to skip it",
        ),
        (
            lambda: opmux_transformers.patch("llama", norm=0),
            "opmux_transformers.patch: `norm` expected True or False, got 0; pass False to skip it",
        ),
        (
            lambda: opmux_transformers.unpatch(None),
            "opmux_transformers.unpatch: `model` expected a torch.nn.Module or a family's name, got NoneType; pass the"
            ' model, or a family such as "llama"',
        ),
        (
            lambda: opmux_transformers.unpatch(3),
            "opmux_transformers.unpatch: `model` expected a torch.nn.Module or a family's name, got int; pass the"
            ' model, or a family such as "llama"',
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
            "opmux_transformers.unpatch: `model` expected a model that patch(model) has patched, got Linear, which"
            " is not patched; there is nothing to undo",
        ),
        (
            lambda: opmux_transformers.unpatch("llama"),
            'opmux_transformers.unpatch: `model` names the family llama, which patch("llama") has not patched',
        ),
        (
            lambda: opmux_transformers.report(torch.nn.Linear(2, 2)),
            "opmux_transformers.report: `model` expected a patched model, got Linear, which is not patched; call"
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
