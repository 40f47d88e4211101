"""What the compiler makes of the kernels, without a GPU: arguments as the launcher gives them, no local memory."""

import pytest
import torch
from cubins import compiled, kernel, kernels, layout, meta

import opmux
from opmux.plugin import takers
from opmux_cutile.prebuilding import kernels_of, launched_by

BF16, FP32 = torch.bfloat16, torch.float32
ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120")


@pytest.mark.parametrize("arch", ARCHS)
def test_rows_are_read_and_written_in_whole_vectors(arch, tmp_path) -> None:
    wanted = kernel("rms_norm", meta(512, 5120), meta(5120), arch=arch)
    found = compiled(wanted, arch, tmp_path)
    assert found.parameters == layout(wanted.letters)
    assert found.opcodes["LDG.E.128"] == 10  # 5120 elements of x and of the weight, 8 for each of 128 threads
    assert found.opcodes["STG.E.128"] == 5
    assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)
    assert 0 < found.registers <= 255


@pytest.mark.parametrize(
    ("op", "tensors"),
    [
        ("rms_norm", (meta(7, 16384), meta(16384))),
        ("rms_norm", (meta(7, 4097), meta(4097))),
        ("rms_norm", (meta(7, 64), meta(64, dtype=FP32))),
        ("add_rms_norm", (meta(7, 16384), meta(7, 16384, dtype=FP32), meta(16384))),
        ("add_rms_norm_", (meta(7, 8192), meta(7, 8192), meta(8192))),
        ("layer_norm", (meta(7, 16384), meta(16384), meta(16384))),
        ("layer_norm", (meta(7, 1000), meta(1000), None)),
        ("add_layer_norm", (meta(7, 8192), meta(7, 8192, dtype=FP32), meta(8192), meta(8192))),
        ("add_layer_norm", (meta(7, 1000), meta(7, 1000), meta(1000), None)),
        ("silu_and_mul", (meta(7, 22016),)),
        ("silu_mul", (meta(7, 77, dtype=FP32), meta(7, 77, dtype=FP32))),
        ("layer_norm_backward", (meta(7, 8192), meta(7, 8192), meta(8192))),
        ("add_layer_norm_backward", (*[meta(7, 8192)] * 3, meta(8192))),
        ("add_layer_norm_backward", (*[meta(7, 4096, dtype=torch.float16)] * 3, meta(4096, dtype=torch.float16))),
        ("add_layer_norm_backward", (*[meta(7, 2048, dtype=FP32)] * 3, meta(2048, dtype=FP32))),
        ("silu_and_mul_backward", (meta(7, 4096), meta(7, 8192))),
        ("rms_norm_quantize", (meta(7, 8192), meta(8192))),
        ("rms_norm_quantize", (meta(7, 4095), meta(4095))),
        ("add_rms_norm_quantize", (*[meta(7, 8192, dtype=FP32)] * 2, meta(8192, dtype=FP32))),
        ("apply_rope", (meta(7, 8, 128), meta(7, 2, 128), meta(9, 64, dtype=FP32), meta(9, 64, dtype=FP32), None)),
        ("apply_rope", (meta(7, 1, 128), meta(7, 1, 128), meta(9, 4, dtype=FP32), meta(9, 4, dtype=FP32), None)),
    ],
    ids=[
        "longest",
        "odd",
        "short",
        "added, wide",
        "in place",
        "centred, longest",
        "centred, no bias",
        "added, centred",
        "added, centred, no bias",
        "gate",
        "odd gate",
        "gradients",
        "gradients, added",
        "gradients, added, float16",
        "gradients, added, float32",
        "gradients of a gate",
        "codes",
        "codes, odd",
        "codes, float32",
        "heads",
        "a part of a wide head",
    ],
)
def test_no_kernel_uses_local_memory(op, tensors, tmp_path) -> None:
    options = {"dtype": torch.float8_e4m3fn} if op.endswith("quantize") else {}
    wanted = kernel(op, *tensors, **options)
    found = compiled(wanted, "sm_90", tmp_path)
    assert found.parameters == layout(wanted.letters)
    assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("arch", "rows", "instruction"),
    [
        ("sm_90", 4096, "HGMMA.64x256x16.F32.BF16"),
        ("sm_90", 512, "HGMMA.64x128x16.F32.BF16"),
        ("sm_90", 60, "HGMMA.64x64x16.F32.BF16"),
        ("sm_90", 1, "HMMA.16816.F32.BF16"),
        ("sm_100", 4096, "UTCHMMA.2CTA"),
        ("sm_100", 512, "UTCHMMA"),
        ("sm_100", 60, "UTCHMMA"),
        ("sm_120", 4096, "HMMA.16816.F32.BF16"),
    ],
)
def test_products_use_the_matrix_units_and_the_copy_engine(arch, rows, instruction, tmp_path) -> None:
    wanted = kernel("linear", meta(rows, 512), meta(4096, 512), meta(4096), arch=arch)
    found = compiled(wanted, arch, tmp_path)
    assert found.parameters == layout(wanted.letters)
    assert found.opcodes[instruction] > 0
    assert found.count("UTMALDG") > 0
    assert found.count("UTMASTG") > 0
    assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize("rows", [1, 30, 64, 128, 4096])
