"""AITER's tables: what is mapped, and the reason for each row that is not."""

from pathlib import Path

import pytest
import torch

import opmux
from opmux.tuning import BadRow
from opmux_ck.aiter.names import Unmapped, config_of
from opmux_ck.aiter.reader import read
from opmux_ck.gemm.configs import BlockCodesConfig, CodesConfig

HEADER = "cu_num,M,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio\n"
BLOCKS = "a8w8_blockscale_1x128x128_256x64x128x128_16x16_32x32_8x32x1_8x32x1_1x32x1x8_8_1x1_intrawave_v3"
TILE = "a8w8_rowwise_256x128x128x128_32x32_2x2_8x32x1_8x32x1_1x32x1x8_8x8x1_1x1_intrawave_v3"


def table(tmp_path: Path, *rows: str, header: str = HEADER) -> Path:
    path = tmp_path / "a8w8_tuned_gemm.aiter"
    path.write_text(header + "".join(f"{row}\n" for row in rows))
    return path


def test_a_row_gives_this_backend_the_tile_of_its_kernel(tmp_path) -> None:
    (row,) = read(table(tmp_path, f"304,512,1280,8208,13,0,30.5,{TILE},0.9,238.6,0.0"))
    assert row["arch"] == "gfx942"
    assert row["dims"] == {
        "batch": 1, "m": 512, "k": 8208, "n": 1280, "m_blocks": 512, "k_blocks": 1, "w_rows": 1280, "w_blocks": 1,
    }  # fmt: skip
    assert row["config"] | {"m": 128, "n": 128, "k": 128, "waves_m": 2, "waves_n": 2, "mfma": 32} == row["config"]
    assert (row["backend"], row["compared"], row["line"]) == ("ck:channels_gfx942", 1, 2)


def test_a_row_with_scales_of_blocks(tmp_path) -> None:
    (row,) = read(table(tmp_path, f"304,512,2112,7184,13,0,30.5,{BLOCKS},0.9,238.6,0.0"))
    assert row["dtypes"] == {"x": "e4m3fnuz", "w": "e4m3fnuz", "x_scale": "f32", "w_scale": "f32"}
    assert row["dims"] == {
        "batch": 1, "m": 512, "k": 7184, "n": 2112, "m_blocks": 512, "k_blocks": 57, "w_rows": 17, "w_blocks": 57,
    }  # fmt: skip
    assert BlockCodesConfig(**row["config"]) == BlockCodesConfig(64, 128, 128, 2, 2, 32, 16, "v3", 8, True, True)
    assert row["backend"] == "ck:blocks_gfx942"


def test_a_call_gets_the_tile_of_its_row(tmp_path, monkeypatch) -> None:
    """Of a table with both kinds of scales, each for the calls that have them."""
    path = table(tmp_path, f"256,512,2112,7168,13,0,30.5,{BLOCKS},,,0", f"256,512,2112,7168,13,0,30.5,{TILE},,,0")
    codes = torch.float8_e4m3fn, torch.int8
    scales = ((512, 56), (17, 56)), ((512, 1), (2112, 1))
    with monkeypatch.context() as patched:
        patched.setenv("OPMUX_TUNED", str(path.parent))
        opmux.tuning.reload()
        found = [
            opmux.explain(
                opmux.scaled_linear,
                *(torch.empty(shape, dtype=dtype, device="meta") for shape in ((512, 7168), (2112, 7168))),
                *(torch.empty(shape, device="meta") for shape in shapes),
                out_dtype=torch.bfloat16,
                arch="gfx950",
                backend="ck",
            )
            for dtype, shapes in zip(codes, scales, strict=True)
        ]
    opmux.tuning.reload()
    assert [one.config_source for one in found] == ["tuned", "tuned"]
    assert [(one.chosen.name, one.config["m"], one.config["n"]) for one in found] == [
        ("ck:blocks_gfx950", 64, 128),
        ("ck:channels_gfx950", 128, 128),
    ]


