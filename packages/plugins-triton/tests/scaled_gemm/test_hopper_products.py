"""The Gluon kernel of scaled products: its roles, each run as a thread, take turns, and scales meet their blocks."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gluon_threads import Descriptor, Machine, Pointer
from planted_launches import made

from opmux_triton.launch import Launch, recording
from opmux_triton.scaled_gemm import hopper_kernels, hopper_products, hopper_targets
from opmux_triton.scaled_gemm.configs import ScaledConfig
from opmux_triton.scaled_gemm.hopper_configs import HopperScaledConfig

OTHERWISE = ScaledConfig(block_m=64, block_n=64, block_k=128, num_warps=4, num_stages=3)
FP8 = torch.float8_e4m3fn


def roles(*tile: int, **more: Any) -> HopperScaledConfig:
    """A config of the Hopper kernel."""
    return HopperScaledConfig(*tile, otherwise=OTHERWISE, group=2, **more)


ROLES = {
    "two warpgroups": roles(128, 128, 3, 2),
    "three warpgroups, the rest cut": roles(192, 64, 2, 3, cut="rest"),
    "one warpgroup": roles(64, 32, 4, 1, parts=1),
    "swapped, all cut": roles(64, 16, 3, 1, parts=1, swap=True, cut="all"),
    "swapped": roles(128, 64, 2, 2, swap=True),
    "scales two blocks ahead": roles(128, 128, 3, 2, ahead=True),
    "swapped and cut, scales two blocks ahead": roles(64, 16, 3, 1, parts=1, swap=True, cut="all", ahead=True),
}
SIZES = ((200, 264, 400), (17, 72, 1040), (3, 136, 128))
BLOCKS = ("tensor", "token", "square", "row")


@pytest.mark.parametrize("name", ROLES)
@pytest.mark.parametrize("blocks", BLOCKS)
def test_roles_take_turns_and_scales_meet_their_blocks(name: str, blocks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper_products, "_layout", lambda _shape, _bits: None)
    monkeypatch.setattr(
        hopper_products,
        "TensorDescriptor",
        lambda base, _sizes, _strides, shape, _layout: SimpleNamespace(base=base, block_shape=shape),
    )
    for place, sizes in enumerate(SIZES):
        monkeypatch.setattr(hopper_products, "units", lambda _tensor, place=place: 3 + 2 * place)
        found, expected = by_roles(sizes, blocks, ROLES[name], added=False)
        np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=f"{name} {sizes}")
    found, expected = by_roles(SIZES[0], blocks, ROLES[name], added=True)
    np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=name)


def by_roles(sizes: tuple[int, int, int], blocks: str, config: HopperScaledConfig, *, added: bool) -> tuple[Any, Any]:
    """A product of small integers by the roles of every program, and what it should be."""
    m, n, k = sizes
    columns = -(-k // 128)
    random = np.random.default_rng(m + n + k)
    x, w = (random.integers(-3, 4, size).astype(float) for size in ((m, k), (n, k)))
    of_x = {"tensor": (1, 1), "token": (m, 1)}.get(blocks, (m, columns))
    of_w = {"tensor": (1, 1), "token": (n, 1), "square": (-(-n // 128), columns)}.get(blocks, (n, columns))
    x_scale, w_scale = (random.integers(1, 5, size).astype(float) for size in (of_x, of_w))
    bias, start = random.integers(-3, 4, n).astype(float), random.integers(-3, 4, (m, n)).astype(float)
    tensors = [made(m, k, dtype=FP8), made(n, k, dtype=FP8)]
    scales = [made(*of_x, dtype=torch.float32), made(*of_w, dtype=torch.float32)]
    result = made(m, n, dtype=torch.float32)
    with recording("sm_90") as recorded:
        if added:
            hopper_targets.scaled_linear_accumulate(result, *tensors, *scales, config=config)
        else:
            hopper_products.product(*tensors, *scales, made(n), result, False, config)
    out = start.copy() if added else np.full((m, n), np.nan)
    held = {
        id(tensor): array
        for tensor, array in zip((*tensors, *scales, result), (x, w, x_scale, w_scale, out), strict=True)
    }
    kernel, *sums = recorded.launches
    partial = None if kernel.arguments[4] is None else np.full(kernel.arguments[4].numel(), np.nan)
    for program in range(kernel.grid[0]):
        given = kernel.arguments
        arguments = (
            *(Descriptor(held[id(d.base)], d.block_shape) for d in given[:3]),
            None if added else Pointer(bias),
            None if partial is None else Pointer(partial),
            *(Pointer(held[id(scale)].reshape(-1)) for scale in given[5:7]),
            Pointer(start.reshape(-1)) if added else None,
            *given[8:],
        )
        meta = {name: value for name, value in kernel.meta.items() if name.isupper()}
        Machine(program, kernel.grid[0], seed=program).run(hopper_kernels, "scaled_products", arguments, meta)
    for other in sums:
        target = np.broadcast_to(bias, out.shape)
        add_up(other, partial, *((out.T, target.T) if config.swap else (out, target)))
    x_full = x * spread(x_scale, m, k)
    return out, x_full @ (w * spread(w_scale, n, k)).T + (start if added else bias)


def spread(scale: Any, rows: int, columns: int) -> Any:
    """The scale of each element."""
    tall = scale if scale.shape[0] == rows else np.repeat(scale, rows if scale.shape[0] == 1 else 128, 0)[:rows]
    return np.repeat(tall, columns if tall.shape[1] == 1 else 128, 1)[:, :columns]


def add_up(launch: Launch, partial: Any, out: Any, bias: Any) -> None:
    """What `opmux_triton.gemm.kernels.sum_shares` does."""
    arguments = dict(zip(launch.kernel.arg_names, launch.arguments, strict=False))
    first, length, share = (arguments[name] for name in ("first", "length", "share"))
    height, width, group = (launch.meta[name] for name in ("BLOCK_M", "BLOCK_N", "GROUP"))
    tiles_m, tiles_n = -(-out.shape[0] // height), -(-out.shape[1] // width)
    for tile in range(launch.grid[0]):
        start, at = divmod(first + tile, group * tiles_n)
        rows = min(tiles_m - start * group, group)
        here = np.s_[(start * group + at % rows) * height :, at // rows * width :]
        block = out[here][:height, :width]
        programs = range(tile * length // share, (tile * length + length - 1) // share + 1)
        total = sum(partial.reshape(-1, height, width)[program + tile] for program in programs)
        block[:] = total[: block.shape[0], : block.shape[1]] + bias[here][:height, :width]


def test_sums_that_stay_in_the_matrix_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast form does not have float32 take over."""
    scales = made(70, 1, dtype=torch.float32), made(80, 1, dtype=torch.float32)
    for target, promoted in ((hopper_targets.fast_scaled_linear, False), (hopper_targets.scaled_linear, True)):
        with recording("sm_90") as recorded:
            target(
                made(70, 256, dtype=FP8), made(80, 256, dtype=FP8), *scales, None, out_dtype=torch.bfloat16,
                config=ROLES["two warpgroups"],
            )  # fmt: skip
        assert [launch.meta["PROMOTE"] for launch in recorded.launches] == [promoted]


def test_what_has_no_descriptor_is_left_to_the_portable_kernel() -> None:
    ones = made(1, 1, dtype=torch.float32)
    for x, n in (
        (made(70, 250, dtype=FP8), 80),  # rows that are no 16 bytes apart
        (made(70, 256, dtype=FP8), 83),
        (made(2, 70, 300, dtype=FP8)[:, :60, :256], 80),  # two strides
        (made(70, 256, dtype=torch.int8), 80),
    ):
        w = made(n, x.shape[-1], dtype=x.dtype)
        scale = ones if x.dim() == 2 else made(2, 1, 1, dtype=torch.float32)
        with recording("sm_90") as recorded:
            hopper_targets.scaled_linear(
                x, w, scale, ones, None, out_dtype=torch.bfloat16, config=ROLES["two warpgroups"]
            )
        assert [launch.kernel.__name__ for launch in recorded.launches] == ["scaled_tiles"]


def test_parameters_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^block_m expected 64 rows for each of 2 warpgroups, got 192$"):
        roles(192, 128, 3, 2)
    with pytest.raises(ValueError, match=r"^warpgroups expected 1, 2 or 3, got 4$"):
        roles(256, 128, 3, 4)