@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_threads_copy_operands_past_the_registers_where_there_is_no_copy_engine(arch, rows, tmp_path) -> None:
    wanted = kernel("linear", meta(rows, 512), meta(4096, 512), meta(4096), arch=arch)
    found = compiled(wanted, arch, tmp_path)
    assert found.parameters == layout(wanted.letters)
    for instruction in ("HMMA.16816.F32.BF16", "LDGSTS.E.BYPASS.128", "LDSM", "STG.E.128"):
        assert found.count(instruction) > 0
    assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("arch", "copy", "dims"),
    [
        *(("sm_80", "LDGSTS.E.BYPASS.128", dims) for dims in ((64, 64), (128, 128), (80, 96), (128, 16))),
        *(("sm_120", "UTMALDG", dims) for dims in ((64, 64), (128, 128), (80, 96), (128, 16))),
        *(("sm_120", "LDGSTS.E.BYPASS.128", dims) for dims in ((256, 256), (192, 128))),
    ],
)
def test_heads_fit_where_both_operands_come_from_registers(arch, copy, dims, tmp_path) -> None:
    """Without a mask but the causal one, and with all that a call may ask for."""
    q, k, v, sinks = meta(512, 8, dims[0]), meta(512, 2, dims[0]), meta(512, 2, dims[1]), meta(8)
    starts, bounds = meta(9, dtype=torch.int32), {"max_seqlen_q": 512, "max_seqlen_k": 512}
    masked = {"causal": True, "window": (128, 0), "softcap": 30.0}
    for wanted in (
        kernel("attention", q[None], k[None], v[None], None, arch=arch, causal=True),
        kernel("attention_varlen_lse", q, k, v, starts, starts, sinks, arch=arch, **bounds, **masked),
    ):
        found = compiled(wanted, arch, tmp_path)
        assert found.parameters == layout(wanted.letters)
        assert found.count("HMMA.16816.F32.BF16") > 0
        assert found.count(copy) > 0
        assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize("tokens", [8, 512], ids=["decode", "prefill"])
