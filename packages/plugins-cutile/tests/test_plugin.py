"""What the backend claims, unasked and asked for; what it refuses, with the reason."""

import subprocess
import sys

import pytest
import torch
from cubins import meta

import opmux
from opmux.plugin import Implementation, Priority, parse_arch
from opmux_cutile.plugin import opmux_implementations

FP32, FP64 = torch.float32, torch.float64


def judged(op, *tensors, arch: str = "sm_90", backend: str | None = "cutile", **options):
    """The candidate of this backend."""
    plan = opmux.explain(op, *tensors, arch=arch, backend=backend, **options)
    return next(candidate for candidate in plan.candidates if candidate.name == "cutile")


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_calls_get_it_unasked_with_measured_rows_and_without(arch) -> None:
    assert judged(opmux.rms_norm, meta(4, 4096), meta(4096), arch=arch, backend=None).status == "chosen"


def test_without_rows_it_stands_behind_portable_kernels() -> None:
    taken = {record.priority for record in opmux_implementations() if run_on_a_gpu(record)}
    assert taken == {Priority.PORTABLE - 1}


def run_on_a_gpu(record: Implementation) -> bool:
    """Whether a record is for an arch of which there was a GPU."""
    return any(parse_arch("sm_90").matches(pattern) for pattern in record.archs)


def test_records_for_archs_of_which_no_gpu_has_run_them_are_taken_only_by_name() -> None:
    others = {(r.op, r.name): r.priority for r in opmux_implementations() if not run_on_a_gpu(r)}
    assert set(others.values()) == {Priority.EXPERIMENTAL}
    assert {name for _, name in others} == {"gathered", "gathered_codes", "registers"}


@pytest.mark.parametrize(("arch", "name"), [("sm_80", "gathered"), ("sm_89", "gathered"), ("sm_120", "registers")])
def test_attention_is_left_to_others_on_archs_of_which_no_gpu_has_run_it(arch, name) -> None:
    plan = opmux.explain(opmux.attention, WIDE, WIDE, WIDE, None, arch=arch)
    found = next(candidate for candidate in plan.candidates if candidate.name == f"cutile:{name}")
    assert (found.status, found.reason) == ("rejected", "experimental: only when asked for by name")


def test_sums_of_layers_are_taken_unasked() -> None:
    rows, weight = meta(4, 512), meta(512)
    assert judged(opmux.add_layer_norm, rows, rows, weight, weight, backend=None).status == "chosen"
    assert judged(opmux.add_layer_norm_backward, rows, rows, rows, weight, backend=None).status == "chosen"


HEADS, TABLE, WIDE = meta(4, 4, 16), meta(32, 8, dtype=torch.float32), meta(1, 4, 2, 64)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_every_arch_from_sm_80_is_taken(arch) -> None:
    assert judged(opmux.rms_norm, meta(4, 4096), meta(4096), arch=arch).status == "chosen"


@pytest.mark.parametrize(
    ("op", "tensors", "reason"),
    [
        (opmux.rms_norm, (meta(4, 16385), meta(16385)), "hidden = 16385 is more than 16384"),
        (opmux.rms_norm, (meta(4, 16, dtype=FP64), meta(16)), "x is float64, takes bfloat16, float16, float32"),
        (opmux.rms_norm, (meta(4, 16), meta(16, dtype=FP64)), "weight is float64, takes bfloat16, float16, float32"),
        (opmux.rms_norm, (meta(16, 4).T, meta(16)), "the last stride of x is not 1: strides [1, 4]"),
        (opmux.linear, (meta(4, 12), meta(8, 12), None), "k = 12 is not a multiple of 8"),
        (opmux.linear, (meta(4, 16), meta(12, 16), None), "n = 12 is not a multiple of 8"),
        (opmux.linear, (meta(4, 16).float(), meta(8, 16).float(), None), "x is float32, takes bfloat16, float16"),
        (opmux.linear, (meta(4, 1 << 15), meta(1 << 15, 1 << 15), None), "w spans more than 1073741823 elements"),
        (opmux.linear, (meta(4, 20)[:, :16], meta(8, 16), None), "x is not aligned to 16 bytes"),
        (opmux.gelu_and_mul, (meta(4, 16),), "approximate = 'none' is not 'tanh'"),
        (opmux.silu_and_mul, (meta(4, 16, dtype=FP64),), "x is float64, takes bfloat16, float16, float32"),
        (opmux.add_rms_norm_, (meta(4, 32)[:, :16], meta(4, 16), meta(16)), "x is not contiguous: strides [32, 1]"),
        (opmux.apply_rope_, (HEADS[:, :2], HEADS.clone(), TABLE, TABLE), "q is not contiguous: strides [64, 16, 1]"),
        (opmux.apply_rope, (HEADS, HEADS, TABLE[:, :0], TABLE[:, :0]), "half = 0 is less than 1"),
        (opmux.attention, (WIDE[..., :12], WIDE[..., :12], WIDE, None), "head_dim = 12 is not a multiple of 8"),
        (
            opmux.attention,
            (WIDE, WIDE, WIDE, meta(2, dtype=FP64)),
            "sinks is float64, takes bfloat16, float16, float32",
        ),
        (opmux.attention, (WIDE.float(), WIDE.float(), WIDE.float(), None), "q is float32, takes bfloat16, float16"),
        (opmux.attention_lse, (meta(1, 4, 2, 264), meta(1, 4, 2, 264), WIDE, None), "head_dim = 264 is more than 256"),
    ],
)
def test_what_it_refuses_has_a_reason(op, tensors, reason) -> None:
    found = judged(op, *tensors)
    assert (found.status, found.reason) == ("rejected", reason)


