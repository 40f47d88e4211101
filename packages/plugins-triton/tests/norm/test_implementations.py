"""A tuned record replaces what a heuristic says, of every kind of config."""

from pathlib import Path
from typing import Any

import pytest
import torch

import opmux
from opmux import tuning
from opmux.plugins import loading

CONFIG = '{""block"": 4096, ""rows"": 1, ""num_warps"": 16}'
RECORD = f"""op,arch,dtypes,options,dims,backend,config,time_us,error,compared
rms_norm,gfx942,x=bf16;weight=bf16,,tokens=64;hidden=4096,triton,"{CONFIG}",10,0.2,1
"""


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder of records in force, as OPMUX_TUNED puts it there."""
    (tmp_path / "planted.csv").write_text(RECORD)
    monkeypatch.setenv("OPMUX_TUNED", str(tmp_path))
    tuning.install(loading.loaded_plugins())
    yield
    monkeypatch.delenv("OPMUX_TUNED")
    tuning.install(loading.loaded_plugins())


def test_a_record_gives_the_config(records: Any) -> None:
    x, weight = (torch.empty(*size, dtype=torch.bfloat16, device="meta") for size in ((64, 4096), (4096,)))
    plan = opmux.explain(opmux.rms_norm, x, weight, arch="gfx942")
    assert plan.config == {"block": 4096, "rows": 1, "num_warps": 16}
    assert plan.config_source == "tuned"
    other = opmux.explain(opmux.rms_norm, x, weight, arch="gfx90a")
    assert other.config_source == "heuristic"
