"""What the compiler makes of the kernels, without a GPU: arguments as the launcher gives them, no local memory."""

import pytest
import torch
from cubins import compiled, kernel, layout, meta

FP32 = torch.float32
ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120")


@pytest.mark.parametrize("arch", ARCHS)
def test_rows_are_read_and_written_in_whole_vectors(arch, tmp_path) -> None:
    wanted = kernel("rms_norm", meta(512, 5120), meta(5120), arch=arch)
    found = compiled(wanted, arch, tmp_path)
    assert found.parameters == layout(wanted.letters)
    assert found.opcodes["LDG.E.128"] == 10  # 5120 elements of x and of the weight, 8 for each of 128 threads
    assert found.opcodes["STG.E.128"] == 5
    assert (found.stack, found.count("LDL"), found.count("STL")) == (0, 0, 0)
    assert 0 < found.registers <= 255


@pytest.mark.parametrize(
    ("op", "tensors"),
    [
        ("rms_norm", (meta(7, 16384), meta(16384))),
        ("rms_norm", (meta(7, 4097), meta(4097))),
        ("rms_norm", (meta(7, 64), meta(64, dtype=FP32))),
        ("add_rms_norm", (meta(7, 16384), meta(7, 16384, dtype=FP32), meta(16384))),
        ("layer_norm", (meta(7, 16384), meta(16384), meta(16384))),
        ("layer_norm", (meta(7, 1000), meta(1000), None)),
        ("silu_and_mul", (meta(7, 22016),)),
        ("silu_mul", (meta(7, 77, dtype=FP32), meta(7, 77, dtype=FP32))),
    ],
    ids=[
        "longest",
        "odd",
        "short",
        "added, wide",
        "centred, longest",
        "centred, no bias",
        "gate",
        "odd gate",
    ],
)
def test_no_kernel_uses_local_memory(op, tensors, tmp_path) -> None:
    wanted = kernel(op, *tensors)
    found = compiled(wanted, "sm_90", tmp_path)
    assert found.parameters == layout(wanted.letters)
    assert (found.stack, found.count("LDL"), found.count("STL")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("arch", "rows", "instruction"),
    [
        ("sm_90", 4096, "HGMMA.64x256x16.F32.BF16"),
        ("sm_90", 512, "HGMMA.64x128x16.F32.BF16"),
        ("sm_90", 60, "HGMMA.64x64x16.F32.BF16"),
        ("sm_90", 1, "HMMA.16816.F32.BF16"),
        ("sm_100", 4096, "UTCHMMA"),
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
    assert (found.stack, found.count("LDL"), found.count("STL")) == (0, 0, 0)
