"""The checks on a GPU, without one: their parts, and that what a sanitizer runs compiles and is legal."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import checks
import gradients_on_gpu
import grouped_on_gpu
import groups_across_on_gpu
import on_gpu
import records
import scaled_gradients_on_gpu

import opmux
from opmux.plugin import takers
from opmux_deepgemm.generation.source import Product, text
from opmux_deepgemm.implementations import RECORDS
from opmux_deepgemm.operand_maps import with_scales


def test_every_family_is_a_part_under_each_tool() -> None:
    parts = checks.parts()
    families = (
        *on_gpu.FAMILIES,
        "added fp8",
        "across bf16",
        *grouped_on_gpu.FAMILIES,
        *groups_across_on_gpu.FAMILIES,
        *gradients_on_gpu.FAMILIES,
        *scaled_gradients_on_gpu.FAMILIES,
    )
    assert set(parts) == {"conformance", *(f"{tool} {family}" for tool in checks.TOOLS for family in families)}
    assert parts["racecheck added fp8"] == ("on_gpu.py", "added fp8", "racecheck")


def test_what_a_sanitizer_runs_can_be_written() -> None:
    kernels = [kernel for module in checks.SCRIPTS for kernel in module.sanitized()]
    assert len(kernels) == len(set(kernels))
    for product, config in kernels:
        assert "product(" in text(product, config)
    large = [(product, config) for product, config in kernels if product.scaled and config.kernel == "large"]
    assert any(product.accumulate for product, _ in large)
    assert {config.alternate > 0 for _, config in large} == {False, True}
    assert {config.cluster for _, config in large} == {1, 2, 4}
    assert {config.pieces > 0 for _, config in large} == {config.share_x for _, config in large} == {False, True}


def multiplied(config, given, y, accumulate=False) -> None:
    """Computes what the kernels compute, on the CPU."""
    if not given.layout:
        y.copy_(on_gpu.exact(given)[0])
        return
    family = f"{given.layout} {'bf16' if given.x_scale is None else 'fp8'}"
    if given.layout == "masked":
        rows, spare = tuple(given.sizes.tolist()), given.x.shape[1] - int(given.sizes.max())
    else:
        begins = given.offsets.diff()
        rows = tuple((begins if given.sizes is None else given.sizes).tolist())
        spare = int(begins[0]) - rows[0]
    k, n = given.x.shape[-1], given.w.shape[1]
    for group, place in enumerate(grouped_on_gpu.places(family, rows, spare)):
        scales = None if given.x_scale is None else given.x_scale.flatten(0, -2)[place]
        of_w = None if given.w_scale is None else given.w_scale[group]
        one = on_gpu.Operands(given.x.reshape(-1, k)[place], given.w[group], None, scales, of_w)
        y.view(-1, n)[place] = on_gpu.exact(one)[0].to(y.dtype)


def added_gradients(config, dy, x, offsets, sizes, out) -> None:
    """Adds what the kernels add, on the CPU."""
    sizes = offsets.diff() if sizes is None else sizes
    for group, (begin, size) in enumerate(zip(offsets.tolist(), sizes.tolist(), strict=False)):
        place = slice(begin, begin + size)
        out[group] += dy[place].double().mT @ x[place].double()


@pytest.fixture
def on_cpu(monkeypatch) -> None:
    """Kernels are played, tensors stay where they are."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(on_gpu.launching, "multiply", multiplied)
    for module in (on_gpu, grouped_on_gpu, groups_across_on_gpu, gradients_on_gpu, scaled_gradients_on_gpu):
        monkeypatch.setattr(module, "on_card", lambda tensor: tensor)


@pytest.mark.parametrize("family", on_gpu.FAMILIES)
def test_products_under_a_sanitizer_are_compared(family, on_cpu, monkeypatch) -> None:
    cases = list(on_gpu.tiny(family))
    assert [on_gpu.check(family, case, "cpu") for case in cases] == [""] * len(cases)

    def one_wrong(config, given, y, accumulate=False) -> None:
        multiplied(config, given, y)
        y[-1, -1] += 1000

    monkeypatch.setattr(on_gpu.launching, "multiply", one_wrong)
    assert all(on_gpu.check(family, case, "cpu").startswith("1 of ") for case in cases)