@pytest.mark.parametrize(
    ("dims", "stored"),
    [((64, 64), BF16), ((128, 128), BF16), ((80, 96), BF16), ((128, 32), BF16), ((16, 16), BF16), ((256, 256), BF16),
     ((64, 64), torch.int8), ((128, 128), torch.int8)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
def test_pages_fit_where_both_operands_come_from_registers(arch, dims, stored, tokens, tmp_path) -> None:
    """Without a mask but the causal one, and with all that a call may ask for."""
    q, sinks, table = meta(tokens, 8, dims[0]), meta(8), meta(8, 64, dtype=torch.int32)
    caches = [meta(512, 16, 2, dim, dtype=stored) for dim in dims]
    starts, lengths = meta(9, dtype=torch.int32), meta(8, dtype=torch.int32)
    scale = None if stored == BF16 else meta(2, dtype=FP32)
    bounds = {"max_seqlen_q": tokens // 8, "max_seqlen_k": 1024}
    given = (q, *caches, starts, lengths, table)
    for wanted in (
        kernel("paged_attention", *given, None, None, None, None, arch=arch, **bounds),
        kernel(
            "paged_attention_lse", *given, sinks, None, scale, scale, arch=arch, **bounds, window=(128, 0), softcap=30.0
        ),
    ):
        found = compiled(wanted, arch, tmp_path)
        assert found.parameters == layout(wanted.letters)
        assert found.count("HMMA.16816.F32.BF16") > 0
        assert found.count("LDGSTS.E.BYPASS.128") > 0
        assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize(("arch", "instruction"), [("sm_90", "HGMMA.64x128x16.F32.BF16"), ("sm_100", "UTCHMMA")])
def test_attention_uses_the_matrix_units_and_the_copy_engine(arch, instruction, tmp_path) -> None:
    wanted = kernel(
        "attention", meta(1, 512, 4, 128), meta(1, 512, 2, 128), meta(1, 512, 2, 128), arch=arch, causal=True
    )
    found = compiled(wanted, arch, tmp_path)
    assert found.parameters == layout(wanted.letters)
    assert found.opcodes[instruction] > 0
    assert found.count("UTMALDG") > 0
    assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_wide_heads_with_a_soft_cap_under_a_window_use_no_local_memory(arch, tmp_path) -> None:
    q, k = meta(1, 512, 4, 256), meta(1, 512, 2, 256)
    wanted = kernel("attention_lse", q, k, k, arch=arch, causal=True, window=(128, 0), softcap=50.0)
    found = compiled(wanted, arch, tmp_path)
    assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("stored", "dims"),
    [
        (torch.float8_e4m3fn, (32, 32)),
        (torch.int8, (32, 32)),
        (torch.float8_e4m3fn, (256, 256)),
        (torch.bfloat16, (8, 8)),
        (torch.bfloat16, (24, 16)),
    ],
    ids=str,
)
def test_decoding_of_narrow_heads_and_from_codes_uses_no_local_memory(stored, dims, tmp_path) -> None:
    int32 = torch.int32
    caches = [meta(100, 16, 2, dim, dtype=stored) for dim in dims]
    tensors = meta(8, 8, dims[0]), *caches, meta(9, dtype=int32), meta(8, dtype=int32), meta(8, 64, dtype=int32)
    options = {"max_seqlen_q": 1, "max_seqlen_k": 1024, "window": (128, 0), "causal": True, "softcap": 30.0}
    for one in kernels("paged_attention", *tensors, meta(8), **options):
        found = compiled(one, "sm_90", tmp_path)
        assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize("scaled", [False, True])
def test_decoding_of_narrow_heads_with_sinks_and_scales_uses_no_local_memory(scaled, tmp_path) -> None:
    int32, code = torch.int32, torch.float8_e4m3fn
    caches = meta(100, 16, 2, 40, dtype=code), meta(100, 16, 2, 32, dtype=code)
    tensors = meta(8, 8, 40), *caches, meta(9, dtype=int32), meta(8, dtype=int32), meta(8, 64, dtype=int32), meta(8)
    scales = (None, *[meta(2, dtype=FP32) if scaled else None] * 2)
    options = {"max_seqlen_q": 1, "max_seqlen_k": 64, "causal": True}
    for one in kernels("paged_attention", *tensors, *scales, **options):
        found = compiled(one, "sm_90", tmp_path)
        assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize(("dim", "width", "cap"), [(192, 128, 0.0), (256, 32, 0.0), (32, 256, 0.0), (128, 16, 30.0)])
def test_gradients_of_keys_and_values_of_two_widths_use_no_local_memory(dim, width, cap, tmp_path) -> None:
    q, k, v = meta(2, 128, 4, dim), meta(2, 128, 2, dim), meta(2, 128, 2, width)
    out, lse = meta(2, 128, 4, width), meta(2, 4, 128, dtype=FP32)
    found = kernels("attention_backward", out, q, k, v, out, lse, None, None, causal=True, softcap=cap)
    keys = [one for one in found if one.name == "keys_dense"]
    assert keys
    for one in keys:
        code = compiled(one, "sm_90", tmp_path)
        assert (code.local, code.count("LDL"), code.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize("w_rows", [1, 128])
def test_products_of_codes_with_few_rows_use_no_local_memory_from_registers(w_rows, tmp_path) -> None:
    x, w = meta(30, 512, dtype=torch.float8_e4m3fn), meta(512, 512, dtype=torch.float8_e4m3fn)
    scales = meta(30, 4, dtype=FP32), meta(512 // w_rows, 4, dtype=FP32)
    wanted = kernel("scaled_linear", x, w, *scales, None, arch="sm_120", out_dtype=torch.bfloat16)
    found = compiled(wanted, "sm_120", tmp_path)
    assert found.count("QMMA") > 0
    assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize("arch", ["sm_100"])
@pytest.mark.parametrize(
    ("biased", "out", "instruction"),
    [(False, torch.bfloat16, "UTCQMMA.2CTA"), (True, torch.bfloat16, "UTCQMMA.2CTA"), (True, FP32, "UTCQMMA")],
)
def test_products_of_codes_sum_in_tensor_memory_on_blackwell(arch, biased, out, instruction, tmp_path) -> None:
    codes, scales = meta(4096, 4096, dtype=torch.float8_e4m3fn), meta(4096, 1, dtype=FP32)
    bias = meta(4096, dtype=out) if biased else None
    wanted = kernel("scaled_linear", codes, codes, scales, scales, bias, arch=arch, out_dtype=out)
    found = compiled(wanted, arch, tmp_path)
    assert found.parameters == layout(wanted.letters)
    assert found.opcodes[instruction] > 0
    assert found.count("UTMALDG") > 0
    assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


def test_products_of_codes_use_the_matrix_units(tmp_path) -> None:
    codes, scales = meta(4096, 512, dtype=torch.float8_e4m3fn), meta(4096, 1, dtype=FP32)
    wanted = kernel("scaled_linear", codes, codes, scales, scales, None, out_dtype=torch.bfloat16)
    found = compiled(wanted, "sm_90", tmp_path)
    assert found.parameters == layout(wanted.letters)
    assert found.opcodes["QGMMA.64x128x32.F32.E4M3.E4M3"] > 0
    assert found.count("UTMALDG") > 0
    assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize("biased", [False, True])
def test_products_with_scales_of_blocks_of_each_row_of_w_use_no_local_memory(biased, tmp_path) -> None:
    """In the tiles of rows of 4096 too, which two blocks of the grid share where scales are of other blocks."""
    codes, scales = meta(4096, 4096, dtype=torch.float8_e4m3fn), meta(4096, 32, dtype=FP32)
    bias = meta(4096) if biased else None
    wanted = kernel("scaled_linear", codes, codes, scales, scales, bias, out_dtype=torch.bfloat16)
    found = compiled(wanted, "sm_90", tmp_path)
    assert found.count("QGMMA") > 0
    assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


def test_long_products_with_scales_of_blocks_are_turned_and_use_no_local_memory(tmp_path) -> None:
    codes, of_x, of_w = (
        meta(4096, 7168, dtype=torch.float8_e4m3fn),
        meta(4096, 56, dtype=FP32),
        meta(32, 56, dtype=FP32),
    )
    wanted = kernel("scaled_linear", codes, codes, of_x, of_x, meta(4096), out_dtype=torch.bfloat16)
    assert wanted.module == "opmux_cutile.scaled.kernels"
    found = compiled(wanted, "sm_90", tmp_path)
    assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)
    for bias in (None, meta(4096)):
        wanted = kernel("scaled_linear", codes, codes, of_x, of_w, bias, out_dtype=torch.bfloat16)
        assert wanted.module == "opmux_cutile.scaled.turned.kernels"
        found = compiled(wanted, "sm_90", tmp_path)
        assert found.parameters == layout(wanted.letters)
        assert found.opcodes["QGMMA.64x64x32.F32.E4M3.E4M3"] > 0
        assert found.count("UTMALDG") > 0
        assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("arch", "stored"),
    [*((arch, torch.bfloat16) for arch in ARCHS), *((arch, torch.float8_e4m3fn) for arch in ARCHS[1:])],
)
def test_cache_writes_move_whole_vectors(arch, stored, tmp_path) -> None:
    new, slots = meta(33, 8, 128), meta(33, dtype=torch.int64)
    caches = [meta(50, 16, 8, 128, dtype=stored) for _ in range(2)]
    wanted = kernel("write_kv_cache", new, new, *caches, slots, None, None, arch=arch)
    found = compiled(wanted, arch, tmp_path)
    assert found.parameters == layout(wanted.letters)
    assert found.opcodes["LDG.E.128"] > 0
    assert found.opcodes["STG.E.128"] > 0
    assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8], ids=str)
