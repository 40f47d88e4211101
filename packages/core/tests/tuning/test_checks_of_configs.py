"""Configs of tuned records, held to the schema that the implementation declares."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from backends import backends, implementation

import opmux
from opmux import tuning
from opmux.errors import TunedRecordError


@dataclass(frozen=True)
class Rows:
    """A power of two of rows to a block, and how many blocks."""

    BLOCK: int
    ROWS: int = 1

    def __post_init__(self) -> None:
        if self.BLOCK < 1 or self.BLOCK & (self.BLOCK - 1):
            raise ValueError(f"BLOCK = {self.BLOCK} is not a power of two")
        if self.ROWS < 1:
            raise ValueError(f"ROWS = {self.ROWS} is not positive")


@pytest.fixture
def seen(folder: Path) -> Iterator[list[Any]]:
    """The configs that the backend `planted`, whose implementation declares `Rows`, has run with."""
    configs: list[Any] = []

    def target(x: Any, weight: Any, *, config: Any, **options: Any) -> Any:
        configs.append(config)
        return x

    with backends(planted=implementation(target, config=lambda arch, features: {"BLOCK": 1}, config_schema=Rows)):
        yield configs


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('{"BLOCK": 3, "ROWS": -1}', "BLOCK = 3 is not a power of two"),
        ('{"BLOCK": 4, "ROWS": -1}', "ROWS = -1 is not positive"),
        ('{"BLOCK": 4.5}', "BLOCK expected int, got 4.5"),
        ('{"BLCK": 4}', "BLCK is not a parameter of Rows; it has BLOCK, ROWS"),
        ("{}", "BLOCK is missing"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    seen: list[Any], folder: Path, put: Callable, row: Callable, config: str, reason: str
) -> None:
    file = put(folder / "records.csv", row(backend="planted", config=config))
    report = tuning.reload()
    told = f"rms_norm: `config` expected a config of planted, got {config}: {reason}; measure again or drop the row"
    assert [(r.line, r.reason) for r in report.refused] == [(2, told)]
    assert report.ops == {}
    with pytest.raises(TunedRecordError) as caught:
        tuning.load_records(file)
    assert str(caught.value) == f"{file}:2: {told}"
    opmux.rms_norm(torch.ones(128, 64), torch.ones(64))
    assert seen == [Rows(1)], "the implementation's own config"


def test_a_config_that_fits_is_used(seen: list[Any], folder: Path, put: Callable, row: Callable) -> None:
    put(folder / "records.csv", row(backend="planted", config='{"BLOCK": 16}'))
    assert tuning.reload().refused == ()
    opmux.rms_norm(torch.ones(128, 64), torch.ones(64))
    assert seen == [Rows(16)]


def test_records_that_were_there_before_the_backend_are_judged_when_it_comes(
    folder: Path, put: Callable, row: Callable
) -> None:
    put(folder / "records.csv", row(backend="later", config='{"BLOCK": 3}'))
    assert tuning.reload().refused == ()
    target = implementation(lambda x, *a, **k: x, config=lambda arch, features: {"BLOCK": 1}, config_schema=Rows)
    with backends(later=target):
        assert [r.line for r in tuning.report().refused] == [2]
    assert tuning.report().refused == ()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"options": "eps=nan"}, "`eps`"),
        ({"options": "eps=-1.0"}, "`eps`"),
        ({"time_us": "-10"}, "`time_us` expected a positive number"),
        ({"gbps": "-1"}, "`gbps` expected "),
        ({"error": "-0.1"}, "`error` expected a finite error, 0 or more"),
        ({"compared": "-2"}, "`compared` expected how many"),
        ({"dims": "tokens=-128;hidden=64"}, "`dims` expected a positive size for `tokens`"),
        ({"config": '{"block": NaN}'}, "`config` expected a JSON object"),
    ],
)
def test_numbers_that_nothing_has_are_refused(
    folder: Path, put: Callable, row: Callable, fields: dict[str, str], text: str
) -> None:
    put(folder / "records.csv", row(**fields))
    (refused,) = tuning.reload().refused
    assert text in refused.reason


@pytest.mark.parametrize(
    ("op", "expected"),
    [("rms_norm", "one of planted: planted"), ("layer_norm", "a backend with one, planted has none")],
)
def test_an_implementation_that_an_installed_backend_does_not_have_is_refused(
    seen: list[Any], folder: Path, put: Callable, row: Callable, op: str, expected: str
) -> None:
    dtypes = {"dtypes": "x=bf16;weight=bf16"}
    put(folder / "records.csv", row(backend="planted:other", op=op, **dtypes))
    told = f"{op}: `backend` expected {expected}, got 'planted:other'; measure again with what is installed"
    assert [(r.line, r.reason) for r in tuning.reload().refused] == [(2, told)]


def test_a_backend_that_is_not_installed_may_have_any(folder: Path, put: Callable, row: Callable) -> None:
    put(folder / "records.csv", row(backend="absent:other"))
    assert tuning.reload().refused == ()
