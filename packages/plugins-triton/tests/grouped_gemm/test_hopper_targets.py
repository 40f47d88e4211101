"""The Gluon kernel of grouped products of codes: its roles, each run as a thread, meet in every tile of every group."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gluon_threads import Descriptor, Machine, Pointer
from planted_launches import made

from opmux_triton.grouped_gemm import hopper_kernels, hopper_targets
from opmux_triton.grouped_gemm.configs import ScaledGroupedConfig
from opmux_triton.grouped_gemm.hopper_configs import HopperGroupedConfig
from opmux_triton.launch import recording

OTHERWISE = ScaledGroupedConfig(block_m=64, block_n=64, block_k=128, num_warps=4, num_stages=3)
FP8 = torch.float8_e4m3fn
CONFIGS = {
    "one warpgroup": HopperGroupedConfig(64, 32, 3, 1, OTHERWISE, group=2),
    "two warpgroups": HopperGroupedConfig(128, 128, 2, 2, OTHERWISE, group=2),
    "three warpgroups": HopperGroupedConfig(192, 64, 2, 3, OTHERWISE),
}
FORMS = {
    "ragged": ([0, 70, 70, 200, 203, 340], None),
    "padded": ([0, 70, 90, 220, 223, 340], [66, 0, 128, 1, 100]),
    "masked": ([70, 0, 130, 1, 300], 150),
    "nothing": ([0, 0, 0, 0, 0, 0], None),
}
"""Offsets with sizes, or counts with the room of a group; one counts more than its room."""
BLOCKS = ("tensor", "token", "square", "row")
N, K = 136, 272


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CONFIGS)
def test_roles_meet_in_every_tile(name: str, form: str, blocks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIGS[name]
    monkeypatch.setattr(
        hopper_targets, "_described",
        lambda matrix, sizes, block: SimpleNamespace(base=matrix, sizes=sizes, shape=[block, 128]),
    )  # fmt: skip
    offsets, more = FORMS[form]
    masked, groups = isinstance(more, int), 5
    random = np.random.default_rng(len(form))
    lead = (groups, more) if masked else (max(offsets) + 3,)
    columns = -(-K // 128)
    x, w = (random.integers(-3, 4, size).astype(float) for size in ((*lead, K), (groups, N, K)))
    of_x = {"tensor": (*lead[:-1], 1, 1), "token": (*lead, 1)}.get(blocks, (*lead, columns))
    of_w = {"tensor": (1, 1), "token": (N, 1), "square": (2, columns)}.get(blocks, (N, columns))
    x_scale, w_scale = (random.integers(1, 5, size).astype(float) for size in (of_x, (groups, *of_w)))
    tensors = [made(*array.shape, dtype=FP8) for array in (x, w)]
    scales = [made(*array.shape, dtype=torch.float32) for array in (x_scale, w_scale)]
    index = torch.tensor(offsets, dtype=torch.int32)
    monkeypatch.setattr(hopper_targets, "units", lambda _: 3)
    with recording("sm_90") as recorded:
        if masked:
            result = hopper_targets.scaled_masked_grouped_linear(
                *tensors, index, *scales, expected_m=64, out_dtype=torch.float32, config=config
            )
        else:
            sizes = None if more is None else torch.tensor(more, dtype=torch.int32)
            result = hopper_targets.scaled_grouped_linear(
                *tensors, index, *scales, sizes, out_dtype=torch.float32, config=config
            )
    (kernel,) = recorded.launches
    out = np.full(tuple(result.shape), np.nan)
    flat = {id(tensors[0]): x.reshape(-1, K), id(tensors[1]): w.reshape(-1, K)}
    pointer = Pointer(out.reshape(-1))
    pointer.dtype = SimpleNamespace(element_ty=None)  # type: ignore[attr-defined]
    for program in range(kernel.grid[0]):
        given = kernel.arguments
        arguments = (
            *(Descriptor(flat[id(d.base)], d.shape) for d in given[:2]),
            pointer, Pointer(x_scale.reshape(-1)), Pointer(w_scale.reshape(-1)), Pointer(np.array(offsets)),
            None if masked or more is None else Pointer(np.array(more)), *given[7:],
        )  # fmt: skip
        meta = {name: value for name, value in kernel.meta.items() if name.isupper()}
        Machine(program, kernel.grid[0], seed=program).run(hopper_kernels, "grouped_products", arguments, meta)
    expected = np.full(out.shape, np.nan)
    for group in range(groups):
        full = w[group] * spread(w_scale[group], N)
        if masked:
            here: Any = np.s_[group, : min(offsets[group], more)]
            scale = spread(x_scale[group], more)[: min(offsets[group], more)]
        else:
            count = offsets[group + 1] - offsets[group] if more is None else more[group]
            here = np.s_[offsets[group] : offsets[group] + count]
            scale = spread(x_scale, lead[0])[here]
        expected[here] = (x[here] * scale) @ full.T
    np.testing.assert_allclose(out, expected, rtol=1e-12)


def spread(scale: Any, rows: int) -> Any:
    """The scale of each element of a matrix."""
    tall = scale if scale.shape[0] == rows else np.repeat(scale, rows if scale.shape[0] == 1 else 128, 0)[:rows]
    return np.repeat(tall, K if tall.shape[1] == 1 else 128, 1)[:, :K]


def test_few_rows_and_what_has_no_descriptor_are_left_to_the_portable_kernel() -> None:
    few = HopperGroupedConfig(128, 128, 2, 2, OTHERWISE, few=True)
    index, ones = torch.tensor([0, 40, 70], dtype=torch.int32), made(2, 1, 1, dtype=torch.float32)
    for k, config in ((256, few), (250, CONFIGS["two warpgroups"])):
        x, w = made(70, k, dtype=FP8), made(2, 80, k, dtype=FP8)
        with recording("sm_90") as recorded:
            hopper_targets.scaled_grouped_linear(
                x, w, index, made(1, 1, dtype=torch.float32), ones, None, out_dtype=torch.bfloat16, config=config
            )
        assert [launch.kernel.__name__ for launch in recorded.launches] == ["products"]
