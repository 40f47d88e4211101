"""What `opmux` shows: to `dir`, and to a type checker."""

import subprocess
import sys
from pathlib import Path

import pytest
from backends import backends, plugin
from mypy import api

import opmux
from opmux.callpath.op import OPS

ROOT = Path(__file__).parents[3]

PROGRAM = """\
import torch
import opmux

x = torch.randn(3, 8)
weight = torch.ones(8)
y: torch.Tensor = opmux.rms_norm(x, weight, eps=1e-5, backend="triton", out=x)
y, residual = opmux.add_rms_norm(x, x, weight)
grad_x, grad_weight = opmux.rms_norm_backward(y, x, weight, output_mask=(True, False))
out = opmux.attention(x, x, x, window=(4, 0), scale=None)
q, scale = opmux.quantize(x, dtype=torch.int8, scale_major="m")
fast = opmux.rms_norm.bind(x, weight, eps=1e-5)
fast(x, weight)
opmux.rms_norm.reference(x, weight)
opmux.nn.RMSNorm(8)
with opmux.trace() as trace, opmux.policy.override(strict=True):
    print(opmux.explain(opmux.rms_norm, x, weight), trace, opmux.rms_norm.op.flops, opmux.__version__)
opmux.rms_norm(x)  # 17
opmux.rms_norm(x, weight, epsilon=1e-5)  # 18
opmux.rms_norm(x, weight, eps="small")  # 19
opmux.attention(x, x, x, window=3)  # 20
opmux.gelu_and_mul(x, approximate="fast")  # 21
opmux.add_rms_norm_(x, x, weight, out=x)  # 22
opmux.nosuch(x)  # 23
"""

ERRORS = [
    (17, 'Missing positional argument "weight" in call to "__call__" of "_rms_norm"  [call-arg]'),
    (18, 'Unexpected keyword argument "epsilon" for "__call__" of "_rms_norm"  [call-arg]'),
    (19, 'Argument "eps" to "__call__" of "_rms_norm" has incompatible type "str"; expected "float"  [arg-type]'),
    (
        20,
        'Argument "window" to "__call__" of "_attention" has incompatible type "int"; '
        'expected "tuple[int, int]"  [arg-type]',
    ),
    (
        21,
        'Argument "approximate" to "__call__" of "_gelu_and_mul" has incompatible type "Literal[\'fast\']"; '
        "expected \"Literal['none', 'tanh']\"  [arg-type]",
    ),
    (22, 'Unexpected keyword argument "out" for "__call__" of "_add_rms_norm_"  [call-arg]'),
    (23, 'Module has no attribute "nosuch"  [attr-defined]'),
]


def test_a_type_checker_sees_the_signatures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = True\ncache_dir = cache\n[mypy-torch.*]\nfollow_imports = skip\n"
    )
    monkeypatch.chdir(tmp_path)
    told, wrong, _ = api.run(["--config-file", "mypy.ini", "program.py"])
    assert not wrong
    errors = [line.removeprefix("program.py:") for line in told.splitlines() if ": error: " in line]
    assert errors == [f"{line}: error: {text}" for line, text in ERRORS]


def test_the_stub_is_made_from_the_ops() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "scripts" / "make_stubs.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout) == (0, "")


def test_dir_lists_what_users_call() -> None:
    listed = dir(opmux)
    assert {"rms_norm", "add_rms_norm_", "attention_backward", "nn", "bench", "explain", "policy", "rope"} <= {*listed}
    assert {*listed} == {*opmux.__all__, "nn", "bench", "tune", "tuner", *OPS}
    for name in listed:
        assert getattr(opmux, name) is not None


def test_dir_loads_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "of_a_plugin", OPS["rms_norm"])
    with backends(mine=plugin()):
        assert "of_a_plugin" in dir(opmux)


def test_dir_shows_no_internals() -> None:
    import opmux.planning
    import opmux.signatures

    assert opmux.planning
    assert not {"planning", "signatures", "callpath", "torch_bridge", "ops", "log", "testing"} & {*dir(opmux)}