@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("batch", [8, 132])
def test_decoding_copies_pages_and_uses_no_local_memory(batch, page_size, stored, tmp_path) -> None:
    """With everything that a call may ask for; keys are not split where each of 132 units has two blocks already."""
    int32, scale = torch.int32, None if stored == torch.bfloat16 else meta(2, dtype=FP32)
    caches = [meta(100, page_size, 2, 128, dtype=stored) for _ in range(2)]
    ints = meta(batch + 1, dtype=int32), meta(batch, dtype=int32), meta(batch, 64, dtype=int32)
    tensors = meta(batch, 8, 128), *caches, *ints, meta(8), None, scale, scale
    options = {"max_seqlen_q": 1, "max_seqlen_k": 1024, "window": (512, 0), "softcap": 30.0}
    (taker,) = takers(opmux.paged_attention_lse, *tensors, arch="sm_90", backend="cutile", **options)
    wanted = kernels_of(taker)
    assert [one.name for one in launched_by(taker)] == (["decode", "combine"] if batch == 8 else ["decode"])
    assert sorted(one.name for one in wanted) == ["combine", "decode", "decode"]
    for one in wanted:
        found = compiled(one, "sm_90", tmp_path)
        assert found.parameters == layout(one.letters)
        assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)
        if one.name == "decode":
            assert found.opcodes[f"HMMA.16816.F32{'.BF16' if scale is None else ''}"] > 0
            assert found.count("UTMALDG") > 0


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize(("arch", "queries", "instruction"), [
    ("sm_90", 2, "HMMA.16816.F32.BF16"),
    ("sm_90", 512, "HGMMA.64x64x16.F32.BF16"),
    ("sm_100", 512, "UTCHMMA"),
])  # fmt: skip
def test_paged_attention_uses_the_matrix_units_and_no_local_memory(
    arch, queries, instruction, stored, tmp_path
) -> None:
    int32 = torch.int32
    caches = [meta(100, 16, 2, 128, dtype=stored) for _ in range(2)]
    tensors = meta(8 * queries, 8, 128), *caches, meta(9, dtype=int32), meta(8, dtype=int32), meta(8, 64, dtype=int32)
    bounds = {"max_seqlen_q": queries, "max_seqlen_k": 1024}
    (taker,) = takers(opmux.paged_attention_lse, *tensors, arch=arch, backend="cutile", **bounds)
    wanted = kernels_of(taker)
    assert [one.name for one in launched_by(taker)] == (["attend", "combine"] if queries == 2 else ["attend"])
    assert sorted(one.name for one in wanted) == (["attend", "attend", "combine"] if queries == 2 else ["attend"])
    for one in wanted:
        found = compiled(one, arch, tmp_path)
        assert found.parameters == layout(one.letters)
        assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)
        if one.name == "attend":
            assert found.opcodes[instruction] > 0
            assert found.opcodes["LDGSTS.E.BYPASS.128"] > 0


