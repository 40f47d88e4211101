"""Points one after the other, the nearest first: as a search through all of them finds them."""

import itertools
import math
import random

import pytest

from opmux.tuning.tree import Point, Tree


def nearest_of_all(points: list[Point], center: Point, reach: float) -> list[tuple[float, int]]:
    """The oracle."""
    found = [(math.dist(center, point), number) for number, point in enumerate(points)]
    return sorted(each for each in found if each[0] <= reach)


@pytest.mark.parametrize("count", [1, 2, 400, 401, 3000])
@pytest.mark.parametrize("coordinates", [1, 4])
def test_all_points_within_reach_come_in_order(count: int, coordinates: int) -> None:
    rng = random.Random(count + coordinates)
    points = [tuple(rng.uniform(0, 10) for _ in range(coordinates)) for _ in range(count)]
    tree = Tree(points)
    for reach in (0.1, 2.0, 100.0):
        center = tuple(rng.uniform(-1, 11) for _ in range(coordinates))
        assert list(tree.nearest(center, reach)) == nearest_of_all(points, center, reach)


def test_of_equally_near_points_the_first_comes_first() -> None:
    """On a grid most distances are shared, also by points of different boxes."""
    points = [tuple(map(float, p)) for p in itertools.product(range(8), repeat=3)]  # enough to be divided
    random.Random(1).shuffle(points)
    tree = Tree(points)
    for center in ((3.5, 3.5, 3.5), (0.0, 7.0, 4.0), (9.0, 9.0, 9.0)):
        assert list(tree.nearest(center, 50.0)) == nearest_of_all(points, center, 50.0)


def test_points_at_one_place_are_not_divided() -> None:
    assert [number for _, number in Tree([(1.0, 2.0)] * 500).nearest((0.0, 0.0), 9.0)] == list(range(500))


def test_the_first_points_cost_a_few_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ten thousand points, the first eight are found by a few hundred distances."""
    rng = random.Random(5)
    tree = Tree([(rng.uniform(0, 10), rng.uniform(0, 10), rng.uniform(0, 10)) for _ in range(10_000)])
    measured: list[int] = []

    def counted(one: Point, other: Point) -> float:
        measured.append(1)
        return sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5

    monkeypatch.setattr(math, "dist", counted)
    assert len(list(itertools.islice(tree.nearest((5.0, 5.0, 5.0), 9.0), 8))) == 8
    assert len(measured) < 400