@pytest.mark.parametrize(
    ("units", "given", "known"),
    [
        ("304", "torch.float8_e4m3fnuz", "e4m3fnuz"),
        ("256", "torch.float8_e4m3fn", "e4m3fn"),
        ("256", "torch.int8", "i8"),
        ("256", "", "i8"),
    ],
)
def test_the_dtype_of_codes(tmp_path, units, given, known) -> None:
    header = "cu_num,M,N,K,q_dtype_w,kernelId,splitK,us,kernelName,tflops,bw,errRatio\n"
    (row,) = read(table(tmp_path, f"{units},512,1280,8192,{given},13,0,30.5,{TILE},,,0", header=header))
    assert row["dtypes"]["w"] == known


def test_codes_that_an_arch_does_not_know(tmp_path) -> None:
    header = "cu_num,M,N,K,q_dtype_w,us,kernelName,splitK\n"
    (row,) = read(table(tmp_path, f"304,512,1280,8192,torch.float8_e4m3fn,30.5,{TILE},0", header=header))
    assert row == BadRow(
        2,
        "`q_dtype_w` expected torch.int8 or torch.float8_e4m3fnuz on gfx942, got 'torch.float8_e4m3fn'",
    )


def test_mixtures_of_experts_are_refused_by_row(tmp_path) -> None:
    header = "cu_num,token,expert,us1,kernelName1,us2,kernelName2,us\n"
    rows = list(
        read(table(tmp_path, "304,512,8,373.4,moe_ck2stages_gemm1,268.5,moe_ck2stages_gemm2,641.9", header=header))
    )
    assert rows == [BadRow(2, "opmux has no op for fused mixtures of experts")]


def test_the_core_reads_it(tmp_path, monkeypatch) -> None:
    path = table(tmp_path, f"304,512,1280,8192,13,0,30.5,{TILE},0.9,238.6,0.0", "304,512,1280,8192,0,0,1,nothing,,,0")
    with monkeypatch.context() as patched:
        patched.setenv("OPMUX_TUNED", str(path.parent))
        opmux.tuning.reload()
        report = opmux.tuning.report()
    opmux.tuning.reload()
    assert report.ops == {"scaled_linear": 1}
    assert [refusal.reason for refusal in report.refused] == [
        "`kernelName` expected a name as a8w8_rowwise_256x128x128x128_..., got 'nothing'"
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (BLOCKS.replace("256x64x128x128", "256x16x64x256"),
         "a step of k has 256 elements, here 128: one block of scales"),
        (BLOCKS.replace("64x128x128", "64x256x128").replace("v3", "v1"),
         "k = 128 and n = 256: blocks of scales take k = 128 and an n that divides it"),
        (BLOCKS.replace("256x64x128x128", "256x16x64x128").replace("32x32", "16x16").replace("v3", "v1"),
         "m * k = 2048 is not a multiple of 16 elements for each of 256 threads"),
        (BLOCKS.replace("v3", "v5"), "64x128 with intrawave_v5 is not in AITER's list of kernels"),
        (BLOCKS[:60].replace("1x128x128", "1x64x64"),
         "`kernelName` expected a name as a8w8_rowwise_256x128x128x128_..., "
         "got 'a8w8_blockscale_1x64x64_256x64x128x128_16x16_32x32_8x32x1_'"),
        ("a8w8_blockscale_bpreshuffle_1x128x128_v1",
         "a8w8_blockscale_bpreshuffle: this backend has no instances for shuffled weights"),
        ("bf16_batched_64x16x16x64_16x16_1x1_v2", "bf16_batched: this backend has no instances for batches of weights"),
        ("_ZN5aiter41f4gemm_bf16_per1x32Fp4E", "the kernel is AITER's assembly"),
        ("__import__('os').system('true')",
         "`kernelName` expected a name as a8w8_rowwise_256x128x128x128_..., got \"__import__('os').system('true')\""),
        (TILE.replace("intrawave_v3", "interwave_v2"),
         "interwave_v2: of CK's loops for codes there is intrawave_v3 alone"),
        (TILE.replace("256x128x128x128", "128x128x128x128"), "128 threads are not the waves of 128x128 in 32x32"),
        (TILE.replace("256x128x128x128", "256x256x256x128").replace("2x2", "4x4"),
         "m * n = 65536 is more than 128 accumulators for each of 256 threads"),
    ],
)  # fmt: skip
def test_kernels_without_a_counterpart(name, reason) -> None:
    with pytest.raises(Unmapped) as caught:
        config_of(name, 4096, 4096)
    assert str(caught.value) == reason


