"""The backlog: which worker takes which point."""

import torch

from opmux.shapes import Point
from opmux.tuner.backlog import Backlog

MACHINE = "machine"


def point(op: str, tokens: int) -> Point:
    return Point(op, {"x": torch.float32, "weight": torch.float32}, {"tokens": tokens, "hidden": 64}, {})


def mixed(count: int) -> list[Point]:
    """Points of two ops in turn."""
    return [point(op, tokens) for tokens in range(1, count + 1) for op in ("rms_norm", "layer_norm")]


def ops(points: list[Point]) -> list[str]:
    return [p.op for p in points]


def test_one_worker_takes_points_in_their_order() -> None:
    points = mixed(4)
    assert Backlog(points, set(), None).take_several(MACHINE, 99, "cuda:0") == points
    assert Backlog(points, set(), 60.0).take_several(MACHINE, 99) == points


def test_workers_leave_each_other_the_ops_that_these_have_begun() -> None:
    backlog = Backlog(mixed(4), set(), None)
    first, second = ([backlog.take(MACHINE, worker)] for worker in ("cuda:0", "cuda:1"))
    for _ in range(3):
        first.append(backlog.take(MACHINE, "cuda:0"))
        second.append(backlog.take(MACHINE, "cuda:1"))
    assert [p and p.op for p in first] == ["rms_norm"] * 4
    assert [p and p.op for p in second] == ["layer_norm"] * 4
    assert backlog.take(MACHINE, "cuda:0") is None


def test_a_worker_without_points_of_its_own_takes_those_of_others() -> None:
    backlog = Backlog([point("rms_norm", tokens) for tokens in range(1, 6)], set(), None)
    taken = [backlog.take(MACHINE, worker) for worker in ("cuda:0", "cuda:1", "cuda:1", "cuda:0", "cuda:1")]
    assert [p and p.dims["tokens"] for p in taken] == [1, 2, 3, 4, 5]


def test_where_the_time_is_limited_no_point_is_left_for_long() -> None:
    points = [point("rms_norm", 1), *(point("layer_norm", tokens) for tokens in range(1, 20)), point("rms_norm", 2)]
    backlog = Backlog(points, set(), 60.0)
    backlog.take(MACHINE, "cuda:0")
    backlog.take(MACHINE, "cuda:1")
    near = backlog.take(MACHINE, "cuda:0")
    assert near is not None
    assert ops([near]) == ["layer_norm"], "the next point of its op is too far away"
    without = Backlog(points, set(), None)
    without.take(MACHINE, "cuda:0")
    without.take(MACHINE, "cuda:1")
    assert without.take(MACHINE, "cuda:0") == points[-1]


def test_points_that_are_put_back_come_first() -> None:
    points = mixed(2)
    backlog = Backlog(points, set(), None)
    taken = backlog.take_several(MACHINE, 2, "cuda:0")
    backlog.put_back(taken[1:])
    assert backlog.take(MACHINE, "cuda:1") == taken[1], "though another worker has begun its op"