@pytest.mark.parametrize(("arch", "name"), [("sm_90", "cutile"), ("sm_80", "cutile:gathered")])
def test_products_have_results_in_the_dtype_of_their_operands(arch, name) -> None:
    call = meta(4, 16), meta(8, 16)
    plan = opmux.explain(opmux.linear, *call, arch=arch, backend=name, out_dtype=torch.float32)
    found = next(candidate for candidate in plan.candidates if candidate.name == name)
    assert (found.status, found.reason) == ("rejected", "out_dtype is float32, takes bfloat16, float16")


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89"])
def test_threads_copy_the_operands_where_there_is_no_copy_engine(arch) -> None:
    found = judged(opmux.linear, meta(4, 16), meta(8, 16), arch=arch)
    assert (found.status, found.reason) == ("rejected", f"archs: sm_90+, this is {arch}")
    plan = opmux.explain(opmux.linear, meta(4, 16), meta(8, 16), arch=arch, backend="cutile:gathered")
    assert {c.name: c.status for c in plan.candidates}["cutile:gathered"] == "chosen"
    gradients = opmux.explain(
        opmux.linear_backward,
        meta(4, 8),
        meta(4, 16),
        meta(8, 16),
        arch=arch,
        backend="cutile:gathered",
        output_mask=(True,) * 3,
    )
    assert {c.name: c.status for c in gradients.candidates}["cutile:gathered"] == "chosen"


@pytest.mark.parametrize(
    ("arch", "name", "widest"),
    [
        ("sm_80", "gathered", 128),
        ("sm_89", "gathered", 128),
        ("sm_120", "registers", 256),
    ],
)
def test_wide_heads_are_refused_where_both_operands_come_from_registers(arch, name, widest) -> None:
    for dim, status in ((widest, "chosen"), (widest + 8, "rejected")):
        heads = meta(1, 4, 2, dim)
        plan = opmux.explain(opmux.attention, heads, heads, heads, None, arch=arch, backend=f"cutile:{name}")
        found = next(candidate for candidate in plan.candidates if candidate.name == f"cutile:{name}")
        assert found.status == status
    assert found.reason == f"head_dim = {widest + 8} is more than {widest}"


@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_gradients_of_attention_need_a_copy_engine(arch) -> None:
    lse = meta(1, 2, 4, dtype=FP32)
    call = (opmux.attention_backward, WIDE, WIDE, WIDE, WIDE, WIDE, lse, None, None)
    for name, archs in (("cutile", "sm_90, sm_100, sm_103"), ("cutile:registers", "sm_120, sm_121")):
        plan = opmux.explain(*call, arch=arch, backend=name)
        found = next(candidate for candidate in plan.candidates if candidate.name == name)
        assert (found.status, found.reason) == ("rejected", f"archs: {archs}, this is {arch}")
    plan = opmux.explain(*call, arch="sm_120", backend="cutile:registers")
    assert {c.name: c.status for c in plan.candidates}["cutile:registers"] == "chosen"


def pages_judged(arch: str, dim: int, stored: torch.dtype, name: str):
    """The candidate of that name, for decoding from caches of a kind."""
    cache, number = meta(8, 16, 2, dim, dtype=stored), meta(2, dtype=torch.int32)
    call = meta(2, 4, dim), cache, cache, meta(3, dtype=torch.int32), number, number[:, None], *(None,) * 4
    plan = opmux.explain(opmux.paged_attention, *call, arch=arch, backend=name, max_seqlen_q=1, max_seqlen_k=16)
    return next(candidate for candidate in plan.candidates if candidate.name == name)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_120"])