@pytest.mark.parametrize("arch", ["sm_90"])
@pytest.mark.parametrize(
    ("dims", "queries"),
    [((8, 8), 1), ((8, 40), 3), ((32, 8), 8), ((32, 32), 8), ((128, 128), 8), ((72, 72), 512), ((256, 8), 1),
     ((256, 8), 8)],
    ids=str,
)  # fmt: skip
def test_codes_of_heads_of_any_sizes_use_no_local_memory(dims, queries, arch, tmp_path) -> None:
    """Looked up key by key: where rows are no whole vectors, their addresses take registers."""
    int32, scale = torch.int32, meta(2, dtype=FP32)
    caches = [meta(100, 1, 2, dim, dtype=torch.float8_e4m3fn) for dim in dims]
    ints = meta(9, dtype=int32), meta(8, dtype=int32), meta(8, 64, dtype=int32)
    tensors = meta(8 * queries, 8, dims[0]), *caches, *ints, meta(8), None, scale, scale
    bounds = {"max_seqlen_q": queries, "max_seqlen_k": 64, "causal": True}
    for wanted in kernels("paged_attention_lse", *tensors, arch=arch, **bounds):
        found = compiled(wanted, arch, tmp_path)
        assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize(
    ("stored", "queries", "causal"),
    [(torch.bfloat16, 12, True), (torch.int8, 64, False), (torch.float8_e4m3fn, 64, False)],
    ids=str,
)
def test_pages_of_wide_heads_use_no_local_memory(stored, queries, causal, arch, tmp_path) -> None:
    """In tiles of 17 to 32 rows, and codes that are seen by every query."""
    scale = None if stored == torch.bfloat16 else meta(8, dtype=FP32)
    cache, ints = meta(100, 16, 8, 256, dtype=stored), (meta(size, dtype=torch.int32) for size in (9, 8))
    tensors = meta(8 * queries, 16, 256), cache, cache, *ints, meta(8, 64, dtype=torch.int32), None, None, scale, scale
    wanted, *_ = kernels("paged_attention", *tensors, arch=arch, max_seqlen_q=queries, max_seqlen_k=200, causal=causal)
    found = compiled(wanted, arch, tmp_path)
    assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize("arch", ["sm_100"])
