"""The nearest measured rows: those that a search through all of them would find, and what is made of them."""

import math
import random

import pytest
from laws import H100, H200, drawn, grid, row, smooth

import opmux
from opmux.tuning.devices import OTHER_DEVICE
from opmux.tuning.estimates import Estimate
from opmux.tuning.measured.device import DeviceModel
from opmux.tuning.measured.row import Machine, MeasuredRow
from opmux.tuning.neighbours import CONFIG_REACH, LIMIT, NEIGHBOURS, Group
from opmux.tuning.roofline import tiles_of

LINEAR = opmux.linear.op

Point = tuple[int, int, int]


def group(*rows: MeasuredRow, device: DeviceModel | None = None) -> Group:
    fastest = {row.implementation: row.time_us for row in sorted(rows, key=lambda row: -row.time_us)}
    return Group(LINEAR, ("tokens",), ("n", "k"), rows, device, fastest)


def estimates(of: Group, point: Point, known: dict[str, Estimate] | None = None) -> dict[str, Estimate]:
    """The times of a call, and under ``far`` nothing: see `distances`."""
    times = dict(known or {})
    of.estimate(dict(zip(("tokens", "n", "k"), point, strict=True)), times, {})
    return times


def distances(of: Group, point: Point) -> dict[str, float]:
    far: dict[str, float] = {}
    of.estimate(dict(zip(("tokens", "n", "k"), point, strict=True)), {}, far)
    return far


