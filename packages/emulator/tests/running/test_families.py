"""Ops of the Triton backend, compiled for gfx942 and executed, give what the references give, with no judgement."""

import pytest
import torch
from emulated_launches import on

import opmux
from opmux.plugin import registered_ops, takers
from opmux.plugins import loading
from opmux.testing import cases_of
from opmux.testing.inputs import make_arguments

OPS = (
    "rms_norm",
    "silu_and_mul",
    "linear",
    "attention",
    "rms_norm_backward",
    "apply_rope",
    "layer_norm",
    "paged_attention",
    "attention_varlen",
    "merge_attention_states",
    "add_rms_norm",
    "silu_mul",
    "gelu_and_mul",
)


@pytest.mark.parametrize("op", OPS)
def test_against_the_reference(op: str) -> None:
    loading.ensure_loaded()
    public = registered_ops()[op].op.public
    done = 0
    for case in cases_of(op, "interpreter"):
        if case.probe != "values" or done == 2:
            continue
        made = make_arguments(case, torch.device("cpu"))
        tensors = list(made.tensors.values())
        own = [
            t for t in takers(public, *tensors, arch="gfx942", **made.options) if t.implementation.backend == "triton"
        ]
        if not own:
            continue
        with on("gfx942") as ran:
            got = own[0].run()
        expected = public(*tensors, backend="reference", **made.options)
        pairs = zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, expected)), strict=True)
        for ours, reference in pairs:
            torch.testing.assert_close(ours, reference, rtol=2e-2, atol=2e-2)
        assert ran.reports
        done += 1
    assert done == 2
    opmux.policy.reset()
