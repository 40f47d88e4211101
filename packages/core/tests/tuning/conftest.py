"""Files of records in folders of their own, and a plugin with a tunable and a plain implementation."""

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opmux import tuning
from opmux.plugin import Implementation, Priority, hookimpl
from opmux.plugins import loading
from opmux.tuning.record import COLUMNS

Row = dict[str, str]
Put = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The environment's folder of records, empty; the user's has none. What is read from it is forgotten at the end."""
    made = tmp_path / "environment"
    made.mkdir()
    monkeypatch.setenv("OPMUX_TUNED", str(made))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield made
    monkeypatch.undo()
    tuning.reload()


@pytest.fixture
def user_folder(folder: Path, tmp_path: Path) -> Path:
    """The user's folder of records, empty."""
    made = tmp_path / "config" / "opmux" / "tuned"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def row() -> Callable[..., Row]:
    """A good row of rms_norm on the CPU, with some fields replaced."""

    def made(**fields: str) -> Row:
        good = {
            "op": "rms_norm",
            "arch": "cpu",
            "dtypes": "x=f32;weight=f32",
            "options": "",
            "dims": "tokens=128;hidden=64",
            "backend": "mine",
            "config": '{"block": 64}',
            "time_us": "10",
            "tflops": "",
            "gbps": "",
            "error": "0.25",
            "compared": "2",
        }
        return {**good, **fields}

    return made


@pytest.fixture
def put() -> Put:
    """Write rows, as they are, into a CSV file; the first row is line 2."""

    def write(path: Path, *rows: Row) -> Path:
        columns = [name for name in COLUMNS if any(name in row for row in rows)]
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(buffer.getvalue())
        return path

    return write


class Mine:
    """Two implementations of rms_norm: one takes a config, the other, which comes first by priority, takes none."""

    OPMUX_API_VERSION = 1

    def __init__(self) -> None:
        self.configs: list[Any] = []

    @hookimpl
    def opmux_implementations(self) -> Iterator[Implementation]:
        def tunable(x: Any, weight: Any, *, config: Any, **options: Any) -> Any:
            self.configs.append(config)
            return x.new_full(x.shape, 1.0)

        def plain(x: Any, weight: Any, **options: Any) -> Any:
            return x.new_full(x.shape, 2.0)

        yield Implementation(op="rms_norm", target=tunable, config=lambda arch, features: {"block": 1})
        yield Implementation(op="rms_norm", target=plain, name="plain", priority=Priority.VENDOR)


@pytest.fixture
def mine(folder: Path) -> Iterator[Mine]:
    """The plugin, loaded."""
    plugin = Mine()
    with loading.temporary_plugin(plugin, "mine"):
        yield plugin
