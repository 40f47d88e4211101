"""How explain tells of records."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opmux
from opmux import tuning
from opmux.definition import define_op
from opmux.plugin import hookimpl
from opmux.plugins import loading

WEIGHT = torch.ones(64)


def test_the_table(mine, folder: Path, put, row: Callable) -> None:
    put(folder / "records.csv", row(dims="tokens=4096;hidden=64"), row(dims="tokens=16;hidden=64"))
    tuning.reload()
    text = str(opmux.explain(opmux.rms_norm, torch.ones(3000, 64), WEIGHT)).splitlines()
    assert text[0].endswith(" plan key: f32 f32 | tuned = hidden=64 tokens>16")
    reason = "tuned for tokens=4096 (nearest to 3000), records.csv:2; block 64"
    assert text[1].split() == ["1", "mine", "a-test", "0", "chosen", *reason.split()]
    assert text[2].split() == ["2", "mine:plain", "a-test", "0", "accepted", "priority", "20"]


@pytest.mark.parametrize(
    ("tokens", "note"),
    [
        (16, "tuned for tokens=16 (exact), records.csv:3"),
        (1, "tuned for tokens=16 (nearest to 1), records.csv:3"),
        (17, "tuned for tokens=4096 (nearest to 17), records.csv:2"),
        (9000, "tuned for tokens=4096 (nearest to 9000), records.csv:2"),
    ],
)
def test_how_a_record_was_matched(mine, folder: Path, put, row: Callable, tokens: int, note: str) -> None:
    put(folder / "records.csv", row(dims="tokens=4096;hidden=64"), row(dims="tokens=16;hidden=64"))
    tuning.reload()
    plan = opmux.explain(opmux.rms_norm, torch.ones(tokens, 64), WEIGHT)
    assert plan.chosen.reason == f"{note}; block 64"
    assert (plan.config, plan.config_source) == ({"block": 64}, "tuned")


def test_several_sizes(folder: Path, put, row: Callable) -> None:
    dims = "batch={};seq_q={};seq_k={};heads=2;kv_heads=1;head_dim=8;value_dim=8"
    base = row(op="attention", dtypes="q=f32;k=f32;v=f32", backend="reference", config="")
    put(folder / "records.csv", {**base, "dims": dims.format(2, 64, 64)}, {**base, "dims": dims.format(1, 1, 4096)})
    assert tuning.reload().refused == ()

    def reason(batch: int, seq_q: int, seq_k: int) -> str:
        kv = torch.ones(batch, seq_k, 1, 8)
        return opmux.explain(opmux.attention, torch.ones(batch, seq_q, 2, 8), kv, kv).chosen.reason

    assert reason(2, 64, 64) == "tuned for seq_q=64 batch=2 seq_k=64 (exact), records.csv:2"
    assert reason(3, 1, 100) == (
        "tuned for seq_q=1 batch=1 seq_k=4096 (nearest to seq_q=1 batch=3 seq_k=100), records.csv:3"
    )


def test_where_the_config_came_from(mine, folder: Path, put, row: Callable) -> None:
    def reason(tokens: int = 128, hidden: int = 64) -> str:
        with opmux.policy.override(disable=["mine:plain"]):
            return opmux.explain(opmux.rms_norm, torch.ones(tokens, hidden), torch.ones(hidden)).chosen.reason

    assert reason() == "priority 10; block 1 (heuristic: no tuned record for cpu)"
    put(folder / "records.csv", row(compared="1"))
    tuning.reload()
    assert reason(100) == "priority 10; block 64 (tuned for tokens=128 (nearest to 100), records.csv:2)"
    put(folder / "records.csv", row(compared="1", config=""))
    tuning.reload()
    assert reason() == "priority 10; block 1 (heuristic: the tuned record has no config)"
    put(folder / "records.csv", row(compared="1", backend="other"))
    tuning.reload()
    assert reason() == "priority 10; block 1 (heuristic: no tuned record of mine for this call)"


def test_as_if_on_another_arch(mine, folder: Path, put, row: Callable) -> None:
    put(folder / "records.csv", row(arch="gfx942", config='{"block": 512}'))
    tuning.reload()
    x = torch.ones(128, 64)
    there = opmux.explain(opmux.rms_norm, x, WEIGHT, arch="gfx942")
    assert (there.chosen.name, there.config, there.config_source) == ("mine", {"block": 512}, "tuned")
    here = opmux.explain(opmux.rms_norm, x, WEIGHT)
    assert (here.chosen.name, here.config_source) == ("mine:plain", "default")


def test_an_op_whose_sizes_are_all_matched_exactly(folder: Path, put, row: Callable) -> None:
    class Defining:
        OPMUX_API_VERSION = 1

        @hookimpl
        def opmux_ops(self) -> list[Any]:
            @define_op
            def transposed_for_records(x: Float32[Tensor, "rows width"]) -> Float32[Tensor, "width rows"]:
                """Transpose."""
                return x.T.contiguous()

            return [transposed_for_records]

    fields = {"dtypes": "x=f32", "dims": "rows=8;width=4", "backend": "reference", "config": ""}
    put(folder / "records.csv", row(op="transposed_for_records", **fields))
    with loading.temporary_plugin(Defining(), "defining"):
        op = opmux.transposed_for_records
        plan = opmux.explain(op, torch.ones(8, 4))
        assert plan.chosen.reason == "tuned for these dims (exact), records.csv:2"
        assert plan.key == "f32 | tuned = rows=8 width=4"
        assert opmux.explain(op, torch.ones(8, 5)).key == "f32 | tuned = none"
        assert op(torch.ones(8, 4)).shape == (4, 8)
