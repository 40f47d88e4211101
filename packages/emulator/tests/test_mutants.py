"""The committed list of mutants is what its seeds give, almost all are caught, and each survivor is explained."""

import pytest
from mutants.judging import SCHEDULES, is_right, judged, outcome
from mutants.kernels import KERNELS, assemble, calls_of, source_of
from mutants.mutations import MUTATIONS
from mutants.table import caught_share, explanations, row_of, rows


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_kernels_themselves_are_right_and_clean_in_every_schedule(kernel: str) -> None:
    program = assemble(source_of(kernel), kernel.rpartition("-")[2])
    for call in calls_of(kernel):
        for schedule in SCHEDULES:
            rules, out = outcome(program, call, **schedule)
            assert (rules, is_right(call, out)) == (set(), True), schedule


def test_at_least_95_percent_of_200_are_caught() -> None:
    found = rows()
    assert len(found) == 200
    assert {row.split("\t")[3] for row in found} == set(MUTATIONS)
    assert caught_share(found) >= 0.95


def test_each_survivor_is_explained() -> None:
    survivors = {int(row.split("\t")[0]) for row in rows() if row.endswith("\tsurvives")}
    assert set(explanations()) == survivors


@pytest.mark.parametrize("seed", [*range(0, 200, 11), 27, 110])
def test_the_list_is_what_the_seeds_give(seed: int) -> None:
    assert row_of(*judged(seed)) == rows()[seed]
