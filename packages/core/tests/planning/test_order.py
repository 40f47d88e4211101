"""The order of candidates, as properties: total, independent of installation, and what decides before what."""

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import opmux
from opmux.arch import CPU
from opmux.declared.call import Call
from opmux.planning.resolver import Circumstances, Resolution, resolve
from opmux.plugin import AtMost, Implementation
from opmux.policy import Policy
from opmux.tuning.choice import TunedChoice
from opmux.tuning.estimates import Estimate, Estimates

SIGNATURE = opmux.rms_norm.op.signature
CALL = Call(
    SIGNATURE,
    CPU,
    {"x": torch.empty(4, 64), "weight": torch.empty(64)},
    {"eps": 1e-6, "weight_offset": 0.0},
    {"tokens": (4,), "hidden": 64},
)
NAMES = [f"{backend}:{name}" for backend in "abc" for name in "xyz"]
TIMES = st.sampled_from([1.0, 2.0, 2.0, 5.5])


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Implementation], Circumstances]:
    """Implementations of any band, some with times, some refusing, a policy, and perhaps a record."""
    made = [
        Implementation(
            op="rms_norm",
            target=lambda *t, **o: None,
            backend=name[0],
            name=name[2],
            priority=draw(st.sampled_from([0, 10, 20, 30])),
            when=(AtMost("hidden", draw(st.sampled_from([32, 64]))),),
        )
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    ]
    times = {
        name: Estimate(draw(TIMES), measured, 1, measured and draw(st.booleans()))
        for name in draw(st.sets(st.sampled_from(NAMES)))
        for measured in [draw(st.booleans())]
    }
    picked = draw(st.none() | st.sampled_from(NAMES))
    record = None if picked is None else TunedChoice(picked, None, draw(st.booleans()), "record", draw(st.booleans()))
    prefer = tuple(draw(st.lists(st.sampled_from(["a", "b:y", "c"]), unique=True)))
    quarantined = dict.fromkeys(draw(st.sets(st.sampled_from(NAMES), max_size=2)), "it failed")
    return made, Circumstances(Policy(prefer=prefer), quarantined, tuned=record, estimates=Estimates(times))


def names(found: Resolution) -> list[str]:
    return [verdict.name for verdict in found.accepted]


@given(situations(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_is_total_and_independent_of_installation(
    situation: tuple[list[Implementation], Circumstances], order: random.Random
) -> None:
    made, around = situation
    found = resolve(CALL, made, around)
    shuffled = order.sample(made, len(made))
    again = resolve(CALL, shuffled, around)
    assert names(found) == names(again)
    assert [v.name for v in found.passed_over] == [v.name for v in again.passed_over]
    orders = [verdict.order for verdict in found.accepted]
    assert orders == sorted(orders)
    assert len(set(orders)) == len(orders)


@given(situations())
@settings(deadline=None)
def test_what_decides_before_what(situation: tuple[list[Implementation], Circumstances]) -> None:
    made, around = situation
    found = resolve(CALL, made, around)
    times, record = around.estimates.times, around.tuned
    band = max((v.implementation.priority for v in found.accepted if v.name in times), default=None)
    for one, other in zip(found.accepted, found.accepted[1:], strict=False):
        preferences = [around.policy.preference(v.implementation.backend, v.name) for v in (one, other)]
        assert preferences[0] <= preferences[1], "the policy comes first"
        if preferences[0] != preferences[1]:
            continue
        exact = [
            record is not None and record.picks and record.exact and record.backend == v.name for v in (one, other)
        ]
        assert exact[0] >= exact[1], "then a record of this very point"
        compared = [v.name in times and times[v.name].compared for v in (one, other)]
        if True in exact:
            continue
        assert compared[0] >= compared[1], "then what was measured side by side"
        if one.name in times and other.name in times and compared[0] == compared[1]:
            assert times[one.name].time_us <= times[other.name].time_us, "then the time"
        if True in compared or (record is not None and record.picks and band is None):
            continue
        bands = [band if v.name in times else v.implementation.priority for v in (one, other)]
        assert bands[0] >= bands[1], "those with times stand in the highest band among them"
