"""The resolver: who takes a call, in which order, and why the others do not."""

import itertools

import pytest
import torch
from backends import backends, implementation, plugin
from planted import W, X

import opmux
from opmux.arch import parse_arch
from opmux.callpath.op import OPS
from opmux.declared.call import Call
from opmux.planning.resolver import CHOSEN, QUARANTINED, REJECTED, Circumstances, Resolution, resolve
from opmux.plugin import AtMost, Implementation, MultipleOf, Priority
from opmux.policy import Policy
from opmux.tuning.choice import TunedChoice

Q = torch.randn(2, 5, 4, 8)


def filled(value):
    def target(x, *tensors, **options):
        return torch.full_like(x, value)

    return target


@pytest.fixture
def three():
    """Backends a, b and c (with two implementations), all of which take the call."""
    with backends(
        a=implementation(filled(1.0), priority=Priority.PORTABLE),
        b=implementation(filled(2.0), priority=Priority.SPECIALISED),
        c=[implementation(filled(3.0), name="x"), implementation(filled(4.0), name="y")],
    ):
        yield


def ran():
    return opmux.rms_norm(X, W)[0, 0].item()


def order():
    explanation = opmux.explain(opmux.rms_norm, X, W)
    return [c.name for c in explanation.candidates if c.status in ("chosen", "accepted")]


@pytest.mark.usefixtures("three")
def test_the_order_is_total():
    assert order() == ["b", "a", "c:x", "c:y", "reference"]
    assert ran() == 2.0
    opmux.policy.prefer("c:y", "a")
    assert order() == ["c:y", "a", "b", "c:x", "reference"]
    assert ran() == 4.0
    opmux.policy.prefer()
    assert ran() == 2.0


def test_the_order_does_not_depend_on_the_order_of_loading():
    made = {
        "a": plugin(implementation(filled(1.0))),
        "b": plugin(implementation(filled(2.0))),
        "c": plugin(implementation(filled(3.0))),
    }
    seen = set()
    for names in itertools.permutations(made):
        with backends(**{name: made[name] for name in names}):
            seen.add(tuple(order()))
    assert seen == {("a", "b", "c", "reference")}


@pytest.mark.usefixtures("three")
def test_a_forced_backend_beats_the_policy():
    opmux.policy.disable("a")
    assert opmux.rms_norm(X, W, backend="a")[0, 0] == 1.0
    assert opmux.rms_norm(X, W, backend="c:y")[0, 0] == 4.0
    assert opmux.rms_norm(X, W, backend="c")[0, 0] == 3.0
    assert torch.equal(opmux.rms_norm(X, W, backend="reference"), opmux.rms_norm.reference(X, W))


def test_experimental_and_other_numerics_are_chosen_only_by_name():
    with backends(
        a=[
            implementation(filled(1.0), name="new", priority=Priority.EXPERIMENTAL),
            implementation(
                filled(2.0), name="rough", priority=Priority.SPECIALISED, numerics="accumulates in bfloat16"
            ),
        ]
    ):
        assert opmux.explain(opmux.rms_norm, X, W).chosen.name == "reference"
        reasons = {c.name: c.reason for c in opmux.explain(opmux.rms_norm, X, W).candidates}
        assert reasons["a:new"] == "experimental: only when asked for by name"
        assert reasons["a:rough"] == "different numerics (accumulates in bfloat16): only when asked for by name"
        opmux.policy.prefer("a")
        assert opmux.explain(opmux.rms_norm, X, W).chosen.name == "reference"
        opmux.policy.prefer("a:rough")
        assert ran() == 2.0
        assert opmux.rms_norm(X, W, backend="a:new")[0, 0] == 1.0


def test_asking_for_a_backend_is_not_asking_for_its_other_numerics():
    with backends(
        a=[
            implementation(filled(1.0), name="exact"),
            implementation(filled(2.0), name="fast", priority=Priority.SPECIALISED, numerics="sums in bfloat16"),
        ]
    ):
        assert opmux.rms_norm(X, W, backend="a")[0, 0] == 1
        assert opmux.rms_norm(X, W, backend="a:fast")[0, 0] == 2


def test_deterministic_mode_rules_out_what_is_not():
    with backends(a=implementation(filled(1.0)), b=implementation(filled(2.0), deterministic=True, priority=1)):
        assert ran() == 1.0
        torch.use_deterministic_algorithms(True)
        try:
            assert ran() == 2.0
            reasons = {c.name: c.reason for c in opmux.explain(opmux.rms_norm, X, W).candidates}
            assert reasons["a"] == "not deterministic, and torch.use_deterministic_algorithms is on"
        finally:
            torch.use_deterministic_algorithms(False)
        assert ran() == 1.0


