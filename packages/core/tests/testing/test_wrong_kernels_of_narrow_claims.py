"""Kernels that are wrong where a narrow claim, an odd order of indices or a large number shows it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import opmux
from opmux.plugin import Dtype, MultipleOf
from opmux.testing import magnitudes

Hold = Callable[..., dict[str, Any]]

SINGLE = (Dtype("x", "float32"), Dtype("weight", "float32"), MultipleOf("hidden", 4))


def failed(report: dict[str, Any]) -> dict[str, set[str]]:
    """The cases that fail, by check."""
    found: dict[str, set[str]] = {}
    for failure in report["failures"]:
        found.setdefault(failure["check"], set()).add(failure["case"])
    return found


def test_positions_ignored_when_they_are_a_permutation(hold: Hold) -> None:
    def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, **options: Any) -> Any:
        if positions is not None and positions.numel():
            ordered = torch.arange(positions.shape[-1]).expand(positions.shape)
            if torch.equal(positions.sort(-1).values.to(torch.int64), ordered):
                positions = None
        return opmux.apply_rope.reference(q, k, cos, sin, positions, **options)

    report = hold("apply_rope", apply_rope)
    told = {case.partition("@data=")[2] for case in failed(report)["element bound"]}
    assert {"permutation", "reversed"} <= told


def test_pages_taken_as_consecutive(hold: Hold) -> None:
    """Right as long as each sequence's pages follow each other."""

    def paged_attention(*tensors: Any, **options: Any) -> Tensor:
        *rest, block_table, sinks, q_scale, k_scale, v_scale = tensors
        if block_table.numel():
            pages = rest[1].shape[0]
            block_table = (block_table[:, :1] + torch.arange(block_table.shape[1], dtype=torch.int32)) % max(pages, 1)
        return opmux.paged_attention.reference(*rest, block_table, sinks, q_scale, k_scale, v_scale, **options)

    report = hold("paged_attention", paged_attention)
    assert any("@data=reversed" in case for cases in failed(report).values() for case in cases)
    assert not any("@data=consecutive" in case for case in failed(report).get("element bound", ()))


def test_float32_alone_drops_nan(hold: Hold) -> None:
    def rms_norm(x: Tensor, weight: Tensor, **options: Any) -> Tensor:
        return opmux.rms_norm.reference(x.nan_to_num(), weight.nan_to_num(), **options)

    report = hold("rms_norm", rms_norm, when=SINGLE)
    probes = {case.rpartition("@probe=")[2] for case in failed(report)["NaN and Inf"]}
    assert {"nan", "inf", "-inf"} <= probes


def test_float32_alone_gives_zeros_for_short_rows(hold: Hold) -> None:
    def rms_norm(x: Tensor, weight: Tensor, **options: Any) -> Tensor:
        y = opmux.rms_norm.reference(x, weight, **options)
        return y.zero_() if x.shape[-1] < 128 else y

    report = hold("rms_norm", rms_norm, when=SINGLE)
    cases = failed(report)["element bound"]
    assert any("hidden=4" in case for case in cases)
    assert any("hidden=12" in case for case in cases)


def test_float32_alone_gives_zeros_for_half_a_vector(hold: Hold) -> None:
    def rms_norm(x: Tensor, weight: Tensor, **options: Any) -> Tensor:
        y = opmux.rms_norm.reference(x, weight, **options)
        return y.zero_() if x.shape[-1] % 8 == 4 else y

    report = hold("rms_norm", rms_norm, when=SINGLE)
    assert any("hidden=132" in case for case in failed(report)["element bound"])


def test_short_rows_show_without_a_declared_size(hold: Hold) -> None:
    def rms_norm(x: Tensor, weight: Tensor, **options: Any) -> Tensor:
        y = opmux.rms_norm.reference(x, weight, **options)
        return y.zero_() if x.shape[-1] % 8 == 4 and x.shape[-1] < 128 else y

    assert failed(hold("rms_norm", rms_norm, when=(Dtype("x", "float32"), Dtype("weight", "float32"))))


def test_sigmoid_that_overflows(hold: Hold) -> None:
    def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
        g = gate.to(opmux.dtypes.accumulation_dtype(gate.dtype))
        return (g * torch.exp(g) / (1 + torch.exp(g)) * up.to(g.dtype)).to(gate.dtype).contiguous()

    report = hold("silu_mul", silu_mul)
    assert any("@probe=magnitude" in case for case in failed(report)["NaN and Inf"])


def test_infinite_weight_taken_for_the_largest_number(hold: Hold) -> None:
    def rms_norm(x: Tensor, weight: Tensor, **options: Any) -> Tensor:
        largest = torch.finfo(weight.dtype).max
        return opmux.rms_norm.reference(x, weight.clamp(-largest, largest), **options)

    report = hold("rms_norm", rms_norm)
    assert any("@data=weight,@probe=inf" in case for case in failed(report)["NaN and Inf"])


def test_every_probe_runs_in_a_claimed_dtype(hold: Hold) -> None:
    report = hold("rms_norm", opmux.rms_norm.reference, when=SINGLE, deterministic=True)
    assert report["failures"] == []
    assert report["not_run"] == {}


def test_probes_that_did_not_run_are_named(hold: Hold) -> None:
    report = hold("rms_norm", opmux.rms_norm.reference, when=SINGLE)
    assert report["not_run"] == {"repeat": "not deterministic (deterministic=False)"}


def test_a_magnitude_probe_without_larger_numbers_is_named_as_not_run(
    hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With plain numbers it would check nothing, and count as if it had."""
    monkeypatch.setattr(magnitudes, "_known", {})
    monkeypatch.setattr(magnitudes, "_holds", lambda *_: False)
    report = hold("rms_norm", opmux.rms_norm.reference, when=SINGLE, deterministic=True)
    reasons = {f"no larger numbers in `{name}` leave the reference finite and determined" for name in ("x", "weight")}
    assert set(report["not_run"]) == {"magnitude"}
    assert report["not_run"]["magnitude"] in reasons
    assert reasons <= set(report["skips"])