@pytest.mark.parametrize("dim", [16, 128, 256])
def test_pages_are_read_where_both_operands_come_from_registers(arch, dim) -> None:
    assert pages_judged(arch, dim, torch.bfloat16, "cutile:gathered").status == "chosen"
    assert pages_judged(arch, dim, torch.int8, "cutile:gathered_codes").status == "chosen"
    found = pages_judged(arch, dim, torch.int8, "cutile:gathered")
    assert (found.status, found.reason) == ("rejected", "k_cache is int8, takes bfloat16, float16")
    found = pages_judged(arch, dim, FP8, "cutile:gathered_codes")
    assert found.status == ("chosen" if arch == "sm_120" else "rejected")
    assert arch == "sm_120" or found.reason == "k_cache is float8_e4m3fn, which CUDA Tile has from sm_90 on"


def test_pages_of_heads_over_256_are_refused() -> None:
    for name, stored in (("gathered", torch.bfloat16), ("gathered_codes", torch.int8)):
        found = pages_judged("sm_80", 272, stored, f"cutile:{name}")
        assert (found.status, found.reason) == ("rejected", "head_dim = 272 is more than 256")


@pytest.mark.parametrize("arch", ["sm_75", "gfx942", "cpu"])
def test_other_archs_are_refused(arch) -> None:
    found = judged(opmux.rms_norm, meta(4, 4096), meta(4096), arch=arch)
    assert (found.status, found.reason) == ("rejected", f"archs: sm_80+, this is {arch}")


FP8 = torch.float8_e4m3fn
CODES, SCALES = meta(16, 64, dtype=FP8), meta(16, 1, dtype=torch.float32)


@pytest.mark.parametrize(
    ("op", "tensors", "options", "reason"),
    [
        (
            opmux.scaled_linear,
            (meta(16, 64, dtype=torch.int8), meta(16, 64, dtype=torch.int8), SCALES, SCALES, None),
            {"out_dtype": torch.bfloat16},
            "x is int8, takes float8_e4m3fn, float8_e5m2",
        ),
        (
            opmux.scaled_linear,
            (CODES, CODES[:12], SCALES, SCALES[:12], None),
            {"out_dtype": torch.bfloat16},
            "n = 12 is not a multiple of 8",
        ),
        (
            opmux.quantize,
            (meta(4, 256),),
            {"dtype": torch.float8_e4m3fnuz, "block": (128, 128)},
            "dtype is float8_e4m3fnuz, takes float8_e4m3fn, float8_e5m2, int8",
        ),
        (
            opmux.quantize,
            (meta(4, 8193),),
            {"dtype": FP8, "block": (1, -1)},
            "block = (1, -1) is not (1, 128) or (1, 32) or (128, 128) or (-1, -1), and k = 8193 is more than 8192",
        ),
        (
            opmux.rms_norm_backward,
            (meta(4, 8193), meta(4, 8193), meta(8193)),
            {},
            "hidden = 8193 is more than 8192",
        ),
        (
            opmux.gelu_mul_backward,
            (meta(4, 16),) * 3,
            {},
            "approximate = 'none' is not 'tanh'",
        ),
    ],
)
def test_what_it_refuses_of_codes_and_gradients_has_a_reason(op, tensors, options, reason) -> None:
    found = judged(op, *tensors, **options)
    assert (found.status, found.reason) == ("rejected", reason)


def test_neither_planning_nor_recording_imports_the_compiler() -> None:
    program = (
        "import sys, torch, opmux\n"
        "from opmux.plugin import takers\n"
        "from opmux_cutile.prebuilding import kernels_of\n"
        "x = torch.empty(4, 64, device='meta')\n"
        "(taker,) = takers(opmux.rms_norm, x, x[0], arch='sm_90', backend='cutile')\n"
        "assert kernels_of(taker)[0].source('sm_90').text\n"
        "assert 'cuda.tile' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_float_codes_need_an_arch_for_which_cuda_tile_has_them() -> None:
    new, caches = meta(4, 2, 64), [meta(3, 16, 2, 64, dtype=FP8) for _ in range(2)]
    slots = meta(4, dtype=torch.int64)
    found = judged(opmux.write_kv_cache, new, new, *caches, slots, arch="sm_89")
    assert (found.status, found.reason) == ("rejected", "k_cache is float8_e4m3fn, which CUDA Tile has from sm_90 on")
    assert judged(opmux.write_kv_cache, new, new, *caches, slots, arch="sm_90").status == "chosen"
    for op, tensors in ((opmux.quantize, (meta(4, 256),)), (opmux.rms_norm_quantize, (meta(4, 256), meta(256)))):
        found = judged(op, *tensors, arch="sm_89", dtype=FP8)
        assert (found.status, found.reason) == ("rejected", "dtype is float8_e4m3fn, which CUDA Tile has from sm_90 on")
        assert judged(op, *tensors, arch="sm_89", dtype=torch.int8).status == "chosen"