@pytest.mark.parametrize("family", grouped_on_gpu.FAMILIES)
def test_groups_under_a_sanitizer_are_compared(family, on_cpu, monkeypatch) -> None:
    cases = list(grouped_on_gpu.tiny(family))
    assert [grouped_on_gpu.check(family, case, "cpu") for case in cases] == [""] * len(cases)
    monkeypatch.setattr(on_gpu.launching, "multiply", lambda config, given, y: y.zero_())
    assert all(grouped_on_gpu.check(family, case, "cpu").startswith("group 0: ") for case in cases)


@pytest.mark.parametrize("family", groups_across_on_gpu.FAMILIES)
def test_operands_that_lie_otherwise_are_compared(family, on_cpu, monkeypatch) -> None:
    monkeypatch.setattr(groups_across_on_gpu, "add_gradients", added_gradients)
    cases = list(groups_across_on_gpu.checked(family, few=True))
    assert [groups_across_on_gpu.check(family, case, "cpu") for case in cases] == [""] * len(cases)
    monkeypatch.setattr(groups_across_on_gpu, "add_gradients", lambda *_: None)
    monkeypatch.setattr(on_gpu.launching, "multiply", lambda config, given, y: y.zero_())
    assert all(groups_across_on_gpu.check(family, case, "cpu").endswith(" wrong") for case in cases)


@pytest.mark.parametrize("family", groups_across_on_gpu.FAMILIES[:3])
def test_nan_of_a_group_is_its_own(family, on_cpu, monkeypatch) -> None:
    """A result that is right but for the group of NaN, or for a neighbour that has its NaN, is wrong."""
    across = groups_across_on_gpu
    cases = [case for case in across.checked(family, few=True) if getattr(case, "poisoned", -1) >= 0]
    assert {case.lie for case in cases} == set(across.FORMS)
    case, value = cases[0], 0.0

    def edited(y: torch.Tensor) -> None:
        if family == across.SUMS:
            y[case.poisoned + (value != 0)] = value
            return
        layout = across.along(family)
        place = across.places(layout, case.rows, case.spare)[case.poisoned + (value != 0)]
        y.view(-1, case.n)[place.start] = value

    def multiply(config, given, y, accumulate=False) -> None:
        multiplied(config, given, y)
        edited(y)

    def add(config, dy, x, offsets, sizes, out) -> None:
        added_gradients(config, dy, x, offsets, sizes, out)
        edited(out)

    monkeypatch.setattr(on_gpu.launching, "multiply", multiply)
    monkeypatch.setattr(across, "add_gradients", add)
    assert across.check(family, case, "cpu") == f"group {case.poisoned}: not all NaN"
    value = float("nan")
    found = across.check(family, case, "cpu")
    assert found.startswith(f"group {case.poisoned + 1}: ")
    assert found.endswith(" wrong")


def test_every_form_has_groups_that_begin_anywhere() -> None:
    across = groups_across_on_gpu
    for family in across.FAMILIES[:3]:
        lie = {case.lie for case in across.checked(family, few=False) if case.rows == across.ANYWHERE}
        assert lie == set(across.FORMS)
    begins = across.places("ragged bf16", across.ANYWHERE, 1)
    assert {place.start % 8 for place in begins if place.stop > place.start} == set(range(8))


def test_operands_across_k_under_a_sanitizer_are_compared(on_cpu, monkeypatch, capsys) -> None:
    on_gpu.run_across("across bf16", few=True)
    assert "across: right" in capsys.readouterr().out
    monkeypatch.setattr(on_gpu.launching, "multiply", lambda config, given, y: y.zero_())
    with pytest.raises(SystemExit):
        on_gpu.run_across("across bf16", few=True)


