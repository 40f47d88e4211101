"""Matrix instructions: the layouts of the manuals, built here lane by lane, against numpy's product."""

from collections.abc import Callable

import numpy as np
import pytest
from assembling import assemble

from opmux_emulator import launch
from opmux_emulator.isa.matrix import TYPES, shape_of

# arch, instruction, bits of an element, registers of A and B, registers of C and D
DENSE = [
    ("gfx942", "v_mfma_f32_32x32x8_f16", 16),
    ("gfx942", "v_mfma_f32_16x16x16_f16", 16),
    ("gfx942", "v_mfma_f32_32x32x4_2b_f16", 16),
    ("gfx942", "v_mfma_f32_16x16x4_4b_f16", 16),
    ("gfx942", "v_mfma_f32_4x4x4_16b_f16", 16),
    ("gfx942", "v_mfma_f32_32x32x2_f32", 32),
    ("gfx942", "v_mfma_f32_16x16x4_f32", 32),
    ("gfx942", "v_mfma_f32_32x32x1_2b_f32", 32),
    ("gfx942", "v_mfma_f32_16x16x1_4b_f32", 32),
    ("gfx942", "v_mfma_f32_4x4x1_16b_f32", 32),
    ("gfx942", "v_mfma_i32_32x32x16_i8", 8),
    ("gfx942", "v_mfma_i32_16x16x32_i8", 8),
    ("gfx942", "v_mfma_f64_16x16x4_f64", 64),
    ("gfx942", "v_mfma_f64_4x4x4_4b_f64", 64),
    ("gfx90a", "v_mfma_f32_32x32x8f16", 16),
    ("gfx90a", "v_mfma_f32_16x16x16f16", 16),
    ("gfx90a", "v_mfma_i32_32x32x8i8", 8),
    ("gfx90a", "v_mfma_i32_16x16x16i8", 8),
    ("gfx90a", "v_mfma_f64_16x16x4f64", 64),
    ("gfx950", "v_mfma_f32_16x16x32_f16", 16),
    ("gfx950", "v_mfma_f32_32x32x16_f16", 16),
    ("gfx950", "v_mfma_i32_16x16x64_i8", 8),
    ("gfx950", "v_mfma_i32_32x32x32_i8", 8),
]


