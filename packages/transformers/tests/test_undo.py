"""What a patch changed and puts back: attributes of an object itself, kind by kind."""

from types import SimpleNamespace

from opmux_transformers.reporting import Report
from opmux_transformers.undo import ABSENT, Patch, StandIn, write_all


def patch() -> Patch:
    return Patch(Report("model", "family", "5"), {})


def test_attributes_come_back_in_reverse_order() -> None:
    made, owner = patch(), SimpleNamespace(forward="own")
    made.set(owner, "forward", "rotating", "rope")
    made.set(owner, "forward", "decoding", "decode")
    made.set(owner, "new", 1, "decode")
    made.put_back("decode")
    assert vars(owner) == {"forward": "rotating"}
    made.put_back("rope")
    assert vars(owner) == {"forward": "own"}
    assert made.changes == []


def test_two_changes_of_one_kind_to_one_attribute() -> None:
    made, owner = patch(), SimpleNamespace()
    made.set(owner, "forward", 1, "norm")
    made.set(owner, "forward", 2, "norm")
    made.put_back("norm")
    assert vars(owner) == {}


def test_only_the_kind_that_is_asked_for_is_put_back() -> None:
    made, owner = patch(), SimpleNamespace(a=0, b=0)
    made.set(owner, "a", 1, "norm")
    made.set(owner, "b", 1)
    made.put_back()
    assert vars(owner) == {"a": 1, "b": 0}
    assert [change.name for change in made.changes] == ["a"]


def test_an_absent_attribute_is_removed() -> None:
    own = {"a": 1, "b": 2}
    write_all(own, {"a": ABSENT, "b": 3, "c": ABSENT})
    assert own == {"b": 3}


def test_a_configuration_gets_what_was_set_in_its_stand_in() -> None:
    own, made = SimpleNamespace(cache=True, name="eager"), SimpleNamespace(cache=True, name="opmux")
    config = StandIn(own, made, dict(vars(made)))
    made.cache, made.mine = False, 3
    config.hand_back()
    assert vars(own) == {"cache": False, "name": "eager", "mine": 3}
