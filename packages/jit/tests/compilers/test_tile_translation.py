"""The translation to Tile IR: what cuda.tile is given for each parameter. A package with its names stands for it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opmux_jit.compilers import tile_translation

PLAYED = """
import json, sys
from types import SimpleNamespace
import cuda.tile as tile

def named(kind):
    return lambda *given, **more: [kind, *given, more]

ConstantConstraint, ScalarConstraint, ArrayConstraint = named("constant"), named("scalar"), named("array")
CallingConvention = SimpleNamespace(cutile_python_v2=lambda: "python v2")

def KernelSignature(parameters, convention, symbol):
    return [parameters, convention, symbol]

def export_kernel(kernel, signatures, out, **how):
    with open(out, "w") as file:
        json.dump({"kernel": kernel, "signatures": signatures, "torch": sys.modules["torch"], **how}, file)
"""
KERNELS = """
class Kernel:
    def replace_hints(self, **hints):
        return ["norm", hints]

norm = Kernel()
"""


@pytest.fixture
def translate(tmp_path: Path) -> Any:
    """Runs the program, as the compiler does, and returns what was exported."""
    package = tmp_path / "path" / "cuda" / "tile"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('float32, int32 = "float32", "int32"\n')
    (package / "compilation.py").write_text(PLAYED)
    (tmp_path / "kernels.py").write_text(KERNELS)

    def run(*flags: str) -> Any:
        out = tmp_path / "out.tileirbc"
        command = [sys.executable, "-P", tile_translation.__file__, str(tmp_path / "kernels.py"), str(out), *flags]
        path = {**os.environ, "PYTHONPATH": str(tmp_path / "path")}
        done = subprocess.run(command, env=path, capture_output=True, text=True, check=False)
        return json.loads(out.read_text()) if done.returncode == 0 else done.stderr

    return run


TARGET = ("--arch=sm_90", "--bytecode=13.4", "--kernel=norm")


def test_arch_version_kernel_and_hints_are_handed_over(translate) -> None:
    made = translate(*TARGET, "--hint=occupancy=2", "--hint=num_ctas=1")
    assert made == {
        "kernel": ["norm", {"occupancy": 2, "num_ctas": 1}],
        "signatures": [[[], "python v2", "norm"]],
        "torch": None,  # not imported, though it is installed
        "gpu_code": "sm_90",
        "output_format": "tileir_bytecode",
        "bytecode_version": "13.4",
    }


def test_parameters_keep_their_order_and_what_is_known_of_them(translate) -> None:
    array = {
        "kind": "array", "dtype": "float32", "rank": 2, "shape": [None, 128], "stride": [None, 1], "divides": 8,
        "alignment": 16, "groups": ["x"],
    }  # fmt: skip
    given = [array, {"kind": "scalar", "dtype": "int32"}, {"kind": "constant", "value": 4}]
    made = translate(*TARGET, *(f"--parameter={json.dumps(parameter)}" for parameter in given))
    ((parameters, _, _),) = made["signatures"]
    known = {
        "index_dtype": "int32", "stride_lower_bound_incl": 0, "alias_groups": ["x"], "may_alias_internally": False,
        "stride_constant": [None, 1], "shape_constant": [None, 128],
        "stride_divisible_by": [8, 1],  # a constant stride says it itself
        "base_addr_divisible_by": 16,
    }  # fmt: skip
    assert parameters == [["array", "float32", 2, known], ["scalar", "int32", {}], ["constant", 4, {}]]


def test_a_kernel_that_the_module_lacks_is_said(translate) -> None:
    assert "has no attribute 'gone'" in translate("--arch=sm_90", "--bytecode=13.4", "--kernel=gone")