@pytest.mark.parametrize(("dim", "width"), [(64, 128), (128, 64)])
def test_gradients_of_heads_of_two_widths_use_no_local_memory(dim, width, arch, tmp_path) -> None:
    (q, k), (out, v) = ((meta(2, 64, heads, size) for heads in (4, 2)) for size in (dim, width))
    tensors = out, q, k, v, out, meta(2, 4, 64, dtype=FP32), None, None
    for wanted in kernels("attention_backward", *tensors, arch=arch, causal=True):
        found = compiled(wanted, arch, tmp_path)
        assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize("arch", ["sm_80"])
@pytest.mark.parametrize("dim", [32, 64, 128])
def test_capped_scores_use_no_local_memory_where_threads_copy_rows(dim, arch, tmp_path) -> None:
    q, k = meta(2, 64, 4, dim), meta(2, 64, 1, dim)
    wanted = kernel("attention", q, k, k, None, arch=arch, causal=True, softcap=30.0)
    found = compiled(wanted, arch, tmp_path)
    assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize("rows", [256, 4096])
@pytest.mark.parametrize(
    ("arch", "instruction"), [("sm_90", "HGMMA"), ("sm_100", "UTCHMMA"), ("sm_120", "HMMA.16816.F32.BF16")]
)
def test_products_of_groups_use_the_matrix_units_and_no_local_memory(arch, instruction, rows, tmp_path) -> None:
    w, counts = meta(8, 4096, 512), meta(8, dtype=torch.int32)
    calls = (
        ("grouped_linear", (meta(rows, 512), w, meta(9, dtype=torch.int32)), {}),
        ("masked_grouped_linear", (meta(8, rows // 8, 512), w, counts), {"expected_m": 9}),
    )
    for op, tensors, options in calls:
        for wanted in kernels(op, *tensors, arch=arch, **options):
            found = compiled(wanted, arch, tmp_path)
            assert found.parameters == layout(wanted.letters)
            assert found.count(instruction) > 0 or wanted.name == "find_tiles"
            assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0)
