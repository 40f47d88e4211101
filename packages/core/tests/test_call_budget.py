"""The benchmark of the call path runs in any environment; its figures are judged by people, not here."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

PROGRAM = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import call_budget
from opmux.plugin import Bucket, Implementation, temporary_plugin

call_budget.ROUNDS, call_budget.CALLS = 1, 3
beside = Implementation(op="rms_norm", target=print, archs=("sm_90",), features=(Bucket("tokens"),))
plugin = call_budget.SimpleNamespace(OPMUX_API_VERSION=1, opmux_implementations=call_budget.opmux_hook([beside]))
with temporary_plugin(plugin, "beside"):
    assert {{*call_budget.LIMITS}} < {{*call_budget.measure()}}
"""


def test_features_of_other_backends_do_not_stop_it():
    """Those that read a star dim need it bound, as the generated code has it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_gradients_have_their_figures_too():
    program = BENCHMARKS / "gradient_budget.py"
    done = subprocess.run(
        [sys.executable, program, "--rounds", "1", "--calls", "3", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"attention", "linear", "rms_norm", "silu_mul"}
    assert all({"forward", "backward", "least forward", "least backward"} < set(us) for us in found.values())
