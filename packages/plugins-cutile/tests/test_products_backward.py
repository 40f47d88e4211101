"""Gradients of `linear`: which products are launched, in which tiles, and what the compiler makes of them."""

import pytest
import torch
from cubins import compiled, kernels, layout, meta

from opmux.plugin import parse_arch
from opmux_cutile.launching import recording
from opmux_cutile.products import backward
from opmux_cutile.products.backward_configs import (
    LinearBackwardConfig,
    linear_backward_config,
    linear_backward_space,
)
from opmux_cutile.products.configs import LinearConfig, linear_config
from opmux_cutile.products.gathered import targets
from opmux_cutile.products.gathered.configs import (
    gathered_backward_config,
    gathered_backward_space,
    gathered_config,
)

BF16 = torch.bfloat16
CONFIG = LinearBackwardConfig(LinearConfig(64, 64, 64), LinearConfig(64, 128, 128))


@pytest.mark.parametrize(("mask", "across"), [((True, True, True), [False, True]), ((True, False, False), [False]),
                                              ((False, True, False), [True]), ((False, False, True), [])])  # fmt: skip
def test_only_what_is_wanted_is_computed(mask, across) -> None:
    grad, x, w = torch.zeros(2, 50, 24, dtype=BF16), torch.zeros(2, 50, 16, dtype=BF16), torch.zeros(24, 16, dtype=BF16)
    with recording() as launches:
        found = backward.linear_backward(grad, x, w, output_mask=mask, config=CONFIG)
    assert [kernel.parameters[-1].value for kernel, *_ in launches] == across
    sizes = (2, 50, 16), (24, 16), (24,)
    assert [tuple(t.shape) for t in found] == [s if m else (0,) for s, m in zip(sizes, mask, strict=True)]


def test_operands_are_given_as_they_lie() -> None:
    grad, x, w = torch.zeros(100, 24, dtype=BF16), torch.zeros(100, 16, dtype=BF16), torch.zeros(24, 16, dtype=BF16)
    with recording() as launches:
        backward.linear_backward(grad, x, w, output_mask=(True, True, False), config=CONFIG)
    (of_x, _, given_x), (of_w, _, given_w) = launches
    assert (given_x[1:3], given_x[6:8], given_x[11:13]) == ((100, 24), (24, 16), (100, 16))
    assert (given_w[1:3], given_w[6:8], given_w[11:13]) == ((100, 24), (100, 16), (24, 16))
    assert [p.value for p in of_x.parameters[3:6]] == [64, 64, 64]
    assert [p.value for p in of_w.parameters[3:6]] == [64, 128, 128]


def test_without_rows_gradients_of_weights_are_zero() -> None:
    grad, x, w = torch.zeros(0, 24, dtype=BF16), torch.zeros(0, 16, dtype=BF16), torch.ones(24, 16, dtype=BF16)
    with recording() as launches:
        found = backward.linear_backward(grad, x, w, output_mask=(True, True, True), config=CONFIG)
    assert not launches
    assert [int(t.abs().sum()) for t in found] == [0, 0, 0]


def test_each_product_gets_the_tile_of_a_product_of_its_sizes() -> None:
    features = {"bucket(tokens, 8)": 64, "n": 8192, "k": 4096}
    for name in ("sm_90", "sm_120"):
        arch = parse_arch(name)
        found = linear_backward_config(arch, features)
        assert found.of_x == linear_config(arch, features | {"n": 4096})
        assert found.of_w == linear_config(arch, {"bucket(tokens, 8)": 8192, "n": 4096})
        space = list(linear_backward_space(arch, features))
        assert space[0] == found
        assert len(set(space)) == len(space) > 20


def test_where_threads_copy_them_operands_are_given_as_chunks_of_eight() -> None:
    grad, x, w = torch.zeros(100, 24, dtype=BF16), torch.zeros(100, 16, dtype=BF16), torch.zeros(24, 16, dtype=BF16)
    config = gathered_backward_config(parse_arch("sm_80"), {"bucket(tokens, 8)": 100, "n": 24, "k": 16})
    with recording() as launches:
        targets.linear_backward(grad, x, w, output_mask=(True, True, False), config=config)
    (of_x, _, given_x), (of_w, _, given_w) = launches
    assert [given_x[place : place + 3] for place in (1, 8, 15)] == [(100, 3, 8), (24, 2, 8), (100, 2, 8)]
    assert [given_w[place : place + 3] for place in (1, 8, 15)] == [(100, 3, 8), (100, 2, 8), (24, 2, 8)]
    assert [p.value for p in of_x.parameters[3:]] == [64, 128, 64, 8, False]
    assert [p.value for p in of_w.parameters[3:]] == [32, 64, 64, 8, True]


def test_where_threads_copy_operands_each_product_gets_the_tile_of_a_product_of_its_sizes() -> None:
    arch, features = parse_arch("sm_80"), {"bucket(tokens, 8)": 64, "n": 8192, "k": 4096}
    found = gathered_backward_config(arch, features)
    assert found.of_x == gathered_config(arch, features | {"n": 4096})
    assert found.of_w == gathered_config(arch, {"bucket(tokens, 8)": 8192, "n": 4096})
    space = list(gathered_backward_space(arch, features))
    assert space[0] == found
    assert len(set(space)) == len(space) > 5


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89"])
@pytest.mark.parametrize("rows", [60, 8192])
def test_products_use_the_matrix_units_where_threads_copy_operands(arch, rows, tmp_path) -> None:
    for wanted in kernels("linear_backward", meta(rows, 1024), meta(rows, 4096), meta(1024, 4096), arch=arch):
        found = compiled(wanted, arch, tmp_path)
        assert found.parameters == layout(wanted.letters)
        assert found.count("HMMA.16816.F32.BF16") > 0
        assert found.count("LDGSTS.E.BYPASS.128") > 0
        assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("arch", "instruction"), [("sm_90", "HGMMA"), ("sm_100", "UTCHMMA"), ("sm_120", "HMMA.16816.F32.BF16")]
)
@pytest.mark.parametrize("rows", [60, 512, 8192])
def test_products_use_the_matrix_units_and_the_copy_engine(arch, instruction, rows, tmp_path) -> None:
    for wanted in kernels("linear_backward", meta(rows, 1024), meta(rows, 4096), meta(1024, 4096), arch=arch):
        found = compiled(wanted, arch, tmp_path)
        assert found.parameters == layout(wanted.letters)
        assert found.count(instruction) > 0
        assert found.count("UTMALDG") > 0
        assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)
