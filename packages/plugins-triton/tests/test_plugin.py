"""What the plugin tells the core, and that telling it costs no toolchain."""

import os
import subprocess
import sys

import torch

import opmux
from opmux.plugins import loading
from opmux_triton.archs import PORTABLE


def test_it_loads() -> None:
    assert [p for p in loading.failed_plugins() if p.name == "triton"] == []
    assert [(p.name, p.distribution) for p in loading.loaded_plugins()] == [("triton", "opmux-triton")]


def test_loading_it_imports_no_triton() -> None:
    program = (
        "import sys, opmux; from opmux.plugins import loading; loading.ensure_loaded()\n"
        "assert loading.loaded_plugins(), loading.failed_plugins()\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('triton', 'rich', 'typer')])"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRITON")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"


def test_explain_says_the_config_of_an_arch_that_is_not_here() -> None:
    x, weight = (torch.empty(*size, dtype=torch.bfloat16, device="meta") for size in ((64, 4096), (4096,)))
    plan = opmux.explain(opmux.rms_norm, x, weight, arch="gfx942")
    assert plan.chosen is not None
    assert plan.chosen.name == "triton"
    assert plan.config_source == "heuristic"
    assert plan.config is not None
    assert plan.config["num_warps"] in (1, 2, 4, 8, 16)


def test_a_product_of_16_bit_matrices_has_a_result_in_their_dtype() -> None:
    x, w = (torch.empty(*size, dtype=torch.bfloat16, device="meta") for size in ((4096, 4096), (4096, 4096)))

    def judged(*tensors: torch.Tensor) -> dict[str, str]:
        plan = opmux.explain(opmux.linear, *tensors, arch="sm_90", backend="triton", out_dtype=torch.float32)
        return {c.name: c.reason for c in plan.candidates if c.status == "rejected"}

    reason = "out_dtype is float32, takes bfloat16, float16"
    assert {name: found for name, found in judged(x, w).items() if found == reason} == {
        "triton": reason,
        "triton:hopper": reason,
    }
    assert "triton:float32" not in judged(x.float(), w.float())


def test_on_the_cpu_the_reference_runs_and_explain_says_why() -> None:
    plan = opmux.explain(opmux.rms_norm, torch.ones(2, 8), torch.ones(8))
    assert plan.chosen is not None
    assert plan.chosen.name == "reference"
    (reason,) = [c.reason for c in plan.candidates if c.name == "triton"]
    assert reason == f"archs: {', '.join(PORTABLE)}, this is cpu"