def test_added_products_under_a_sanitizer_are_compared(on_cpu, monkeypatch, capsys) -> None:
    def added(config, given, y, accumulate) -> None:
        assert accumulate
        k = given.x.shape[1]
        x, w = (
            codes.double() * scales.double().repeat_interleave(128, 1)[:, :k]
            for codes, scales in ((given.x, given.x_scale), (given.w, given.w_scale))
        )
        y += x @ w.t()

    monkeypatch.setattr(on_gpu.launching, "multiply", added)
    on_gpu.check_added(*on_gpu.TINY_ADDED, on_gpu.tiny_added(), "cpu")
    on_gpu.check_added(*on_gpu.TINY_COPIED, on_gpu.tiny_copied(), "cpu", on_gpu.LIE[1:])
    said = capsys.readouterr().out.splitlines()
    assert said == ["added: 300 136 400, 5 configs right", *["added: 300 144 656, 5 configs right"] * 3]
    monkeypatch.setattr(on_gpu.launching, "multiply", lambda *_, **__: None)
    with pytest.raises(SystemExit):
        on_gpu.check_added(*on_gpu.TINY_ADDED, on_gpu.tiny_added(), "cpu")


def test_what_is_added_under_a_sanitizer_has_copied_scales_in_every_layout() -> None:
    kernels = dict.fromkeys(on_gpu.of_added(*on_gpu.TINY_COPIED, on_gpu.tiny_copied(), on_gpu.LIE[1:]))
    assert {(product.x_scales, product.w_scales) for product, _ in kernels} == set(on_gpu.LIE[1:])
    assert set(kernels) <= set(on_gpu.sanitized())
    for m, n, k in on_gpu.EDGES_ADDED:
        for lie in on_gpu.LIE[1:]:
            given = on_gpu.added_operands(m, n, k, "cpu", lie)
            product = Product("float8_e4m3fn", "float32", n, k, accumulate=True)
            found = with_scales(product, on_gpu.tiny_copied()[0], given.x_scale, given.w_scale)
            assert (found.x_scales, found.w_scales) == lie


def test_gradients_under_a_sanitizer_are_compared(on_cpu, monkeypatch) -> None:
    monkeypatch.setattr(gradients_on_gpu, "add_gradients", added_gradients)
    cases = list(gradients_on_gpu.checked(few=True))
    assert [gradients_on_gpu.check(case, "cpu") for case in cases] == [""] * len(cases)
    monkeypatch.setattr(gradients_on_gpu, "add_gradients", lambda *_: None)
    assert all(gradients_on_gpu.check(case, "cpu").startswith("group 0: ") for case in cases)


def test_gradients_from_codes_under_a_sanitizer_are_compared(on_cpu, monkeypatch) -> None:
    def added(config, dy, x, dy_scale, x_scale, offsets, sizes, out) -> None:
        opmux.scaled_grouped_weight_grad.reference(out, dy, x, offsets, dy_scale, x_scale, sizes)

    monkeypatch.setattr(scaled_gradients_on_gpu, "add_scaled_gradients", added)
    cases = list(scaled_gradients_on_gpu.checked(few=True))
    assert [scaled_gradients_on_gpu.check(case, "cpu") for case in cases] == [""] * len(cases)
    monkeypatch.setattr(scaled_gradients_on_gpu, "add_scaled_gradients", lambda *_: None)
    assert all(scaled_gradients_on_gpu.check(case, "cpu").startswith("group 0: ") for case in cases)


def test_tensors_keep_their_strides_on_the_gpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.Tensor, "cuda", torch.Tensor.clone)
    room = torch.arange(40.0).view(8, 5)
    for tensor in (room, room[:, :3].t(), room[2:]):
        copy = on_gpu.on_card(tensor)
        assert torch.equal(copy, tensor)
        assert copy.stride() == tensor.stride()
        assert copy.data_ptr() != tensor.data_ptr()


def test_points_of_the_records_are_taken() -> None:
    found = records.points()
    assert len(found) == len({point.key for point in found})
    assert {point.op for point in found} == set(records.TURNS) == {record.op for record in RECORDS}
    for point in found:
        taken = takers(
            point.definition.public, *point.tensors().values(), arch="sm_90", backend="deepgemm", **point.all_options
        )
        assert taken, point.key


def test_parts_that_do_not_exist_are_refused(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["checks.py", "--parts", "memcheck large fp16"])
    with pytest.raises(SystemExit):
        checks.main()
    assert "memcheck large fp16" in capsys.readouterr().err