def test_padding_is_what_the_sizes_need() -> None:
    assert config_of(TILE, 4096, 4096) == CodesConfig(128, 128, 128, 2, 2, 32, 16, "v3", 8, False, False)
    assert config_of(TILE, 4098, 4112) == CodesConfig(128, 128, 128, 2, 2, 32, 16, "v3", 2, True, True)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (f"80,512,1280,8192,13,0,30.5,{TILE},,,0", "`cu_num` expected 304 (gfx942) or 256 (gfx950), got '80'"),
        (f"304,512,1280,8192,13,2,30.5,{TILE},,,0", "splitK: CK's product with scales does not cut k"),
        (f"304,-5,1280,8192,13,0,30.5,{TILE},,,0", "`M` expected a number from 1 on, got '-5'"),
        (f"304,5,{'9' * 5000},8192,13,0,30.5,{TILE},,,0", f"`N` expected a number from 1 on, got '{'9' * 20}'"),
        (f"304,5,1280,8200,13,0,30.5,{TILE},,,0", "k = 8200 is not a multiple of 16"),
    ],
)
def test_rows_that_are_not_mapped(tmp_path, row, reason) -> None:
    assert list(read(table(tmp_path, row))) == [BadRow(2, reason)]


def test_kernels_of_other_libraries(tmp_path) -> None:
    header = "M,N,K,libtype,us,kernelName\n"
    (row,) = read(table(tmp_path, "64,256,5120,hipblaslt,8.3,Cijk", header=header))
    assert row == BadRow(2, "the kernel is of 'hipblaslt', not of CK")


def test_another_table_is_refused_whole(tmp_path) -> None:
    with pytest.raises(ValueError, match="kernelName, us is missing"):
        list(read(table(tmp_path, "16, 1536, 7168", header="M,N,K\n")))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (bytes(range(256)), "cannot be read: UnicodeDecodeError: "),
        (HEADER.encode() + b"304," + b"9" * 200_000 + b",1280,8192,13,0,30.5," + TILE.encode(), "`M` expected "),
        (HEADER.encode() + b"304,51\0,1280,8192,13,0,30.5," + TILE.encode(), "`M` expected a number from 1 on, got "),
        (HEADER.encode() + b"304,512,1280,8192,13,0,=1," + TILE.encode() + b",,,0", "scaled_linear: `time_us` "),
        (HEADER.encode() + b"304,512,1280,8192,13,0", "`kernelName` expected a name as a8w8_rowwise_"),
    ],
    ids=["bytes", "long", "nul", "formula", "short"],
)  # fmt: skip
def test_hostile_tables_are_refused_and_named(tmp_path, monkeypatch, content, reason) -> None:
    path = table(tmp_path)
    path.write_bytes(content)
    with monkeypatch.context() as patched:
        patched.setenv("OPMUX_TUNED", str(path.parent))
        opmux.tuning.reload()
        report = opmux.tuning.report()
    opmux.tuning.reload()
    assert report.ops == {}
    (refusal,) = report.refused
    assert refusal.reason.startswith(reason)


def test_a_field_of_any_length_spoils_its_own_row_alone(tmp_path) -> None:
    good = f"304,512,1280,8192,13,0,30.5,{TILE},0.9,238.6,0.0"
    spoilt, rest = read(table(tmp_path, good.replace("512", "9" * 200_000), "", good))
    assert isinstance(spoilt, BadRow)
    assert len(spoilt.reason) < 100
    assert rest["line"] == 4


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path) -> None:
    rows = list(read(table(tmp_path, f"304,512,1280,8192,13,0,30.5,{TILE},0.9,238.6,0.0", header="\ufeff" + HEADER)))
    assert [row["arch"] for row in rows] == ["gfx942"]


def test_an_open_quote_spoils_its_own_row_alone(tmp_path) -> None:
    good = f"304,512,1280,8192,13,0,30.5,{TILE},0.9,238.6,0.0"
    spoilt, *rest = read(table(tmp_path, f'"{good}', good, good))
    assert spoilt == BadRow(2, "`cu_num` expected 304 (gfx942) or 256 (gfx950), got '\"304'")
    assert [row["line"] for row in rest] == [3, 4]