def place(of: Group, point: Point) -> tuple[float, ...]:
    """Where a call lies: half an octave for each octave of a size, the octaves of its work, and its own device."""
    m, n, k = point
    work_us = max(2 * m * n * k / of._roof.flops_per_us, 2 * (m * k + n * k + m * n) / of._roof.bytes_per_us)
    return (*(math.log2(size) / 2 for size in point), math.log2(work_us), 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_the_rows_found_are_the_nearest_of_all(seed: int) -> None:
    """A search through all is the oracle."""
    rng = random.Random(seed)
    everywhere = grid()
    somewhere = rng.sample(everywhere, 40)
    rows = [row(p, smooth(*p)) for p in everywhere] + [row(p, 2 * smooth(*p), "two") for p in somewhere]
    rng.shuffle(rows)
    made = group(*rows)
    for call in drawn(seed, 50):
        point = place(made, call)
        found = made._nearest(point, made.implementations)
        for name, places in (("one", everywhere), ("two", somewhere)):
            near = sorted(math.dist(point, place(made, p)) for p in places)[:NEIGHBOURS]
            assert len(found[name].numbers) >= 3
            assert found[name].distance == pytest.approx(near[0])
            # beyond two octaves no more are looked for where there are some, but those found are the nearest
            kept = [math.dist(point, made._points[number]) for number in found[name].numbers]
            assert kept == pytest.approx(near[: len(kept)])


def test_a_measured_point_is_its_row_and_its_fastest() -> None:
    point = (512, 4096, 4096)
    slow, fast = row(point, 90.0, config={"rows": 4}), row(point, 80.0, config={"rows": 8})
    found = estimates(group(slow, fast, row((1024, 4096, 4096), 150.0)), point)["one"]
    assert (found.time_us, found.config) == (80.0, {"rows": 8})


def test_a_time_that_is_known_is_left_alone() -> None:
    made = group(row((512, 4096, 4096), 80.0), row((512, 4096, 4096), 70.0, "two"))
    known = estimates(made, (512, 4096, 4096))["two"]
    found = estimates(made, (600, 4096, 4096), {"one": known})
    assert found["one"] is known
    assert found["two"] is not known


def test_of_equally_slow_implementations_the_one_with_the_nearer_row_is_taken_for_the_faster() -> None:
    """A time from far away is off by more, and of several the one that is too short by most would be chosen."""
    near, far = (600, 4096, 4096), (4800, 4096, 4096)
    rows = [row(near, smooth(*near)), row(far, smooth(*far), "two")]
    made = Group(LINEAR, ("tokens",), ("n", "k"), rows, None, {"one": 1e-3, "two": 1e-3})
    at = (512, 4096, 4096)
    found = {name: estimate.time_us for name, estimate in estimates(made, at).items()}
    work_us = place(made, at)[-2]
    slow = {
        one.implementation: one.time_us / 2 ** (place(made, p)[-2] - work_us)
        for one, p in zip(rows, (near, far), strict=True)
    }
    for name, p in (("one", near), ("two", far)):  # the variance is 0.02 for each square octave
        octaves = math.dist(place(made, at), place(made, p))
        assert found[name] == pytest.approx(slow[name] * math.exp(0.01 * octaves**2), rel=1e-2)
    assert found["two"] / slow["two"] > 1.1 > 1.001 * found["one"] / slow["one"]


def test_the_distance_of_rows_that_are_too_far_away_is_said() -> None:
    made = group(row((1, 4096, 4096), 5.0), row((1, 4096, 4096), 5.0, "two"), row((4096, 4096, 4096), 300.0, "two"))
    beyond = (2 ** (int(LIMIT) + 6), 4096, 4096)
    assert estimates(made, beyond).keys() == {"two"}
    assert distances(made, beyond) == {
        "one": pytest.approx(math.dist(place(made, beyond), place(made, (1, 4096, 4096))))
    }


def test_calls_that_launch_the_same_programs_are_near() -> None:
    """Twice the tokens and half the columns are as much work: nearer than twice the tokens alone."""
    rows = [row((4096, 4096, 4096), 300.0), row((8192, 2048, 4096), 310.0), row((8192, 4096, 4096), 600.0)]
    made = group(*rows)
    nearest = made._nearest(place(made, (4096, 4096, 4096)), {"one"})["one"]
    distances = [math.dist(made._points[number], place(made, (4096, 4096, 4096))) for number in nearest.numbers]
    assert distances == pytest.approx([0.0, math.sqrt(0.5), math.sqrt(1.25)], abs=1e-3)


def test_a_config_is_that_of_a_row_of_the_same_model_within_reach() -> None:
    near = row((64, 4096, 4096), 10.0, config={"rows": 4})
    made = group(near, row((80, 4096, 8192), 20.0, config={"rows": 8}))
    within, beyond = 64 * 2 ** (0.9 * CONFIG_REACH), 64 * 2 ** (1.1 * CONFIG_REACH)
    assert estimates(made, (int(within), 4096, 4096))["one"].config == {"rows": 4}
    assert estimates(made, (math.ceil(beyond), 4096, 4096))["one"].config is None
    assert estimates(made, (64, 4096, 4097))["one"].config is None


def model(machine: Machine) -> DeviceModel:
    return DeviceModel(machine.device, machine.multiprocessors, machine.clock_mhz, machine.memory_gbps)


def test_rows_of_another_device_are_an_octave_and_more_away() -> None:
    call = (512, 4096, 4096)
    near, far = row(call, 100.0, machine=H200), row((512 * 16, 4096, 4096), 1000.0, machine=H100)
    made = group(near, far, device=model(H100))
    away = OTHER_DEVICE + math.log(H200.memory_gbps / H100.memory_gbps)
    nearest = made._nearest(place(made, call), {"one"})["one"]
    assert nearest.distance == pytest.approx(away)
    assert estimates(made, call)["one"].source == "predicted, from 2 rows", "one of its own is among them"
    assert group(near, far, device=model(H200))._nearest(place(made, call), {"one"})["one"].distance == 0.0


def test_few_rows_of_the_own_device_far_away_do_not_hide_those_of_a_like_one() -> None:
    """On the other device it was measured that the second is twice as fast here, and slower elsewhere."""
    here, elsewhere = (64, 4096, 4096), (64 * 64, 4096, 4096)
    rows = [row(here, 20.0), row(here, 10.0, "two"), row(elsewhere, 300.0), row(elsewhere, 600.0, "two")]
    own = [row(elsewhere, 310.0, machine=H100), row(elsewhere, 620.0, "two", machine=H100)]
    found = estimates(group(*rows, *own, device=model(H100)), here)
    assert found["two"].time_us < found["one"].time_us
    alone = estimates(group(*own, device=model(H100)), here)
    assert alone["one"].time_us < alone["two"].time_us


def test_one_row_alone_and_its_machine() -> None:
    made = group(row((64, 4096, 4096), 10.0))
    assert made.implementations == {"one"}
    assert estimates(made, (64, 4096, 4096))["one"].source == "measured on NVIDIA H200"
    twice = estimates(made, (64, 8192, 4096))["one"].time_us
    assert 10.0 < twice < 20.0  # a launch costs the same however much is computed


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"rows": 64, "columns": 128}, (4.0 * 3, 256 / 200 * 384 / 300)),
        ({"rows": 200, "columns": 300}, (1.0, 1.0)),
        ({"rows": 64}, (0.0, 1.0)),
        ({"rows": 64, "columns": 0}, (0.0, 1.0)),
        ({"rows": 64, "columns": "wide"}, (0.0, 1.0)),
    ],
)
def test_whole_tiles(config: dict[str, object], expected: tuple[float, float]) -> None:
    declared = (("tokens", "rows"), ("n", "columns"))
    assert tiles_of(declared, config, {"tokens": 200, "n": 300}) == pytest.approx(expected)


def test_tiles_of_a_constant_size_and_none() -> None:
    assert tiles_of((("tokens", 128),), {}, {"tokens": 200}) == pytest.approx((2.0, 256 / 200))
    assert tiles_of((), {"rows": 64}, {"tokens": 200}) == (0.0, 1.0)
