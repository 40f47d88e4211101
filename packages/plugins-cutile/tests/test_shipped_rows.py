"""The rows that this package ships: small, valid as a whole, of this backend alone, and what it is chosen by."""

from pathlib import Path

import pytest
import torch

import opmux
import opmux_cutile
from opmux.plugins import loading
from opmux.tuning.measured import MeasuredRow, read_measured
from opmux_cutile import plugin
from opmux_cutile.archs import BACKEND

LIMIT_BYTES = 100_000
FOLDER = Path(opmux_cutile.__file__).with_name("records")
FILES = sorted(FOLDER.iterdir())
BF16 = torch.bfloat16
OPS = {
    "linear", "linear_backward", "attention", "attention_backward", "attention_varlen", "paged_attention", "rms_norm",
    "add_rms_norm_", "layer_norm", "silu_and_mul", "silu_mul", "apply_rope_", "quantize", "rms_norm_quantize",
    "add_rms_norm_quantize", "silu_and_mul_quantize", "scaled_linear", "grouped_linear", "masked_grouped_linear",
    "scaled_grouped_linear", "scaled_masked_grouped_linear", "grouped_linear_backward", "grouped_weight_grad",
    "write_kv_cache", "apply_rope", "silu_and_mul_backward",
}  # fmt: skip


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
    assert {row.implementation for row in found.rows} == {BACKEND}
    assert {row.machine.arch for row in found.rows} == {"sm_90"}
    assert len({row.machine.device for row in found.rows}) == 1
    assert all(row.machine.driver and row.machine.versions["torch"] for row in found.rows)
    assert all(row.error is not None and row.error <= 1 for row in found.rows)


def test_every_op_that_matters_has_rows_and_none_ties_a_call_to_a_config() -> None:
    """A row with a config would give it to calls near by, whose kernel a wheel without the compiler lacks."""
    found = rows()
    assert {row.op for row in found} == OPS
    assert all(row.config is None for row in found)


def test_they_are_in_force_and_predict() -> None:
    layers = {file.file: file.layer for file in opmux.tuning.report().files}
    assert all(layers[str(path)] == "plugin" for path in FILES)
    x, w = (torch.empty(size, 7168, dtype=BF16, device="meta") for size in (777, 5120))
    plan = opmux.explain(opmux.linear, x, w, arch="sm_90", backend=BACKEND)
    assert plan.chosen is not None
    assert (plan.chosen.time_source or "").startswith("predicted, from ")


def test_on_another_arch_they_have_no_effect() -> None:
    x, w = (torch.empty(size, 7168, dtype=BF16, device="meta") for size in (777, 5120))
    plan = opmux.explain(opmux.linear, x, w, arch="sm_100")
    assert all(candidate.time_us is None for candidate in plan.candidates if candidate.name == BACKEND)
