"""Run by `grouped_gemm/test_targets` under TRITON_INTERPRET=1: groups of any sizes, in every layout."""

import itertools
import sys
from dataclasses import replace

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

import opmux
from opmux_triton.grouped_gemm import targets
from opmux_triton.grouped_gemm.configs import GroupedBackwardConfig, GroupedConfig, ScaledGroupedConfig
from opmux_triton.launch import recording

torch.manual_seed(0)
SMALL = GroupedConfig(block_m=16, block_n=16, block_k=32, group=2, num_warps=1, num_stages=1)
SIZES = ((), (0, 0, 0), (1,), (40,), (5, 0, 33, 16), (0, 17, 0, 0, 32, 1), (3,) * 21, (130, 0, 7, 260))
N, K = 33, 40


def offsets(sizes: tuple[int, ...], padding: int) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(size + padding for size in sizes)], dtype=torch.int32)


for sizes, padding in itertools.product(SIZES, (0, 3)):
    starts = offsets(sizes, padding)
    counts = torch.tensor(sizes, dtype=torch.int32) if padding else None
    used = [range(start, start + size) for start, size in zip(starts.tolist(), sizes, strict=False)]
    rows = [row for span in used for row in span]
    m = int(starts[-1]) + 2
    x, w = torch.randn(m, K), torch.randn(len(sizes), N, K)
    x[[row for row in range(m) if row not in rows]] = float("nan")
    out = torch.full((m, N), 7.0)
    targets.grouped_linear(x, w, starts, counts, config=SMALL, out=out)
    exact = opmux.grouped_linear.reference(x.double(), w.double(), starts, counts)
    torch.testing.assert_close(out[rows].double(), exact[rows], rtol=1e-5, atol=1e-5)
    assert (out == 7).all(1).sum() == m - len(rows)

    grad = torch.randn(m, N)
    config = GroupedBackwardConfig(SMALL, SMALL)
    given = (grad, x, w, starts, counts)
    found = targets.grouped_linear_backward(*given, output_mask=(True, True), config=config)
    doubles = [t.double() if t is not None and t.is_floating_point() else t for t in given]
    exact = opmux.grouped_linear_backward.reference(*doubles)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-4)
    for early in (False, True):
        summed = torch.ones(len(sizes), N, K)
        targets.grouped_weight_grad(summed, grad, x, starts, counts, config=replace(SMALL, early=early))
        torch.testing.assert_close(summed.double(), 1 + exact[1], rtol=1e-5, atol=1e-4)

    dtypes = (torch.float8_e4m3fn, torch.int8, torch.float8_e5m2fnuz)
    for dtype, block_k in [(dtypes[len(sizes) % 3], 32 if padding else 128)]:
        codes = [(30 * torch.randn(m, width)).clamp(-127, 127).to(dtype) for width in (N, K)]
        codes[1] = codes[1].T.contiguous().T  # rows next to each other, as for Hopper
        scales = [torch.rand(-(-m // 128), width) + 0.5 for width in (N, K)]
        summed, exact = (torch.ones(len(sizes), N, K, dtype=t) for t in (torch.float32, torch.float64))
        small = ScaledGroupedConfig(**{**vars(SMALL), "block_k": block_k})
        targets.scaled_grouped_weight_grad(summed, *codes, starts, *scales, counts, config=small)
        values = [c.double() * s.double().repeat_interleave(128, 0)[:m] for c, s in zip(codes, scales, strict=True)]
        opmux.grouped_weight_grad.reference(exact, *values, starts, counts)
        torch.testing.assert_close(summed.double(), exact, rtol=1e-5, atol=1e-2)

    most = max(sizes, default=0) + 2
    room, counted = torch.randn(len(sizes), most, K), torch.tensor(sizes, dtype=torch.int32)
    result = torch.full((len(sizes), most, N), 7.0)
    targets.masked_grouped_linear(room, w, counted, expected_m=4, config=SMALL, out=result)
    for group, size in enumerate(sizes):
        exact = room[group, :size].double() @ w[group].double().T
        torch.testing.assert_close(result[group, :size].double(), exact, rtol=1e-5, atol=1e-5)
        assert (result[group, size:] == 7).all()
# By descriptors, which take sizes that are multiples of 16 bytes: weights along n, sums over whole blocks of rows.
for sizes, padding in itertools.product(SIZES[2:], (0, 3)):
    starts, counts = offsets(sizes, padding), torch.tensor(sizes, dtype=torch.int32) if padding else None
    m, described = int(starts[-1]) + 2, replace(SMALL, tma=True, along=True)
    grad, x, w = torch.randn(m, 64), torch.randn(m, 40), torch.randn(len(sizes), 64, 40)
    rows = [row for start, size in zip(starts.tolist(), sizes, strict=False) for row in range(start, start + size)]
    unused = [row for row in range(m) if row not in rows]
    grad[unused], x[unused] = float("nan"), float("nan")
    given = (grad, x, w, starts, counts)
    config = GroupedBackwardConfig(described, described)
    with recording("sm_90") as noted:
        targets.grouped_linear_backward(*given, output_mask=(True, True), config=config)
    product, sums = (one for one in noted.launches if one.kernel.__name__ != "zero_unused")
    assert product.meta["DESCRIPTORS"]
    assert product.meta["ALONG_N"]
    assert isinstance(sums.arguments[2], TensorDescriptor)
    found = targets.grouped_linear_backward(*given, output_mask=(True, True), config=config)
    doubles = [t.double() if t is not None and t.is_floating_point() else t for t in given]
    exact = opmux.grouped_linear_backward.reference(*doubles)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-4)
sys.stdout.write("all equal")
