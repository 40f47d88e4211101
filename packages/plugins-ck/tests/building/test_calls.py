"""The instance that is built ahead for a recorded call is the one that its target launches."""

import logging
import math

import pytest
import torch

import opmux
from opmux.plugin import registered_ops, takers
from opmux.tuner.candidates import Failure, entrants_of
from opmux_ck.attention import backward_targets, paged_targets
from opmux_ck.attention import targets as attention
from opmux_ck.building.calls import instances_of
from opmux_ck.gemm import grouped_targets, targets
from opmux_ck.library.places import NEEDED
from opmux_ck.norms import targets as norms
from opmux_ck.norms.instances import TEMPLATES
from opmux_ck.plugin import opmux_implementations
from opmux_emulator.jit_launches import on

BF16, FNUZ = torch.bfloat16, torch.float8_e4m3fnuz


def made(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def scales(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def codes(*shape: int) -> torch.Tensor:
    return torch.ones(shape).to(torch.int8)


QKV = (made(2, 40, 4, 64), made(2, 50, 2, 64), made(2, 50, 2, 64))
RAGGED = (made(40, 4, 64), made(50, 2, 64), made(50, 2, 64), int32(0, 40), int32(0, 50))
PAGED = (made(3, 8, 64), made(9, 32, 2, 64), made(9, 32, 2, 64), int32(0, 1, 2, 3), int32(5, 90, 0), made(3, 30).int())
LONGEST = {"max_seqlen_q": 40, "max_seqlen_k": 50}
CALLS = [
    ("rms_norm", (made(3, 64), made(64)), {}),
    ("add_rms_norm_", (made(3, 64), made(3, 64), made(64)), {}),
    ("add_layer_norm", (made(3, 64), made(3, 64), made(64), made(64)), {}),
    ("rms_norm_quantize", (made(3, 264), made(264)), {"dtype": torch.int8, "block": (1, -1)}),
    ("add_rms_norm_quantize", (made(2, 3, 64), made(2, 3, 64), made(64)), {"dtype": FNUZ}),
    ("linear", (made(3, 64), made(32, 64)), {}),
    ("scaled_linear", (made(3, 64, dtype=FNUZ), made(32, 64, dtype=FNUZ), scales(3, 1), scales(32, 1)),
     {"out_dtype": BF16}),
    ("scaled_linear", (made(3, 256, dtype=FNUZ), made(256, 256, dtype=FNUZ), scales(3, 2), scales(2, 2)),
     {"out_dtype": BF16}),
    ("grouped_linear", (made(9, 64), made(2, 32, 64), int32(0, 4, 9)), {}),
    ("masked_grouped_linear", (made(2, 9, 64), made(2, 32, 64), int32(4, 9)), {"expected_m": 6}),
    ("scaled_grouped_linear", (codes(9, 64), codes(2, 32, 64), int32(0, 4, 9), scales(9, 1), scales(2, 32, 1)),
     {"out_dtype": BF16}),
    ("scaled_masked_grouped_linear",
     (codes(2, 9, 256), codes(2, 256, 256), int32(4, 9), scales(2, 9, 2), scales(2, 2, 2)),
     {"expected_m": 6, "out_dtype": torch.float16}),
    ("attention", QKV, {}),
    ("attention", QKV, {"causal": True}),
    ("attention_lse", QKV, {"window": (3, -1)}),
    ("attention_varlen", RAGGED, {**LONGEST, "scale": 0.5}),
    ("attention_varlen_lse", RAGGED, {**LONGEST, "causal": True, "softcap": 9.0}),
    ("attention_backward", (QKV[0], *QKV, QKV[0], scales(2, 4, 40)), {"causal": True}),
    ("attention_varlen_backward", (RAGGED[0], *RAGGED[:3], RAGGED[0], scales(4, 40), *RAGGED[3:]), LONGEST),
    ("paged_attention", PAGED, {"max_seqlen_q": 1, "max_seqlen_k": 90}),
    ("paged_attention_lse", PAGED, {"max_seqlen_q": 1, "max_seqlen_k": 900, "window": (9, 0)}),
    ("paged_attention_lse", PAGED, {"max_seqlen_q": 8, "max_seqlen_k": 90, "softcap": 9.0}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "tensors", "options"), CALLS, ids=[f"{n}-{op}" for n, (op, *_) in enumerate(CALLS)])
def test_a_call_launches_what_is_built_ahead(op, tensors, options, monkeypatch) -> None:
    launched = []
    for module in (attention, paged_targets, backward_targets, targets, grouped_targets, norms):
        monkeypatch.setattr(
            module, "launch", lambda instance, grid, *arguments: launched.append((instance, grid, arguments))
        )
    found = list(takers(registered_ops()[op], *tensors, arch="gfx942", backend="ck", **options))
    assert found
    taker = found[0]
    config = taker.config()
    given = {**taker.call.tensors, **taker.call.options}
    {
        **dict.fromkeys((*TEMPLATES, "add_rms_norm_"), norms), "linear": targets, "scaled_linear": targets,
        "grouped_linear": grouped_targets, "masked_grouped_linear": grouped_targets,
        "scaled_grouped_linear": grouped_targets, "scaled_masked_grouped_linear": grouped_targets,
        **dict.fromkeys(("attention_backward", "attention_varlen_backward"), backward_targets),
        **dict.fromkeys(("paged_attention", "paged_attention_lse"), paged_targets),
    }.get(op, attention).__dict__[op](**given, config=config)  # fmt: skip
    assert [instance for instance, _, _ in launched] == list(instances_of(op, taker.call, config))
    for instance, grid, arguments in launched:
        assert math.prod(grid) > 0
        letters = "".join("p" if isinstance(one, torch.Tensor) else type(one).__name__[0] for one in arguments)
        assert letters == instance.signature


@pytest.mark.parametrize(("op", "tensors", "options"), CALLS, ids=[f"{n}-{op}" for n, (op, *_) in enumerate(CALLS)])
def test_explain_names_the_instances(op, tensors, options) -> None:
    (taker, *_) = takers(registered_ops()[op], *tensors, arch="gfx942", backend="ck", **options)
    names = ", ".join(instance.name for instance in instances_of(op, taker.call, taker.config()))
    reason = opmux.explain(getattr(opmux, op), *tensors, arch="gfx942", backend="ck", **options).chosen.reason
    assert reason.endswith(f"(heuristic: no tuned record for gfx942); launches {names}")


@pytest.mark.parametrize(("op", "tensors", "options"), CALLS, ids=[f"{n}-{op}" for n, (op, *_) in enumerate(CALLS)])
def test_the_tuner_tries_the_whole_space(op, tensors, options) -> None:
    """The config of a call without a record, and each of the space, all of which a record can hold."""
    (taker, *_) = takers(registered_ops()[op], *tensors, arch="gfx942", backend="ck", **options)
    entrants = list(entrants_of(taker))
    assert not [one for one in entrants if isinstance(one, Failure)]
    assert len(entrants) == len({taker.config(), *taker.space()})


def test_a_plan_is_logged_with_its_config_and_instance(monkeypatch, caplog) -> None:
    monkeypatch.setattr(norms, "launch", lambda instance, grid, *arguments: None)
    x = made(3, 64)
    with on("gfx942"), caplog.at_level(logging.INFO, "opmux"):
        for _ in range(2):
            opmux.rms_norm(x, x[0], backend="ck")
    assert [message for message in caplog.messages if message.startswith("plan: ")] == [
        "plan: rms_norm on gfx942 -> ck; rows 4, threads 64, repeats 1, vector 8, pads True, two_passes False; "
        "launches rms_norm_bf16_bf16_b4x512_t4x64_v8_pad"
    ]


def test_every_op_of_the_records_is_named_to_doctor() -> None:
    assert {record.op.rstrip("_") for record in opmux_implementations()} == set(NEEDED)
