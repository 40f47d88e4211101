"""Two workers on a local Ray cluster, one of which dies: that costs its point only."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from opmux.tuning.measured import read_measured

PROGRAM = """
import os
import sys

import opmux
from opmux.tuner import ray_workers
from opmux.tuner.ray_workers import RemoteStation
from tuner_points import norm


class Mortal(RemoteStation):
    def measure(self, request):
        if request.point.dims["tokens"] == 13:
            os._exit(1)
        return super().measure(request)


if __name__ == "__main__":
    ray_workers.RemoteStation = Mortal
    points = [norm(tokens) for tokens in (4, 13, 8, 16)]
    tuned = opmux.tune(shapes=points, out=sys.argv[1], device="cpu", rounds=3, ray="local", workers=2)
    print(tuned)
"""


def test_a_worker_that_dies_costs_its_point_only(planted, tmp_path: Path) -> None:
    planted("right wrong")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    here = Path(__file__).parent.parent
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(here), os.environ["PYTHONPATH"]]),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    out = tmp_path / "cpu.measured"
    done = subprocess.run(
        [sys.executable, str(program), str(out)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^4 points measured in \d+ s$", done.stdout, re.MULTILINE)
    assert "tokens=13 hidden=32: its worker was lost: " in done.stdout
    found = read_measured(out)
    assert {row.dims["tokens"] for row in found.rows} == {4, 8, 16}
    assert {row.config["kind"] for row in found.failed} == {"wrong"}
    lines = (tmp_path / ".cpu.measured.journal").read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == 4


def test_without_ray_there_is_one_clear_line(inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tuner_points import norm

    import opmux
    from opmux.errors import InvalidArgument

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidArgument) as refused:
        opmux.tune(shapes=[norm()], out=tmp_path / "cpu.measured", device="cpu", ray="local")
    assert str(refused.value) == 'tune: `ray` needs Ray, which is not installed: pip install "opmux[ray]"'
