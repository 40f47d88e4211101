"""Vector and scalar instructions against tables of cases worked out by hand from the ISA documents."""

import struct

import numpy as np
import pytest
from assembling import assemble

from opmux_emulator import launch


def f(x: float) -> int:
    return struct.unpack("<I", struct.pack("<f", x))[0]


LOW_WORDS = "src0_sel:WORD_0 src1_sel:WORD_0"
INF, NAN = f(float("inf")), 0x7FC00000

# instruction with {d} result, {a} {b} {c} sources; the sources' bits; the result's bits.
CASES = [
    ("v_add_f32 {d}, {a}, {b}", (f(1.5), f(2.25)), f(3.75)),
    ("v_add_f32 {d}, {a}, {b}", (f(1.0), f(2.0**-24)), f(1.0)),  # ties to even
    ("v_add_f32 {d}, {a}, {b}", (f(1.0), f(2.0**-24 + 2.0**-40)), f(1.0) + 1),
    ("v_add_f32 {d}, {a}, {b}", (1, 1), 2),  # denormals are kept
    ("v_sub_f32 {d}, {a}, {b}", (f(1.0), f(3.0)), f(-2.0)),
    ("v_subrev_f32 {d}, {a}, {b}", (f(1.0), f(3.0)), f(2.0)),
    ("v_mul_f32_e64 {d}, {a}, |{b}|", (f(2.0), f(-3.0)), f(6.0)),
    ("v_mul_f32_e64 {d}, -{a}, {b}", (f(2.0), f(3.0)), f(-6.0)),
    ("v_mul_f32_e64 {d}, {a}, {b} mul:4", (f(2.0), f(3.0)), f(24.0)),
    ("v_mul_f32_e64 {d}, {a}, {b} clamp", (f(2.0), f(3.0)), f(1.0)),
    ("v_min_f32 {d}, {a}, {b}", (NAN, f(3.0)), f(3.0)),
    ("v_max_f32 {d}, {a}, {b}", (f(-0.0), f(0.0)), f(0.0)),
    ("v_fma_f32 {d}, {a}, {b}, {c}", (f(1 + 2.0**-12), f(1 + 2.0**-12), f(-1 - 2.0**-11)), f(2.0**-24)),
    ("v_med3_f32 {d}, {a}, {b}, {c}", (f(5.0), f(-1.0), f(2.0)), f(2.0)),
    ("v_exp_f32 {d}, {a}", (f(3.0),), f(8.0)),
    ("v_log_f32 {d}, {a}", (f(0.25),), f(-2.0)),
    ("v_rcp_f32 {d}, {a}", (f(4.0),), f(0.25)),
    ("v_rcp_f32 {d}, {a}", (f(0.0),), INF),
    ("v_rsq_f32 {d}, {a}", (f(4.0),), f(0.5)),
    ("v_sqrt_f32 {d}, {a}", (f(9.0),), f(3.0)),
    ("v_sin_f32 {d}, {a}", (f(0.25),), f(1.0)),  # in turns
    ("v_rndne_f32 {d}, {a}", (f(2.5),), f(2.0)),
    ("v_floor_f32 {d}, {a}", (f(-1.5),), f(-2.0)),
    ("v_fract_f32 {d}, {a}", (f(-0.25),), f(0.75)),
    ("v_ldexp_f32 {d}, {a}, {b}", (f(3.0), 4), f(48.0)),
    ("v_frexp_mant_f32 {d}, {a}", (f(12.0),), f(0.75)),
    ("v_frexp_exp_i32_f32 {d}, {a}", (f(12.0),), 4),
    ("v_cvt_i32_f32 {d}, {a}", (f(-2.9),), 0xFFFFFFFE),
    ("v_cvt_i32_f32 {d}, {a}", (f(3e9),), 0x7FFFFFFF),
    ("v_cvt_u32_f32 {d}, {a}", (f(-1.0),), 0),
    ("v_cvt_i32_f32 {d}, {a}", (NAN,), 0),
    ("v_cvt_f32_i32 {d}, {a}", (0xFFFFFFFF,), f(-1.0)),
    ("v_cvt_f32_ubyte2 {d}, {a}", (0x00AB0000,), f(171.0)),
    ("v_cvt_f16_f32 {d}, {a}", (f(1 + 2.0**-11),), 0x3C00),  # ties to even
    ("v_cvt_f16_f32 {d}, {a}", (f(65520.0),), 0x7C00),
    ("v_cvt_f32_f16 {d}, {a}", (0x0001,), f(2.0**-24)),
    ("v_cvt_pkrtz_f16_f32 {d}, {a}, {b}", (f(1 + 2.0**-11), f(-70000.0)), 0xFBFF3C00),
    ("v_add_f16 {d}, {a}, {b}", (0x3C00, 0x4000), 0x4200),
    ("v_add_f16 {d}, {a}, {b}", (0xFFFF3C00, 0xFFFF4000), 0x4200),  # the upper half is zeroed
    ("v_fma_f16 {d}, {a}, {b}, {c} op_sel:[1,0,0,0]", (0x40000000, 0x4200, 0x3C00), 0xDEAD4700),  # and here kept
    ("v_pk_add_f16 {d}, {a}, {b}", (0x40003C00, 0x44004200), 0x46004400),
    ("v_pk_mul_f16 {d}, {a}, {b} op_sel:[1,0] op_sel_hi:[0,1]", (0x40003C00, 0x44004200), 0x44004600),
    ("v_pk_add_u16 {d}, {a}, {b}", (0xFFFF0001, 0x00020003), 0x00010004),
    ("v_pk_max_i16 {d}, {a}, {b}", (0xFFFF0001, 0x0002FFF0), 0x00020001),
    ("v_fma_mix_f32 {d}, {a}, {b}, {c} op_sel:[1,0,0] op_sel_hi:[1,1,0]", (0x40000000, 0x4200, f(0.5)), f(6.5)),
    ("v_dot2_f32_f16 {d}, {a}, {b}, {c}", (0x40003C00, 0x44004200, f(1.0)), f(12.0)),
    ("v_dot4_i32_i8 {d}, {a}, {b}, {c}", (0xFF020304, 0x01010101, 10), 18),
    ("v_add_u32 {d}, {a}, {b}", (0xFFFFFFFF, 2), 1),
    ("v_add_u32_e64 {d}, {a}, {b} clamp", (0xFFFFFFFF, 2), 0xFFFFFFFF),
    ("v_sub_u32 {d}, {a}, {b}", (1, 2), 0xFFFFFFFF),
    ("v_mul_lo_u32 {d}, {a}, {b}", (0x10001, 0x10001), 0x00020001),
    ("v_mul_hi_u32 {d}, {a}, {b}", (0x80000000, 6), 3),
    ("v_mul_hi_i32 {d}, {a}, {b}", (0xFFFFFFFF, 5), 0xFFFFFFFF),
    ("v_mul_i32_i24 {d}, {a}, {b}", (0x00FFFFFF, 7), 0xFFFFFFF9),
    ("v_mad_u32_u24 {d}, {a}, {b}, {c}", (0xFF000002, 3, 4), 10),
    ("v_lshlrev_b32 {d}, {a}, {b}", (36, 1), 16),
    ("v_ashrrev_i32 {d}, {a}, {b}", (4, 0x80000000), 0xF8000000),
    ("v_bfe_u32 {d}, {a}, {b}, {c}", (0x12345678, 8, 12), 0x456),
    ("v_bfe_i32 {d}, {a}, {b}, {c}", (0x00000F00, 8, 4), 0xFFFFFFFF),
    ("v_bfi_b32 {d}, {a}, {b}, {c}", (0x00FF00FF, 0x11111111, 0x22222222), 0x22112211),
    ("v_alignbit_b32 {d}, {a}, {b}, {c}", (0x00000001, 0x80000000, 31), 3),
    ("v_perm_b32 {d}, {a}, {b}, {c}", (0x44332211, 0x88776655, 0x0C070400), 0x00441155),
    ("v_lshl_add_u32 {d}, {a}, {b}, {c}", (3, 4, 5), 53),
    ("v_and_or_b32 {d}, {a}, {b}, {c}", (0xF0, 0x3C, 1), 0x31),
    ("v_xad_u32 {d}, {a}, {b}, {c}", (6, 3, 10), 15),
    ("v_min3_i32 {d}, {a}, {b}, {c}", (5, 0xFFFFFFFF, 3), 0xFFFFFFFF),
    ("v_bfrev_b32 {d}, {a}", (1,), 0x80000000),
    ("v_ffbh_u32 {d}, {a}", (0x00010000,), 15),
    ("v_ffbl_b32 {d}, {a}", (0,), 0xFFFFFFFF),
    ("v_bcnt_u32_b32 {d}, {a}, {b}", (0xFF, 3), 11),
    ("v_ashrrev_i16 {d}, {a}, {b}", (4, 0x8000), 0xF800),
    ("v_add_u32_sdwa {d}, {a}, {b} dst_sel:DWORD src0_sel:BYTE_1 src1_sel:WORD_1", (0x00001200, 0x00340000), 0x46),
    ("v_add_u32_sdwa {d}, sext({a}), {b} dst_sel:DWORD src0_sel:BYTE_0 src1_sel:DWORD", (0xFF, 1), 0),
    (f"v_add_u16_sdwa {{d}}, {{a}}, {{b}} dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE {LOW_WORDS}", (1, 2), 0x3BEEF),
]


