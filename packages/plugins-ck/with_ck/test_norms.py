"""Every tile of the norms: built from CK's own templates, its machine code checked, run on the emulator."""

import functools
import itertools
import logging

import msgpack
import pytest
import torch

import opmux
from opmux_ck.building.instances import source_of
from opmux_ck.norms.configs import TILES, NormConfig
from opmux_ck.norms.instances import RmsNorm
from opmux_ck.norms.targets import SHORT, rms_norm
from opmux_emulator.codeobject.elf import read_elf
from opmux_emulator.jit_launches import on
from opmux_jit import machine_code

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = ((BF16, BF16), (FP16, FP16), (BF16, FP32))
OTHERS = (
    NormConfig(2, 128, 4, vector=4),
    NormConfig(1, 256, 2, pads=False),
    NormConfig(1, 256, 1, pads=False, two_passes=True),
)
CASES = [*itertools.product(TILES, DTYPES[:2]), *((tile, DTYPES[2]) for tile in (TILES[0], TILES[2], TILES[-1]))]
CASES += [(tile, DTYPES[0]) for tile in OTHERS]
EACH = pytest.mark.parametrize(
    ("config", "dtypes"), CASES, ids=[RmsNorm(SHORT[d[0]], SHORT[d[1]], c).name for c, d in CASES]
)


@functools.cache
def code_of(config: NormConfig, dtypes: tuple[torch.dtype, torch.dtype]) -> bytes:
    """The code object of an instance."""
    source, compiler = source_of(RmsNorm(SHORT[dtypes[0]], SHORT[dtypes[1]], config), "gfx942")
    entry = machine_code(source, compiler.name)
    logging.getLogger(__name__).info("%s: %s, %.1f s", source.name, entry.compiler, entry.seconds)
    return entry.code


@EACH
def test_its_machine_code(config, dtypes) -> None:
    """No register is spilled, no scratch memory used, and a workgroup of so many threads fits."""
    (note,) = (data for owner, _, data in read_elf(code_of(config, dtypes)).notes if owner == "AMDGPU")
    (kernel,) = msgpack.unpackb(note)["amdhsa.kernels"]
    threads = config.rows * config.threads
    assert (kernel[".vgpr_spill_count"], kernel[".sgpr_spill_count"]) == (0, 0)
    assert kernel[".private_segment_fixed_size"] == 0
    assert kernel[".max_flat_workgroup_size"] == threads
    assert kernel[".vgpr_count"] <= 512 // max(threads // 256, 1)
    assert [argument[".size"] for argument in kernel[".args"]] == [8, 8, 8, 4, 4, 4, 4, 4]


@EACH
def test_its_results(config, dtypes) -> None:
    """Rows that fill the tile, rows that end in it where it pads, longer ones where it reads twice; a last block that
    has rows to spare; rows with a stride of their own."""
    code_of(config, dtypes)
    lengths = [config.columns]
    lengths += [config.columns - 8, 8] if config.pads else []
    lengths += [2 * config.columns + 8 * config.pads] if config.two_passes else []
    for columns in lengths:
        rows = 2 * config.rows + 1
        x = torch.randn(rows, columns + 16).to(dtypes[0])[:, :columns]
        weight = torch.randn(columns).to(dtypes[1])
        with on("gfx942"):
            found = rms_norm(x, weight, eps=1e-5, weight_offset=0.0, config=config)
        expected = opmux.rms_norm(x, weight, eps=1e-5, backend="reference")
        rtol = 2**-7 if dtypes[0] is BF16 else 2**-10
        torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-5)
