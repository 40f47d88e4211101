"""Configs held to the schema of their implementation."""

import typing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
import torch
from backends import backends, implementation

import opmux
from opmux.declared.configs import as_mapping, check_config, make_config
from opmux.plugins import loading

X, W = torch.randn(4, 8), torch.randn(8)


@dataclass(frozen=True)
class Launch:
    """How one kernel is launched."""

    warps: int
    stages: int = 2


@dataclass(frozen=True)
class Tiles:
    """A schema with every kind of field."""

    rows: int
    scale: float = 1.0
    shape: tuple[int, ...] = ()
    pair: tuple[int, str] = (0, "")
    mode: Literal["fast", "exact"] = "exact"
    split: int | None = None
    masked: bool = False
    launch: Launch = Launch(4)
    other: Any = None
    steps: list[int] = field(default_factory=list)
    named: dict[str, int] = field(default_factory=dict)
    nothing: tuple[()] = ()
    anything: typing.List = field(default_factory=list)  # noqa: UP006

    def __post_init__(self) -> None:
        if self.rows < 1 or self.rows & (self.rows - 1):
            raise ValueError(f"rows = {self.rows} is no power of two")
        if self.other == "crash":
            raise ZeroDivisionError("oh")


def target(x, weight, *, eps, weight_offset, config):
    return torch.full_like(x, config.rows)


def made(schema=Tiles, **fields):
    return implementation(target, **{"config": lambda arch, features: {"rows": 4}, "config_schema": schema, **fields})


WRONG = [
    ({"rows": 3}, "rows = 3 is no power of two"),
    ({"rows": -1}, "rows = -1 is no power of two"),
    ({}, "rows is missing"),
    (
        {"rows": 4, "BLOCK": 3},
        "BLOCK is not a parameter of Tiles; it has rows, scale, shape, pair, mode, split, masked,",
    ),
    ({"rows": "4"}, "rows expected int, got '4'"),
    ({"rows": True}, "rows expected int, got True"),
    ({"rows": 4.0}, "rows expected int, got 4.0"),
    ({"rows": 4, "scale": "x"}, "scale expected float, got 'x'"),
    ({"rows": 4, "shape": [1, "a"]}, "shape[1] expected int, got 'a'"),
    ({"rows": 4, "shape": 3}, "shape expected tuple[int, ...], got 3"),
    ({"rows": 4, "pair": [1]}, "pair expected tuple[int, str], got [1]"),
    ({"rows": 4, "mode": "odd"}, "mode expected 'fast' or 'exact', got 'odd'"),
    ({"rows": 4, "split": "x"}, "split expected int | None, got 'x'"),
    ({"rows": 4, "masked": 1}, "masked expected bool, got 1"),
    ({"rows": 4, "launch": {"stages": 3}}, "launch.warps is missing"),
    ({"rows": 4, "launch": {"warps": 1, "x": 0}}, "launch.x is not a parameter of Launch; it has warps, stages"),
    ({"rows": 4, "launch": 3}, "launch expected Launch, got 3"),
    ({"rows": 4, "steps": [1, "a"]}, "steps[1] expected int, got 'a'"),
    ({"rows": 4, "steps": 3}, "steps expected list[int], got 3"),
    ({"rows": 4, "named": {"a": "b"}}, "named['a'] expected int, got 'b'"),
    ({"rows": 4, "named": {3: 4}}, "a key of named expected str, got 3"),
    ({"rows": 4, "named": [3]}, "named expected dict[str, int], got [3]"),
    ({"rows": 4, "nothing": [1]}, "nothing expected tuple[()], got [1]"),
    ({"rows": 4, "anything": 3}, "anything expected list, got 3"),
    ({"rows": 4, "other": "crash"}, "Tiles raised ZeroDivisionError: oh"),
    ([4], "config expected Tiles, got [4]"),
]


@pytest.mark.parametrize(("config", "told"), WRONG, ids=[t[:40] for _, t in WRONG])
def test_a_config_that_does_not_fit_says_why(config, told):
    reason = check_config(made(), config)
    assert reason is not None
    assert reason.startswith(told)