def run(body: str, count: int, arch: str = "gfx942", threads: int = 64, **options: int) -> np.ndarray:
    """The body stores dword k of each lane at s[10:11] + 256 k + v1."""
    start = "  s_load_dwordx4 s[8:11], s[0:1], 0x0\n  v_lshlrev_b32 v1, 2, v0\n  s_waitcnt lgkmcnt(0)\n"
    out = np.zeros((count, 64), np.uint32)
    launch(assemble(start + body, arch, **options), "k", (1,), (threads,), [np.arange(64, dtype="u4"), out])
    return out


def body_of(cases: list[tuple[str, tuple[int, ...], int]]) -> str:
    lines = []
    for k, (text, sources, _) in enumerate(cases):
        for r, value in enumerate(sources):
            lines.append(f"  v_mov_b32 v{10 + r}, {value:#x}")
        lines.append("  v_mov_b32 v20, 0xdeadbeef\n  s_nop 1")
        lines.append("  " + text.format(d="v20", a="v10", b="v11", c="v12"))
        lines.append("  s_nop 2\n  global_store_dword v1, v20, s[10:11]")
        lines.append(f"  v_add_u32 v1, 0x100, v1  // {k}")
    return "\n".join(lines) + "\n"


def check(cases: list[tuple[str, tuple[int, ...], int]], arch: str) -> None:
    got = run(body_of(cases), len(cases), arch)[:, 17]
    wrong = [
        f"{t}: {[hex(x) for x in s]}: expected {e:#x}, got {g:#x}"
        for (t, s, e), g in zip(cases, got, strict=True)
        if e != g
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_by_hand(arch: str) -> None:
    check(CASES, arch)


@pytest.mark.parametrize(("select", "low", "high"), [("", 10, 20), ("op_sel:[1,0]", 11, 20), ("op_sel:[0,1]", 10, 21)])
def test_moves_of_pairs_pick_each_half_by_op_sel(select: str, low: int, high: int) -> None:
    """op_sel_hi, which is 1 unless it is given, has no part in it."""
    start = "".join(f"  v_mov_b32 v{r}, {r}\n" for r in (10, 11, 20, 21))
    stores = "  global_store_dword v1, v2, s[10:11]\n  global_store_dword v1, v3, s[10:11] offset:256\n"
    got = run(f"{start}  v_pk_mov_b32 v[2:3], v[10:11], v[20:21] {select}\n{stores}", 2)
    assert got[:, 5].tolist() == [low, high]


def test_fnuz_conversions_of_gfx942() -> None:
    check(
        [
            ("v_cvt_pk_fp8_f32 {d}, {a}, {b}", (f(1.0), f(-240.0)), 0xDEADFF40),
            ("v_cvt_pk_fp8_f32 {d}, {a}, {b} op_sel:[0,0,1]", (f(0.0), f(-0.0)), 0x0000BEEF),  # no negative zero
            ("v_cvt_pk_fp8_f32 {d}, {a}, {b}", (NAN, f(2.0**-10)), 0xDEAD0180),
            ("v_cvt_pk_bf8_f32 {d}, {a}, {b}", (f(1.0), f(57344.0)), 0xDEAD7F40),
            ("v_cvt_f32_fp8 {d}, {a}", (0x40,), f(1.0)),
            ("v_cvt_f32_fp8_sdwa {d}, {a} src0_sel:BYTE_2", (0x00C00000,), f(-1.0)),
            ("v_cvt_f32_bf8 {d}, {a}", (0x40,), f(1.0)),
            ("v_cvt_f32_fp8 {d}, {a}", (0x01,), f(2.0**-10)),
        ],
        "gfx942",
    )


def test_ocp_conversions_of_gfx950() -> None:
    check(
        [
            ("v_cvt_pk_fp8_f32 {d}, {a}, {b}", (f(1.0), f(-448.0)), 0xDEADFE38),
            ("v_cvt_pk_fp8_f32 {d}, {a}, {b}", (f(-0.0), f(2.0**-9)), 0xDEAD0180),
            ("v_cvt_pk_bf8_f32 {d}, {a}, {b}", (f(1.0), INF), 0xDEAD7C3C),
            ("v_cvt_f32_fp8 {d}, {a}", (0x38,), f(1.0)),
            ("v_cvt_f32_bf8 {d}, {a}", (0x3C,), f(1.0)),
            ("v_cvt_pk_bf16_f32 {d}, {a}, {b}", (f(1 + 2.0**-8), f(1 + 3 * 2.0**-8)), 0x3F823F80),
            ("v_cvt_scalef32_pk_fp8_f32 {d}, {a}, {b}, {c}", (f(2.0), f(4.0), f(2.0)), 0xDEAD4038),
            ("v_cvt_scalef32_f32_fp8 {d}, {a}, {b}", (0x38, f(4.0)), f(4.0)),
            ("v_cvt_scalef32_pk_bf16_fp8 {d}, {a}, {b}", (0x4038, f(0.5)), 0x3F803F00),
            ("v_cvt_scalef32_pk_bf16_fp4 {d}, {a}, {b}", (0x72, f(2.0)), 0x41404000),
            ("v_cvt_scalef32_pk_fp4_f32 {d}, {a}, {b}, {c}", (f(1.0), f(-6.0), f(1.0)), 0xDEADBEF2),
            ("v_prng_b32 {d}, {a}", (0x80000001,), 2 ^ 197),
            ("v_bitop3_b32 {d}, {a}, {b}, {c} bitop3:0x96", (0xF0, 0xCC, 0xAA), 0x96),
            ("v_bitop3_b16 {d}, {a}, {b}, {c} bitop3:0x96", (0x1F0, 0x1CC, 0x1AA), 0xDEAD0196),
            ("v_bitop3_b16 {d}, {a}, {b}, {c} bitop3:0xe4", (0x00FF00F0, 0xFFFF00CC, 0xFFFFFFAA), 0xDEAD00E4),
        ],
        "gfx950",
    )


def test_flushed_denormals() -> None:
    assert run(body_of([("v_add_f32 {d}, {a}, {b}", (1, f(0.0)), 0)]), 1, denormals=0)[0, 0] == 0


@pytest.mark.parametrize(
    "control",
    [
        ("quad_perm:[3,2,1,0]", lambda n: n ^ 3),
        ("row_shl:2", lambda n: n + 2 if n % 16 < 14 else -1),
        ("row_shr:3", lambda n: n - 3 if n % 16 >= 3 else -1),
        ("row_ror:1", lambda n: n // 16 * 16 + (n - 1) % 16),
        ("row_mirror", lambda n: n // 16 * 16 + 15 - n % 16),
        ("row_half_mirror", lambda n: n // 8 * 8 + 7 - n % 8),
        ("row_bcast:15", lambda n: n // 16 * 16 - 1),
        ("row_bcast:31", lambda n: 31 if n >= 32 else -1),
        ("wave_shr:1", lambda n: n - 1),
        ("wave_rol:1", lambda n: (n + 1) % 64),
        ("row_newbcast:5", lambda n: n // 16 * 16 + 5),
    ],
    ids=lambda c: c[0],
)
def test_dpp(control) -> None:
    words, source = control
    store = "  s_nop 1\n  global_store_dword v1, v2, s[10:11]\n"
    got = run(f"  v_mov_b32 v2, 77\n  s_nop 1\n  v_mov_b32_dpp v2, v0 {words} row_mask:0xf bank_mask:0xf\n{store}", 1)[
        0
    ]
    assert got.tolist() == [source(lane) if source(lane) >= 0 else 77 for lane in range(64)]


def test_dpp_masks_rows_and_banks() -> None:
    text = "  v_mov_b32 v2, 77\n  s_nop 1\n  v_mov_b32_dpp v2, v0 quad_perm:[0,1,2,3] row_mask:0xa bank_mask:0x3\n"
    got = run(text + "  s_nop 1\n  global_store_dword v1, v2, s[10:11]\n", 1)[0]
    assert got.tolist() == [lane if (lane // 16) % 2 and lane % 16 < 8 else 77 for lane in range(64)]


def test_compare_and_select() -> None:
    got = run(
        """
  v_cmp_gt_u32 vcc, 10, v0
  s_nop 3
  v_cndmask_b32 v2, 5, v0, vcc
  global_store_dword v1, v2, s[10:11]
""".replace("v_cndmask_b32 v2, 5, v0, vcc", "v_cndmask_b32_e32 v2, 5, v0, vcc"),
        1,
    )[0]
    assert got.tolist() == [lane if lane < 10 else 5 for lane in range(64)]


def test_saveexec_and_branches() -> None:
    got = run(
        """
  v_mov_b32 v2, 1
  v_cmp_lt_u32 vcc, 31, v0
  s_and_saveexec_b64 s[12:13], vcc
  s_cbranch_execz skip
  v_mov_b32 v2, 2
skip:
  s_or_b64 exec, exec, s[12:13]
  global_store_dword v1, v2, s[10:11]
""",
        1,
    )[0]
    assert got.tolist() == [1] * 32 + [2] * 32


SCALAR = [
    ("s_add_u32 s20, s12, s13", (0xFFFFFFFF, 2), 1, 1),
    ("s_sub_u32 s20, s12, s13", (1, 2), 0xFFFFFFFF, 1),
    ("s_add_i32 s20, s12, s13", (0x7FFFFFFF, 1), 0x80000000, 1),
    ("s_mul_hi_u32 s20, s12, s13", (0x80000000, 6), 3, None),
    ("s_mul_i32 s20, s12, s13", (0xFFFFFFFF, 5), 0xFFFFFFFB, None),
    ("s_lshl_b32 s20, s12, s13", (3, 35), 24, 1),
    ("s_ashr_i32 s20, s12, s13", (0x80000000, 31), 0xFFFFFFFF, 1),
    ("s_bfe_u32 s20, s12, s13", (0x12345678, 0x000C0008), 0x456, 1),
    ("s_bfe_i32 s20, s12, s13", (0xF00, 0x00040008), 0xFFFFFFFF, 1),
    ("s_min_i32 s20, s12, s13", (1, 0xFFFFFFFF), 0xFFFFFFFF, 0),
    ("s_max_u32 s20, s12, s13", (1, 0xFFFFFFFF), 0xFFFFFFFF, 0),
    ("s_andn2_b32 s20, s12, s13", (0xFF, 0x0F), 0xF0, 1),
    ("s_lshl2_add_u32 s20, s12, s13", (3, 5), 17, 0),
    ("s_pack_ll_b32_b16 s20, s12, s13", (0x11112222, 0x33334444), 0x44442222, None),
    ("s_ff1_i32_b32 s20, s12", (0x100,), 8, None),
    ("s_flbit_i32_b32 s20, s12", (0x100,), 23, None),
    ("s_brev_b32 s20, s12", (1,), 0x80000000, None),
    ("s_bcnt1_i32_b32 s20, s12", (0xF0F0,), 8, 1),
    ("s_sext_i32_i8 s20, s12", (0x80,), 0xFFFFFF80, None),
    ("s_abs_i32 s20, s12", (0xFFFFFFFE,), 2, 1),
    ("s_absdiff_i32 s20, s12, s13", (3, 10), 7, 1),
    ("s_bitset1_b32 s20, s12", (4,), 0xDEADBEFF, None),
]


def test_scalar_by_hand() -> None:
    lines = []
    for text, sources, _, _ in SCALAR:
        lines += [f"  s_mov_b32 s{12 + k}, {value:#x}" for k, value in enumerate(sources)]
        lines += ["  s_mov_b32 s20, 0xdeadbeef\n  s_cmp_eq_u32 s20, 0", f"  {text}", "  s_cselect_b32 s21, 1, 0"]
        lines += ["  v_mov_b32 v2, s20\n  v_mov_b32 v3, s21", "  global_store_dword v1, v2, s[10:11]"]
        lines += ["  global_store_dword v1, v3, s[10:11] offset:256", "  v_add_u32 v1, 0x200, v1"]
    got = run("\n".join(lines) + "\n", 2 * len(SCALAR))
    for k, (text, sources, result, scc) in enumerate(SCALAR):
        assert got[2 * k, 3] == result, (text, sources, hex(got[2 * k, 3]))
        assert scc is None or got[2 * k + 1, 3] == scc, (text, sources, "scc")


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ('ds_swizzle_b32 v2, v0 offset:swizzle(BITMASK_PERM, "00p11")', lambda n: n & 32 | n & 4 | 3),
        ("ds_swizzle_b32 v2, v0 offset:swizzle(QUAD_PERM, 1, 0, 3, 2)", lambda n: n ^ 1),
        ("ds_bpermute_b32 v2, v5, v0", lambda n: (n + 5) % 64),
        ("ds_permute_b32 v2, v5, v0", lambda n: (n - 5) % 64),
    ],
)
def test_lanes_across(text: str, source) -> None:
    store = "  s_waitcnt lgkmcnt(0)\n  global_store_dword v1, v2, s[10:11]\n"
    body = f"  v_add_u32 v5, 5, v0\n  v_lshlrev_b32 v5, 2, v5\n  {text}\n{store}"
    assert run(body, 1)[0].tolist() == [source(lane) for lane in range(64)]


def test_division_as_the_compiler_writes_it() -> None:
    """The sequence of LLVM's float32 division gives the correctly rounded quotient, in hard cases too."""
    values = [1.0, 3.0, 7.5, 1e-38, 3e38, 1.17549435e-38, 1e-44, -2.0, 6.0221e23]
    lines, expected = [], []
    for a in values:
        for b in values:
            lines.append(f"""
  v_mov_b32 v2, {f(a):#x}
  v_mov_b32 v3, {f(b):#x}
  v_div_scale_f32 v4, s[12:13], v3, v3, v2
  v_rcp_f32 v5, v4
  v_div_scale_f32 v6, vcc, v2, v3, v2
  s_nop 0
  v_fma_f32 v7, -v4, v5, 1.0
  v_fma_f32 v5, v7, v5, v5
  v_mul_f32 v7, v6, v5
  v_fma_f32 v8, -v4, v7, v6
  v_fma_f32 v7, v8, v5, v7
  v_fma_f32 v4, -v4, v7, v6
  s_nop 3
  v_div_fmas_f32 v4, v4, v5, v7
  v_div_fixup_f32 v4, v4, v3, v2
  global_store_dword v1, v4, s[10:11]
  v_add_u32 v1, 0x100, v1
""")
            with np.errstate(all="ignore"):
                expected.append(np.float32(a) / np.float32(b))
    got = run("".join(lines), len(expected))[:, 0].view("f4")
    assert got.tolist() == [float(e) for e in expected]
