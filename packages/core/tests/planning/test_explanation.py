"""explain: what it says of every candidate, as data and as a table; and the choice that it names is what runs."""

import json

import pytest
import torch
from backends import backends, implementation, plugin

import opmux
from opmux.errors import InvalidArgument, UnknownBackend
from opmux.plugin import AtMost, Exact, MultipleOf, Priority

X, W = torch.randn(4, 8), torch.randn(8)


def ones(x, weight, *, eps, weight_offset, config=None):
    return torch.ones_like(x)


@pytest.fixture
def several():
    """One chosen with a config, one accepted, one rejected by a constraint, one by its arch, one failed plugin."""
    with backends(
        triton=implementation(
            ones,
            when=(MultipleOf("hidden", 8),),
            config=lambda arch, features: {"block": 8192, "warps": 8},
        ),
        asm=implementation(ones, name="rows", when=(AtMost("hidden", 4),), priority=Priority.SPECIALISED),
        cutile=implementation(ones, archs=("sm_90+",)),
        ck=plugin(version=2),
    ):
        yield


@pytest.mark.usefixtures("several")
def test_explain_prints_a_table():
    assert str(opmux.explain(opmux.rms_norm, X, W, arch="gfx942")).splitlines() == [
        "rms_norm on gfx942 -> triton                          plan key: f32 f32 | hidden <= 4 no, hidden % 8 == 0 yes",
        "  1  triton     opmux-triton 1.2.3  chosen    priority 10; block 8192, warps 8 "
        "(heuristic: no tuned record for gfx942)",
        "  2  reference  opmux 0.1.0         accepted  priority 0",
        "  -  asm:rows   opmux-asm 1.2.3     rejected  hidden = 8 is more than 4",
        "  -  cutile     opmux-cutile 1.2.3  rejected  archs: sm_90+, this is gfx942",
        "plugins that failed to load",
        "  ck  opmux-ck 1.2.3  API version 2, this core speaks 1: pip install -U opmux",
    ]


@pytest.mark.usefixtures("several")
def test_explain_is_data():
    plan = opmux.explain(opmux.rms_norm, X, W)
    assert plan.chosen is plan.candidates[0]
    assert plan.chosen.name == "triton"
    assert plan.config == {"block": 8192, "warps": 8}
    data = json.loads(json.dumps(plan.as_dict()))
    assert set(data) == {
        "op", "arch", "call", "key", "chosen", "config", "config_source", "scores", "candidates", "failed_plugins",
    }  # fmt: skip
    assert data["chosen"] == "triton"
    assert data["config_source"] == "heuristic"
    assert set(data["candidates"][0]) == {
        "name", "distribution", "version", "status", "reason", "caveats", "time_us", "time_source",
    }  # fmt: skip
    assert set(data["failed_plugins"][0]) == {"name", "distribution", "version", "reason"}
    assert data["call"] == "x float32[4, 8], weight float32[8]"


@pytest.mark.usefixtures("several")
def test_explain_says_what_would_run():
    for arguments in ((X, W), (X.double(), W), (torch.randn(3, 12), torch.randn(12))):
        plan = opmux.explain(opmux.rms_norm, *arguments)
        with opmux.trace() as trace:
            opmux.rms_norm(*arguments)
        assert [row.backend for row in trace.rows] == [plan.chosen.name]


def test_explain_takes_meta_tensors_and_options():
    x, w = X.to("meta"), W.to("meta")
    assert opmux.explain(opmux.rms_norm, x, w, eps=1e-5).call.endswith("eps=1e-05")
    assert opmux.explain(opmux.rms_norm, x, weight=w, arch="sm_90").arch == "sm_90"
    text = str(opmux.explain(opmux.rms_norm, x, w, arch="sm_90"))
    assert text.splitlines()[-1] == "nothing but the reference takes this call: install a backend for sm_90"


def test_explain_of_what_is_wrong():
    with pytest.raises(InvalidArgument) as caught:
        opmux.explain("rms_norm", X, W)
    assert str(caught.value) == "explain: `op` expected an op, as opmux.rms_norm, got 'rms_norm'; see `opmux ops`"
    with pytest.raises(InvalidArgument) as caught:
        opmux.explain(opmux.rms_norm.op, X, W)
    assert str(caught.value) == (
        "explain: `op` expected an op, as opmux.rms_norm, got the Op of rms_norm; pass opmux.rms_norm"
    )
    with pytest.raises(InvalidArgument) as caught:
        opmux.explain(opmux.rms_norm, X, W, arch=90)
    assert str(caught.value) == (
        "arch: `arch` expected the name of an arch (str), got 90; use the toolchain's name, as sm_90 or gfx942"
    )
    with pytest.raises(InvalidArgument, match="rms_norm: `weight` expected shape"):
        opmux.explain(opmux.rms_norm, X, torch.randn(7))
    with pytest.raises(UnknownBackend, match="rms_norm: `backend` expected one of reference, got 'nope'"):
        opmux.explain(opmux.rms_norm, X, W, backend="nope")
    with pytest.raises(InvalidArgument, match="arch: `mi300` expected"):
        opmux.explain(opmux.rms_norm, X, W, arch="mi300")
    with pytest.raises(TypeError, match=r"^rms_norm: missing a required argument: 'weight'$"):
        opmux.explain(opmux.rms_norm, X)


