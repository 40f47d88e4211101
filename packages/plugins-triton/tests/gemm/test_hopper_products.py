"""The Gluon product: its roles, each run as a thread, take turns without races."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gluon_threads import Descriptor, Machine, Pointer
from planted_launches import made

from opmux.arch import parse_arch
from opmux_triton.gemm import heuristics, hopper_kernels, hopper_products, hopper_targets
from opmux_triton.gemm.configs import HopperConfig
from opmux_triton.gemm.hopper_products import product
from opmux_triton.gemm.operands import matrix_of
from opmux_triton.launch import Launch, recording

OTHERWISE = heuristics.halves(parse_arch("sm_80"), 4096, 8193, 512)


def roles(*tile: int, **more: Any) -> HopperConfig:
    """A config of the Hopper kernel, which sums up four rows at a time."""
    return HopperConfig(*tile, otherwise=OTHERWISE, sum_rows=4, **more)


ROLES = {
    "shared tiles": roles(8, 16, 8, 3, 2, parts=4, group=2),
    "the rest cut": roles(8, 16, 8, 3, 2, parts=4, group=2, cut="rest"),
    "all cut": roles(8, 16, 8, 4, 2, slots=1, group=2, cut="all", spin=True),
    "in turn": roles(8, 8, 8, 5, 2, alternate=True, group=2),
    "in turn, the rest cut": roles(8, 8, 8, 3, 2, alternate=True, group=2, cut="rest", spin=True),
    "in turn, all cut": roles(8, 8, 8, 3, 2, alternate=True, group=2, cut="all"),
    "three warpgroups": roles(12, 8, 8, 3, 3, slots=1, group=2),
    "one warpgroup": roles(8, 8, 8, 2, 1, slots=1, group=2, swap=True, cut="all", spin=True),
    "a wide tile": roles(8, 24, 8, 3, 2, parts=4, slots=1, group=2, cut="rest"),
    "a wide tile, all cut": roles(16, 12, 8, 3, 2, slots=1, group=1, swap=True, cut="all"),
    "wide tiles in turn": roles(8, 24, 8, 4, 2, alternate=True, slots=1, group=2),
    "swapped": roles(16, 8, 8, 4, 2, group=2, swap=True, cut="all", spin=True),
}


@pytest.mark.parametrize("name", ROLES)
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, True)])
def test_roles_take_turns_without_races(name: str, turned: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    config = ROLES[name]
    monkeypatch.setattr(hopper_products, "_layout", lambda _shape: None)
    monkeypatch.setattr(
        hopper_products,
        "TensorDescriptor",
        lambda base, _sizes, _strides, shape, _layout: SimpleNamespace(base=base, block_shape=shape),
    )
    for sizes, units in itertools.product(((24, 40, 72), (17, 8, 136), (40, 40, 8), (8, 64, 200)), (3, 5)):
        if turned[0] and sizes[0] % 8:
            continue
        monkeypatch.setattr(hopper_products, "units", lambda _tensor, units=units: units)
        out, expected = by_roles(sizes, config, turned)
        np.testing.assert_array_equal(out, expected, err_msg=f"{name} {sizes} {units}")


def by_roles(sizes: tuple[int, int, int], config: HopperConfig, turned: tuple[bool, bool]) -> tuple[Any, Any]:
    """A product of small integers by the roles of every program, and what it should be."""
    m, n, k = sizes
    random = np.random.default_rng(m + n + k)
    a, b, bias = (random.integers(-3, 4, size).astype(float) for size in ((m, k), (n, k), (n,)))
    stored = [x.T.copy() if turn else x for x, turn in ((a, turned[0]), (b, turned[1]))]
    tensors = [made(*x.shape) for x in stored]
    result, out = made(m, n), np.full((m, n), np.nan)
    matrices = {id(tensor): x for tensor, x in zip((*tensors, result), (*stored, out), strict=True)}
    with recording("sm_90") as recorded:
        operands = (matrix_of(x, turn) for x, turn in zip(tensors, turned, strict=True))
        product(*operands, made(1, n)[0], result, sizes, config)
    launch, *sums = recorded.launches
    partial = None if launch.arguments[6] is None else np.full(launch.arguments[6].numel(), np.nan)
    meta = {name: value for name, value in launch.meta.items() if name.isupper()}
    for program in range(launch.grid[0]):
        arguments = (
            *(
                None if given is None else Descriptor(matrices[id(given.base)], given.block_shape)
                for given in launch.arguments[:5]
            ),
            Pointer(bias),
            None if partial is None else Pointer(partial),
            *launch.arguments[7:],
        )
        Machine(program, launch.grid[0], seed=program).run(hopper_kernels, "products", arguments, meta)
    for other in sums:
        target = np.broadcast_to(bias, out.shape)
        add_up(other, partial, *((out.T, target.T) if config.swap else (out, target)))
    return out, a @ b.T + bias


def add_up(launch: Launch, partial: Any, out: Any, bias: Any) -> None:
    """What `opmux_triton.gemm.kernels.sum_shares` does."""
    arguments = dict(zip(launch.kernel.arg_names, launch.arguments, strict=False))
    first, length, share = (arguments[name] for name in ("first", "length", "share"))
    height, left, right, group = (launch.meta[name] for name in ("BLOCK_M", "BLOCK_N", "REST_N", "GROUP"))
    width = left + right
    tiles_m, tiles_n = -(-out.shape[0] // height), -(-out.shape[1] // width)
    for tile in range(launch.grid[0]):
        start, at = divmod(first + tile, group * tiles_n)
        rows = min(tiles_m - start * group, group)
        here = np.s_[(start * group + at % rows) * height :, at // rows * width :]
        block = out[here][:height, :width]
        programs = range(tile * length // share, (tile * length + length - 1) // share + 1)
        flat = sum(partial.reshape(-1, height * width)[program + tile] for program in programs)
        # The last columns lie behind all rows of the first ones.
        halves = flat[: height * left].reshape(height, left), flat[height * left :].reshape(height, right)
        total = np.concatenate(halves, axis=1)
        block[:] = total[: block.shape[0], : block.shape[1]] + bias[here][:height, :width]


def test_roles_leave_what_has_no_descriptor_to_the_portable_kernels() -> None:
    config = roles(128, 256, 64, 4, 2, parts=4)
    with recording("sm_90") as recorded:
        hopper_targets.linear(made(4096, 512), made(8193, 512), None, config=config)
    assert [launch.kernel.__name__ for launch in recorded.launches] == ["tiles"]