def test_warn_only_determinism_is_told_from_the_strict_kind():
    with backends(a=implementation(filled(1.0))):
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            assert opmux.rms_norm(X, W).sum() == 32
            torch.use_deterministic_algorithms(True)
            assert opmux.rms_norm(X, W).sum() != 32
        finally:
            torch.use_deterministic_algorithms(False)


def test_a_bound_on_an_option_that_may_be_none():
    with backends(
        a=implementation(lambda q, *t, **o: torch.ones_like(q), op="attention", when=(AtMost("scale", 1.0),))
    ):
        assert not (opmux.attention(Q, Q, Q) == 1).any()
        assert (opmux.attention(Q, Q, Q, scale=0.5) == 1).all()


def test_what_is_not_installed_is_unavailable():
    with backends(a=implementation(filled(1.0), requires=("a_missing_toolchain",))):
        candidate = opmux.explain(opmux.rms_norm, X, W).candidates[-1]
    assert (candidate.name, candidate.status) == ("a", "unavailable")
    assert candidate.reason == "needs a_missing_toolchain, not installed: pip install a_missing_toolchain"


CALL = Call(
    opmux.rms_norm.op.signature,
    parse_arch("cpu"),
    {"x": X, "weight": W},
    {"eps": 1e-6, "weight_offset": 0.0},
    {"tokens": (4,), "hidden": 8},
    {"hidden % 4 == 0": True, "hidden % 128 == 0": False, "tokens <= 1": False},
)


def record(backend: str, name: str = "", **fields) -> Implementation:
    return implementation(filled(1.0), backend=backend, name=name, **{"deterministic": True, **fields})


def resolved(*records: Implementation, policy: Policy | None = None, **around) -> Resolution:
    return resolve(CALL, records, Circumstances(Policy() if policy is None else policy, **around))


def told(resolution: Resolution) -> dict[str, tuple[str, str]]:
    return {v.name: (v.status, v.reason) for v in resolution.verdicts}


def test_the_choice_says_why_it_comes_first():
    a, b = record("a"), record("b", priority=Priority.SPECIALISED)
    assert told(resolved(a, b))["b"] == (CHOSEN, f"priority {int(Priority.SPECIALISED)}")
    assert told(resolved(a, b, forced="a"))["a"] == (CHOSEN, "asked for by backend='a'")
    tuned = TunedChoice("a", None, True, "tuned for tokens=4 (exact), here", ())
    assert told(resolved(a, b, tuned=tuned))["a"] == (CHOSEN, "tuned for tokens=4 (exact), here")


def test_a_tuned_record_that_compared_nothing_does_not_pick():
    tuned = TunedChoice("a", {"BLOCK": 4}, False, "tuned", ())
    resolution = resolved(record("a"), record("b", priority=Priority.SPECIALISED), tuned=tuned)
    assert [v.name for v in resolution.accepted] == ["b", "a"]
    assert resolution.tuned is tuned


def test_the_first_reason_against_a_candidate_is_told():
    other = record("a", archs=("sm_90",), when=(MultipleOf("hidden", 128),))
    assert told(resolved(other)) == {"a": (REJECTED, "archs: sm_90, this is cpu")}
    assert told(resolved(other, forced="b")) == {"a": (REJECTED, "not asked for: backend='b'")}
    narrow = record("a", when=(MultipleOf("hidden", 4), MultipleOf("hidden", 128), AtMost("tokens", 1)))
    assert told(resolved(narrow)) == {"a": (REJECTED, "hidden = 8 is not a multiple of 128")}


def test_what_quarantine_keeps_from_coming_first_is_named():
    best, second, last = record("a", priority=Priority.SPECIALISED), record("b"), record("c", priority=5)
    resolution = resolved(best, second, last, quarantined={"a": "it failed", "c": "so did it"})
    assert [v.name for v in resolution.accepted] == ["b"]
    assert [(v.name, v.status, v.reason) for v in resolution.passed_over] == [("a", QUARANTINED, "it failed")]
    assert [v.name for v in resolved(best, second, quarantined={"a": "it failed"}, forced="a").accepted] == ["a"]


def test_the_next_taker_is_the_choice_where_the_first_turns_out_to_take_nothing():
    resolution = resolved(record("a", priority=5), record("b"), record("c", when=(AtMost("tokens", 1),)))
    after = resolution.without_choice("no config")
    assert [(v.name, v.status) for v in after.accepted] == [("a", CHOSEN)]
    assert [(v.name, v.status, v.reason) for v in after.others] == [
        ("b", REJECTED, "no config"),
        ("c", REJECTED, "tokens = 4 is more than 1"),
    ]
    nobody = after.without_choice("nor here")
    assert nobody.accepted == ()
    assert [v.name for v in nobody.others] == ["a", "b", "c"]


def test_resolving_changes_nothing():
    records = (record("b"), record("a", priority=Priority.SPECIALISED))
    plans = dict(OPS["rms_norm"].table)
    assert resolved(*records) == resolved(*reversed(records))
    assert OPS["rms_norm"].table == plans
