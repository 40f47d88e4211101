"""Every tile of the norms: built from CK's own templates, its machine code checked, run on the emulator."""

import functools
import itertools

import msgpack
import pytest
import torch

import opmux
from opmux_ck.building.instances import source_of
from opmux_ck.norms import targets
from opmux_ck.norms.configs import TILES, NormConfig
from opmux_ck.norms.instances import Norm
from opmux_ck.norms.targets import SHORT
from opmux_emulator.codeobject.elf import read_elf
from opmux_emulator.jit_launches import on
from opmux_jit import machine_code

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = ((BF16, BF16), (FP16, FP16), (BF16, FP32))
Case = tuple[str, NormConfig, tuple[torch.dtype, torch.dtype]]


def instance_of(case: Case) -> Norm:
    """The instance of an op, a tile, and the dtypes of x and the weight."""
    op, config, (x, weight) = case
    return Norm(op, SHORT[x], SHORT[weight], config)


OTHERS = (
    NormConfig(2, 128, 4, vector=4),
    NormConfig(1, 256, 2, pads=False),
    NormConfig(1, 256, 1, pads=False, two_passes=True),
)
CASES = [("rms_norm", tile, pair) for tile, pair in itertools.product(TILES, DTYPES[:2])]
CASES += [("rms_norm", tile, DTYPES[2]) for tile in (TILES[0], TILES[2], TILES[-1])]
CASES += [("rms_norm", tile, DTYPES[0]) for tile in OTHERS]
CASES += [("layer_norm", tile, pair) for tile, pair in zip(TILES, DTYPES * 2, strict=True)]
CASES += [("add_rms_norm", tile, pair) for tile, pair in zip(TILES[:-1], (DTYPES * 2)[:-1], strict=True)]
EACH = pytest.mark.parametrize("case", CASES, ids=[instance_of(case).name for case in CASES])


@functools.cache
def code_of(case: Case) -> bytes:
    """The code object of an instance."""
    source, compiler = source_of(instance_of(case), "gfx942")
    return machine_code(source, compiler.name).code


@EACH
def test_its_machine_code(case) -> None:
    """No register is spilled, no scratch memory used, and a workgroup of so many threads fits."""
    (note,) = (data for owner, _, data in read_elf(code_of(case)).notes if owner == "AMDGPU")
    (kernel,) = msgpack.unpackb(note)["amdhsa.kernels"]
    threads = instance_of(case).threads
    assert (kernel[".vgpr_spill_count"], kernel[".sgpr_spill_count"]) == (0, 0)
    assert kernel[".private_segment_fixed_size"] == 0
    assert kernel[".max_flat_workgroup_size"] == threads
    assert kernel[".vgpr_count"] <= 512 // max(threads // 256, 1)
    sizes = [8 if letter == "p" else 4 for letter in instance_of(case).signature]
    assert [argument[".size"] for argument in kernel[".args"]] == sizes


@EACH
def test_its_results(case) -> None:
    """Rows that fill the tile, that end in it where it pads, and longer ones where it reads twice.

    The last workgroup has rows to spare, and x has a stride of its own.
    """
    op, config, (dtype, gain) = case
    lengths = [config.columns]
    lengths += [config.columns - 8, 8] if config.pads else []
    lengths += [2 * config.columns + 8 * config.pads] if config.two_passes else []
    for columns in lengths:
        rows = 2 * config.rows + 1
        x, residual = (torch.randn(rows, columns + 16).to(dtype)[:, :columns] for _ in range(2))
        weight, bias = (torch.randn(columns).to(gain) for _ in range(2))
        tensors = {"rms_norm": (x, weight), "add_rms_norm": (x, residual, weight), "layer_norm": (x, weight, bias)}[op]
        options = {} if op == "layer_norm" else {"weight_offset": 0.0}
        with on("gfx942"):
            found = getattr(targets, op)(*tensors, eps=1e-5, config=config, **options)
        expected = getattr(opmux, op)(*tensors, eps=1e-5, backend="reference", **options)
        rtol = 2**-7 if dtype is BF16 else 2**-10
        torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-3 if op == "layer_norm" else 1e-5)