def test_a_config_that_fits_becomes_an_instance():
    given = {"rows": 4, "scale": 2, "shape": [1, 2], "pair": [1, "a"], "split": 3, "launch": {"warps": 8}}
    assert check_config(made(), given) is None
    config = make_config(made(), given)
    assert config == Tiles(4, 2.0, (1, 2), (1, "a"), split=3, launch=Launch(8))
    assert make_config(made(), config) is config
    assert as_mapping(config)["launch"] == {"warps": 8, "stages": 2}
    assert check_config(made(), {"rows": 4, "split": None, "mode": "fast"}) is None
    held = {"steps": [1, 2], "named": {"a": 1}, "nothing": [], "anything": [1, "a"]}
    config = make_config(made(), {"rows": 4, **held})
    assert (config.steps, config.named, config.nothing, config.anything) == ([1, 2], {"a": 1}, (), [1, "a"])


def test_without_a_schema_every_config_passes():
    given = {"BLOCK": 3, "ROWS": -1}
    free = made(schema=None)
    assert check_config(free, given) is None
    assert make_config(free, given) is given
    assert as_mapping(None) is None


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("exiting_schemas:Tiles", "config_schema 'exiting_schemas:Tiles' cannot be loaded: SystemExit: 3"),
        ("no_such_module:Tiles", "config_schema 'no_such_module:Tiles' cannot be loaded: ModuleNotFoundError"),
        ("math:pi", "config_schema 'math:pi' is not a dataclass"),
    ],
)
def test_a_schema_that_cannot_be_had_says_why(schema, told, tmp_path, monkeypatch):
    (tmp_path / "exiting_schemas.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    reason = check_config(made(schema), {"rows": 4})
    assert reason is not None
    assert reason.startswith(told)


@dataclass(frozen=True)
class Untyped:
    rows: "Unknown"


def test_a_schema_whose_types_cannot_be_read_says_why():
    told = "the types of Untyped cannot be read: NameError: name 'Unknown' is not defined"
    assert check_config(made(Untyped), {"rows": 4}) == told


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (made("configs.Tiles"), "config_schema 'configs.Tiles' is neither 'module:Name' nor a dataclass"),
        (made(int), "config_schema <class 'int'> is neither 'module:Name' nor a dataclass"),
        (
            replace(made(), config=None),
            "config_schema= is given without config=: a target that takes no config needs no schema",
        ),
    ],
)
def test_a_schema_of_the_wrong_form_is_refused_at_registration(record, told):
    with backends(a=record):
        (failed,) = [f for f in loading.failed_plugins() if f.name == "a"]
    assert failed.reason.startswith(f"a of rms_norm: {told}")


def test_the_target_gets_an_instance_and_explain_shows_its_parameters():
    with backends(a=made()):
        assert opmux.rms_norm(X, W).unique().tolist() == [4]
        explanation = opmux.explain(opmux.rms_norm, X, W)
    assert explanation.config["rows"] == 4
    assert "rows 4, scale 1.0" in explanation.chosen.reason


def test_a_config_that_is_no_mapping_is_a_fault_of_the_plan():
    told = "its config function raised ValueError: config expected a dict of parameters by name, got [4]"
    with backends(a=made(None, config=lambda arch, features: [4])):
        assert [c.reason for c in opmux.explain(opmux.rms_norm, X, W).candidates if c.name == "a"] == [told]
        assert torch.equal(opmux.rms_norm(X, W), opmux.rms_norm.reference(X, W))
        assert [(q.name, q.scope, q.reason) for q in opmux.quarantined()] == [("a", "plan", told)]


def test_a_config_function_whose_config_does_not_fit_is_a_fault_of_the_plan():
    told = "its config function raised ValueError: rows = 3 is no power of two"
    with backends(a=made(config=lambda arch, features: {"rows": 3})):
        assert torch.equal(opmux.rms_norm(X, W), opmux.rms_norm.reference(X, W))
        assert [(q.name, q.scope, q.reason) for q in opmux.quarantined()] == [("a", "plan", told)]
