"""The garbage collector around the import."""

import gc
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from opmux._collector import paused


@pytest.fixture(autouse=True)
def nothing_is_frozen() -> Iterator[None]:
    """The tests themselves are frozen for the others, once they are collected."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_what_is_made_in_the_block_is_not_searched_afterwards() -> None:
    gc.collect()
    with paused():
        made = [[] for _ in range(10_000)]
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert gc.get_count()[0] < len(made)
    assert any(found is made for found in gc.get_objects(generation=2))


def test_what_was_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with paused():
            pass
        assert gc.get_freeze_count() == before > 0
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("error", [None, ValueError("in the block")])
def test_a_collector_that_was_off_stays_off(error: Exception | None) -> None:
    gc.disable()
    try:
        with pytest.raises(ValueError, match="in the block") if error else nullcontext(), paused():
            if error:
                raise error
        assert not gc.isenabled()
    finally:
        gc.enable()