def result_place(m: int, register: int, lane: int, double: bool) -> tuple[int, int, int]:
    """Row, column and block that a register of a lane holds: CDNA3 ISA, section 7.1.4's figures."""
    if m == 4:
        return (lane // 16, lane % 4, lane // 4 % 4) if double else (register, lane % 4, lane // 4)
    if double:
        return 4 * register + lane // 16, lane % 16, 0
    if m == 16:
        return 4 * (lane // 16) + register % 4, lane % 16, register // 4
    return 8 * (register % 16 // 4) + 4 * (lane // 32) + register % 4, lane % 32, register // 16


@pytest.mark.parametrize(("arch", "name", "bits"), DENSE, ids=str)
def test_layout(arch: str, name: str, bits: int) -> None:
    shape = shape_of(name)
    assert shape is not None
    m, k, blocks, double = shape.m, shape.k, shape.blocks, bits == 64
    kind = {64: "f8", 32: "f4", 16: "f2", 8: "i1"}[bits]
    random = np.random.default_rng(1)
    a, b = (random.integers(-4, 5, (blocks, m, k)).astype(kind) for _ in range(2))
    width = "f8" if double else "i4" if bits == 8 else "f4"
    c = random.integers(-9, 9, (blocks, m, m)).astype(width)
    per = k * m * blocks // 64
    lanes = np.arange(64)
    # Lane l holds row l % m of block l / m % blocks, elements from per * (l / (m * blocks)) on.
    row, block, start = lanes % m, lanes // m % blocks, per * (lanes // (m * blocks))
    left = np.stack([a[block, row, start + e] for e in range(per)], 1).copy().view("u4")
    right = np.stack([b[block, row, start + e] for e in range(per)], 1).copy().view("u4")
    registers = m * m * blocks // 64
    places = [[result_place(m, v, lane, double) for v in range(registers)] for lane in range(64)]
    before = np.array([[c[p[2], p[0], p[1]] for p in lane] for lane in places]).astype(width).view("u4")
    words, results = left.shape[1], before.shape[1]
    data = np.ascontiguousarray(np.concatenate([left, right, before], 1).T)
    a0, b0, c0 = 8, 16, 32
    text = [
        "  s_load_dwordx4 s[8:11], s[0:1], 0x0\n  v_lshlrev_b32 v1, 2, v0\n  s_waitcnt lgkmcnt(0)\n  v_mov_b32 v2, v1"
    ]
    for target in [*range(a0, a0 + words), *range(b0, b0 + words), *range(c0, c0 + results)]:
        text.append(f"  global_load_dword v{target}, v2, s[8:9]\n  v_add_u32 v2, 0x100, v2")
    of = lambda first, n: f"v[{first}:{first + n - 1}]" if n > 1 else f"v{first}"  # noqa: E731
    target = of(c0, results)
    matrix = f"{name} {target}, {of(a0, words)}, {of(b0, words)}, {target}"
    text.append(f"  s_waitcnt vmcnt(0)\n  s_nop 7\n  {matrix}\n  s_nop 15\n  s_nop 15")
    for source in range(c0, c0 + results):
        text.append(f"  global_store_dword v1, v{source}, s[10:11]\n  v_add_u32 v1, 0x100, v1")
    out = np.zeros((results, 64), "u4")
    launch(assemble("\n".join(text) + "\n", arch), "k", (1,), (64,), [data, out])
    got = np.ascontiguousarray(out.T).view(width)
    wide = "i8" if bits == 8 else "f8"
    expected = c.astype(wide) + np.einsum("bik,bjk->bij", a.astype(wide), b.astype(wide))
    for lane in range(64):
        for v, (i, j, n) in enumerate(places[lane]):
            assert got[lane, v] == expected[n, i, j], (lane, v)


def test_names() -> None:
    assert shape_of("v_mfma_f32_32x32x4bf16_1k") == (32, 4, 2, TYPES["bf16"], TYPES["bf16"])
    assert shape_of("v_mfma_f32_32x32x4bf16") == (32, 4, 1, TYPES["bf16"], TYPES["bf16"])
    assert shape_of("v_mfma_f32_16x16x32_bf8_fp8") == (16, 32, 1, TYPES["bf8"], TYPES["fp8"])
    assert shape_of("v_mfma_scale_f32_16x16x128_f8f6f4", 4, 2) == (16, 128, 1, TYPES["fp4"], TYPES["fp6"])
    assert shape_of("v_smfmac_f32_16x16x32_f16") is None
    assert shape_of("v_add_f32") is None


def test_accumulation_rounds_once_for_each_product_in_order() -> None:
    """1 + 2^-24 twice: each sum ties to even, where one sum of both would not."""
    body = """
  s_load_dwordx4 s[8:11], s[0:1], 0x0
  v_lshlrev_b32 v1, 2, v0
  v_mov_b32 v8, 0x0c000c00
  v_mov_b32 v9, 0
  v_mov_b32 v10, 0x0c000c00
  v_mov_b32 v11, 0
  s_nop 7
  v_mfma_f32_16x16x16_f16 v[16:19], v[8:9], v[10:11], 1.0
  s_nop 15
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v16, s[10:11]
"""
    out = np.zeros(64, "f4")
    launch(assemble(body), "k", (1,), (64,), [np.zeros(4, "f4"), out])
    assert out.tolist() == [1.0] * 64  # 2^-12 * 2^-12, eight times, each lost


@pytest.mark.parametrize(
    ("pattern", "moved"),
    [
        (0, lambda lane: lane),
        (1, lambda lane: lane % 32),
        (2, lambda lane: 32 + lane % 32),
        (3, lambda lane: (lane + 16) % 64),
        (4, lambda lane: lane % 16),
        (7, lambda lane: 48 + lane % 16),
    ],
)
def test_patterns_of_lanes(pattern: int, moved: Callable[[int], int]) -> None:
    """blgp: the lane whose B each lane gets, as AMD's matrix instruction calculator has it."""
    body = f"""
  s_load_dwordx4 s[8:11], s[0:1], 0x0
  v_lshlrev_b32 v1, 2, v0
  v_mov_b32 v2, 1.0
  v_cvt_f32_u32 v3, v0
  s_nop 7
  v_mfma_f32_32x32x1_2b_f32 v[32:63], v2, v3, 0 blgp:{pattern}
  s_nop 15
  s_nop 15
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v32, s[10:11]
  global_store_dword v1, v48, s[10:11] offset:256
"""
    out = np.zeros((2, 64), "f4")  # a row of the first block's result, and one of the second's
    launch(assemble(body, "gfx942"), "k", (1,), (64,), [np.zeros(4, "f4"), out])
    for block in range(2):
        assert out[block].tolist() == [moved(32 * block + lane % 32) for lane in range(64)]
