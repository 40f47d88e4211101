"""The rows that this package ships: small, valid, of this backend and its rivals, and what calls are planned by."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import opmux
import opmux_deepgemm
from opmux.plugin import takers
from opmux.plugins import loading
from opmux.shapes import Point
from opmux.tuning import store
from opmux.tuning.measured import MeasuredRow, read_measured
from opmux_deepgemm import plugin
from opmux_deepgemm.configs import Config
from opmux_deepgemm.implementations import RECORDS

LIMIT_BYTES = 100_000
FOLDER = Path(opmux_deepgemm.__file__).with_name("records")
FILES = sorted(FOLDER.iterdir())


def rows() -> list[MeasuredRow]:
    """Every row that is shipped."""
    return [row for path in FILES for row in read_measured(path).rows]


def test_the_plugin_names_the_folder_and_it_holds_rows_alone() -> None:
    assert plugin.opmux_tuned_records() == [str(FOLDER)]
    assert FILES
    assert {path.suffix for path in FILES} == {".measured"}
    assert sum(path.stat().st_size for path in FILES) < LIMIT_BYTES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_row_is_refused_and_all_are_of_one_gpu(path: Path) -> None:
    loading.ensure_loaded()
    found = read_measured(path)
    assert found.refused == ()
    assert not found.failed
    assert {row.implementation.partition(":")[0] for row in found.rows} <= {"deepgemm", "triton", "vendor"}
    assert {row.machine.arch for row in found.rows} == {"sm_90"}
    assert len({row.machine.device for row in found.rows}) == 1
    assert all(row.machine.driver and row.machine.versions["torch"] for row in found.rows)


def test_every_op_has_rows_with_configs_that_there_are() -> None:
    own = [row for row in rows() if row.implementation == "deepgemm"]
    assert {row.op for row in own} == {record.op for record in RECORDS}
    assert sum(row.config is not None for row in own) > 100
    for row in own:
        if row.config is not None:
            Config(**row.config)
            assert row.error is not None
            assert row.error <= 1


def test_they_are_in_force_and_predict() -> None:
    layers = {file.file: file.layer for file in opmux.tuning.report().files}
    assert all(layers[str(path)] == "plugin" for path in FILES)
    x, w = (torch.empty(size, 7168, dtype=torch.bfloat16, device="meta") for size in (777, 5120))
    plan = opmux.explain(opmux.linear, x, w, arch="sm_90", backend="deepgemm")
    assert plan.chosen is not None
    assert (plan.chosen.time_source or "").startswith("predicted, from ")


def test_a_measured_config_replaces_the_models() -> None:
    row = next(row for row in rows() if row.op == "linear" and row.config is not None)
    x, w = (torch.empty(row.dims[name], row.dims["k"], dtype=torch.bfloat16, device="meta") for name in ("tokens", "n"))
    plan = opmux.explain(opmux.linear, x, w, arch="sm_90", backend="deepgemm")
    assert plan.config == asdict(Config(**row.config))  # a field that came after the row has its default
    assert plan.config_source != "heuristic"


@pytest.fixture
def staged_rows() -> Iterator[Config]:
    """The shipped rows with one config, which is staged, in place of every one of the persistent kernel."""
    config = Config("large", 128, 128, 4, 2, group=8, staged=True)
    texts = {}
    for path in FILES:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if "config" in line and line.get("values", {}).get("kernel") == "large":
                line["values"] = asdict(config)
        texts[path.name] = "".join(f"{json.dumps(line)}\n" for line in lines)
    store.adopt(texts)
    yield config
    store.adopt(None)


@pytest.mark.parametrize("op", ["scaled_linear", "scaled_grouped_linear", "scaled_masked_grouped_linear"])
def test_a_row_with_staged_results_is_of_bfloat16_ones_alone(op, staged_rows: Config) -> None:
    found = [row for row in rows() if row.op == op and row.implementation == "deepgemm" and row.config is not None]
    row = next(row for row in found if row.config is not None and row.config["kernel"] == "large")
    for out_dtype, staged in ((torch.bfloat16, True), (torch.float32, False)):
        point = Point(op, row.dtypes, row.dims, row.options | {"out_dtype": out_dtype})
        tensors = point.tensors().values()
        (taker,) = takers(point.definition.public, *tensors, arch="sm_90", backend="deepgemm", **point.all_options)
        assert (taker.config() == staged_rows) == staged
        assert taker.config().staged == staged


def test_on_another_arch_they_have_no_effect() -> None:
    x, w = (torch.empty(size, 7168, dtype=torch.bfloat16, device="meta") for size in (777, 5120))
    plan = opmux.explain(opmux.linear, x, w, arch="sm_100")
    assert all(candidate.time_us is None for candidate in plan.candidates if candidate.name == "deepgemm")
