"""Kernels that Triton compiles give what torch gives, on every arch, with no judgement."""

import numpy as np
import pytest
import torch
import triton_kernels
from compiling import array, compile_kernel, program_of

from opmux_emulator import launch
from opmux_emulator.isa.opcodes import ARCHS

NAMES = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float8_e4m3fnuz": "fp8e4b8",
    "float8_e4m3fn": "fp8e4nv",
}


@pytest.mark.parametrize("arch", ARCHS)
def test_vector_add(arch: str) -> None:
    compiled = compile_kernel(
        triton_kernels.add, arch, {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}, {"BLOCK": 1024}
    )
    x, y, out = torch.randn(5008), torch.randn(5008), torch.zeros(5008)
    report = launch(program_of(compiled), "add", (5,), (256,), [array(x), array(y), out.numpy(), 5008])
    assert torch.equal(out, x + y)
    assert report.counts.memory_bytes >= 3 * 4 * 5008
    assert report.counts.mfma_share == 0


CASES = [
    *[(arch, dtype, 0) for arch in ARCHS for dtype in ("float16", "bfloat16", "float32")],
    ("gfx942", "float8_e4m3fnuz", 0),
    ("gfx950", "float8_e4m3fn", 0),
    *[(arch, "float16", 32) for arch in ARCHS],
]


@pytest.mark.parametrize(("arch", "dtype", "matrix"), CASES)
def test_gemm(arch: str, dtype: str, matrix: int) -> None:
    name = NAMES[dtype]
    m, n, k = 128, 128, 128
    options = {"matrix_instr_nonkdim": matrix} if matrix else {}
    compiled = compile_kernel(
        triton_kernels.gemm,
        arch,
        {"a": f"*{name}", "b": f"*{name}", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"},
        {"BM": 64, "BN": 64, "BK": 64},
        num_warps=4,
        **options,
    )
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(m, k, generator=generator).to(getattr(torch, dtype))
    b = torch.randn(n, k, generator=generator).to(getattr(torch, dtype))
    out = torch.zeros(m, n)
    report = launch(
        program_of(compiled), "gemm", (m // 64, n // 64), (256,), [array(a), array(b), out.numpy(), m, n, k],
        dynamic_lds=compiled.metadata.shared,
    )  # fmt: skip
    exact = a.double() @ b.double().T
    # gfx942 multiplies float32 as xf32 here: ten bits of mantissa.
    tolerance = 2e-3 if dtype == "float32" else 1e-5
    torch.testing.assert_close(out.double(), exact, rtol=tolerance, atol=tolerance * 30)
    assert report.counts.mfma_flops == 2 * m * n * k
    assert report.counts.instructions["mfma"] > 0


@pytest.mark.parametrize("arch", ARCHS)
def test_reductions_across_waves(arch: str) -> None:
    compiled = compile_kernel(
        triton_kernels.softmax, arch, {"x": "*bf16", "out": "*fp32", "columns": "i32"}, {"BLOCK": 1024}
    )
    x = torch.randn(3, 1008).bfloat16()
    out = torch.zeros(3, 1008)
    report = launch(
        program_of(compiled),
        "softmax",
        (3,),
        (256,),
        [array(x), out.numpy(), 1008],
        dynamic_lds=compiled.metadata.shared,
    )
    torch.testing.assert_close(out, x.float().softmax(-1), rtol=1e-5, atol=1e-7)
    assert report.counts.barriers > 0


@pytest.mark.parametrize("arch", ARCHS)
def test_atomics(arch: str) -> None:
    compiled = compile_kernel(triton_kernels.histogram, arch, {"x": "*i32", "out": "*i32", "n": "i32"}, {"BLOCK": 256})
    x = torch.randint(0, 16, (1008,), dtype=torch.int32)
    out = np.zeros(16, np.int32)
    launch(program_of(compiled), "histogram", (4,), (256,), [array(x), out, 1008], dynamic_lds=compiled.metadata.shared)
    assert out.tolist() == torch.bincount(x, minlength=16).tolist()