def test_explain_under_strict_says_what_the_call_would_do():
    with backends(a=implementation(ones, when=(MultipleOf("hidden", 128),))), opmux.policy.override(strict=True):
        plan = opmux.explain(opmux.rms_norm, X, W, arch="sm_90")
        assert plan.chosen is None
        assert {c.name: c.reason for c in plan.candidates}["reference"] == "not taken under strict unless asked for"
        assert opmux.explain(opmux.rms_norm, X, W, arch="sm_90", backend="reference").chosen.name == "reference"
        assert opmux.explain(opmux.rms_norm, X, W).chosen.name == "reference"


def test_a_config_within_a_config_reads_like_the_outer_one():
    with backends(triton=implementation(ones, config=lambda arch, features: {"warps": 8, "long": {"block": 64}})):
        table = str(opmux.explain(opmux.rms_norm, X, W, arch="gfx942"))
    assert "warps 8, long (block 64) (heuristic: " in table


def test_explain_names_the_kernels_that_a_record_names():
    def kernels(op, call, config):
        return [f"{op}_{call.size('hidden')}_w{config['warps']}", "the rest"]

    with backends(ck=implementation(ones, config=lambda arch, features: {"warps": 8}, kernels=kernels)):
        reason = opmux.explain(opmux.rms_norm, X, W, arch="gfx942").chosen.reason
    assert reason == "priority 10; warps 8 (heuristic: no tuned record for gfx942); launches rms_norm_8_w8, the rest"


SCORES = [
    (30.0, {"warps": 8}),
    (31.25, {"warps": 4}),
    (40.0, {"warps": 2}),
    (41.0, {"warps": 1}),
    (50.0, {"warps": 16}),
]


def test_explain_shows_what_a_cost_model_would_take_next():
    def scores(arch, features):
        assert (arch.name, features) == ("gfx942", {"hidden": 8})
        return iter(SCORES)

    record = implementation(
        ones, features=(Exact("hidden"),), config=lambda arch, features: {"warps": 8}, scores=scores
    )
    with backends(ck=record):
        found = opmux.explain(opmux.rms_norm, X, W, arch="gfx942")
    assert found.chosen.reason == (
        "priority 10; warps 8 (heuristic: no tuned record for gfx942); "
        "its cost model says 30 us, next 31.2 us with warps 4, 40 us with warps 2, 41 us with warps 1"
    )
    assert [(one.time_us, one.config) for one in found.scores] == SCORES[:4]
    assert found.as_dict()["scores"][1] == {"time_us": 31.25, "config": {"warps": 4}}


def test_a_config_that_the_cost_model_does_not_know_is_shown_without_its_time():
    record = implementation(ones, config=lambda arch, features: {"warps": 32}, scores=lambda arch, features: SCORES[:1])
    with backends(ck=record):
        reason = opmux.explain(opmux.rms_norm, X, W, arch="gfx942").chosen.reason
    assert reason.endswith("; its cost model says next 30 us with warps 8")


def test_a_cost_model_that_fails_costs_its_line_alone():
    def scores(arch, features):
        yield 30.0, {"warps": 8}
        raise ValueError("no such arch")

    with backends(ck=implementation(ones, config=lambda arch, features: {"warps": 8}, scores=scores)):
        found = opmux.explain(opmux.rms_norm, X, W, arch="gfx942")
    assert found.chosen.reason.endswith("; its cost model raised ValueError: no such arch")
    assert found.scores == ()


def test_a_record_that_cannot_name_its_kernels_is_chosen_all_the_same():
    with backends(ck=implementation(ones, kernels=lambda op, call, config: call.nothing)):
        chosen = opmux.explain(opmux.rms_norm, X, W, arch="gfx942").chosen
    assert chosen.name == "ck"
    assert chosen.reason.startswith("priority 10; launches what its record cannot name: AttributeError: ")
