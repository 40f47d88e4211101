"""torch's FlopCounterMode counts the ops that state their operations."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from torch_bridge.samples import sample

import opmux
from opmux.callpath.op import OPS


def counted(call: Any) -> dict[str, int]:
    with FlopCounterMode(display=False) as mode:
        call()
    return {packet._qualified_op_name: count for packet, count in mode.get_flop_counts().get("Global", {}).items()}


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("linear", 2 * 5 * 8 * 3),
        ("linear_backward", 4 * 5 * 8 * 3),
        ("scaled_linear", 2 * 5 * 256 * 3),
        ("scaled_linear_accumulate", 2 * 5 * 256 * 3),
        ("grouped_linear", 2 * 5 * 8 * 4),
        ("grouped_linear_backward", 4 * 5 * 8 * 4),
        ("grouped_weight_grad", 2 * (2 + 1) * 8 * 4),
        ("masked_grouped_linear", 2 * (3 * 2) * 8 * 4),
        ("scaled_grouped_linear", 2 * 5 * 256 * 4),
        ("scaled_grouped_weight_grad", 2 * (129 + 1) * 8 * 4),
        ("scaled_masked_grouped_linear", 2 * (3 * 2) * 256 * 4),
        ("fused_linear_cross_entropy", 2 * 5 * 6 * 8),
        ("fused_linear_cross_entropy_gradients", 3 * 2 * 5 * 6 * 8),
        ("fused_linear_cross_entropy_backward", 0),
        ("attention", 2 * (2 * 4 * 3 * 4) * (4 + 2)),
        ("attention_lse", 2 * (2 * 4 * 3 * 4) * (4 + 2)),
        ("attention_backward", 2 * (2 * 4 * 3 * 4) * (3 * 4 + 2 * 2)),
        ("attention_varlen", 2 * 4 * (1 * 2 + 2 * 3) * (4 + 2)),
        ("attention_varlen_lse", 2 * 4 * (1 * 2 + 2 * 3) * (4 + 2)),
        ("attention_varlen_backward", 2 * 4 * (1 * 2 + 2 * 3) * (3 * 4 + 2 * 2)),
        ("paged_attention", 2 * 4 * (1 * 5 + 2 * 20) * (8 + 8)),
        ("paged_attention_lse", 2 * 4 * (1 * 5 + 2 * 20) * (8 + 8)),
    ],
)
@pytest.mark.parametrize("way", ["public", "registered"])
def test_a_call_is_counted(name: str, flops: int, way: str) -> None:
    call = sample(name)
    found = counted(call if way == "public" else lambda: call.registered(*call.tensors, **call.options))
    assert found == {f"opmux::{name}": flops}


def test_every_op_that_states_flops_is_tested() -> None:
    marks = test_a_call_is_counted.pytestmark  # type: ignore[attr-defined]
    tested = {name for mark in marks if mark.args[0] != "way" for name, _ in mark.args[1]}
    own = {n for n, op in OPS.items() if op.flops is not None and op.reference.__module__.startswith("opmux.")}
    assert own == tested


def test_a_backward_counts_the_gradients_that_are_wanted() -> None:
    x, w = torch.randn(5, 8, requires_grad=True), torch.randn(3, 8)
    found = counted(lambda: opmux.linear(x, w).sum().backward())
    assert found == {"opmux::linear": 240, "opmux::linear_backward": 240}


def test_fake_tensors_are_counted_by_the_bounds() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        call = sample("attention_varlen").with_tensors(lambda t: t)
    assert mode
    assert counted(call) == {"opmux::attention_varlen": 2 * 4 * (2 * 2 * 3) * (4 + 2)}


def test_what_states_nothing_counts_nothing() -> None:
    assert counted(sample("rms_norm")) == {}


PROGRAM = """
import sys
import torch, opmux
assert "torch.utils.flop_counter" not in sys.modules
opmux.linear(torch.randn(4, 8), torch.randn(6, 8))
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    opmux.linear(torch.randn(4, 8), torch.randn(6, 8))
    assert counter.get_total_flops() == 384, counter.get_total_flops()
with FlopCounterMode(display=False) as counter, torch.inference_mode():
    torch.ops.opmux.linear(torch.randn(4, 8), torch.randn(6, 8))
assert counter.get_total_flops() == 384
"""


def test_the_counter_is_not_imported_by_opmux() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
