"""Kernels from assembly, by the assembler that Triton's wheel brings: no other toolchain is needed."""

import functools
import tempfile
import warnings
from pathlib import Path
from typing import Any

from opmux_emulator import Program

TEMPLATE = """
.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
.text
.globl {name}
.p2align 8
.type {name},@function
{name}:
{body}
  s_endpgm
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_group_segment_fixed_size {lds}
  .amdhsa_private_segment_fixed_size {scratch}
  .amdhsa_kernarg_size {kernarg}
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_system_sgpr_workgroup_id_y {ids}
  .amdhsa_system_sgpr_workgroup_id_z {ids}
  .amdhsa_system_vgpr_workitem_id 2
  .amdhsa_next_free_vgpr {vgprs}
  .amdhsa_next_free_sgpr 100
  .amdhsa_accum_offset {accum}
  .amdhsa_float_denorm_mode_32 {denormals}
  .amdhsa_float_denorm_mode_16_64 3
  .amdhsa_dx10_clamp 1
  .amdhsa_ieee_mode 1
{flat}
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: {kernarg}
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: {scratch}
    .kernarg_segment_align: 8
    .wavefront_size: 64
    .sgpr_count: 100
    .vgpr_count: {vgprs}
    .max_flat_workgroup_size: 1024
    .args:
{args}
...
.end_amdgpu_metadata
"""


@functools.cache
def assemble(body: str, arch: str = "gfx942", **options: Any) -> Program:
    """A kernel of the name ``k``; s[0:1] is its kernarg segment with so many pointers, s2 to s4 the workgroup's id."""
    return Program(assemble_bytes(body, arch, **options))


def assemble_bytes(
    body: str,
    arch: str = "gfx942",
    *,
    arguments: int = 4,
    lds: int = 0,
    scratch: int = 0,
    vgprs: int = 128,
    accum: int = 64,
    denormals: int = 3,
    name: str = "k",
) -> bytes:
    """The code object of :func:`assemble`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from triton._C.libtriton import amd
        from triton.backends.amd.compiler import assemble_amdgcn

        args = "\n".join(
            f"      - {{.address_space: global, .offset: {8 * k}, .size: 8, .value_kind: global_buffer, .name: p{k}}}"
            for k in range(arguments)
        )
        text = TEMPLATE.format(
            arch=arch, body=body, lds=lds, scratch=scratch, kernarg=8 * arguments, vgprs=vgprs, accum=accum, ids=1,
            name=name, args=args, denormals=denormals, flat="",
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            source, linked = Path(folder, "k.o"), Path(folder, "k.hsaco")
            source.write_bytes(assemble_amdgcn(text, arch, ""))
            amd.link_hsaco(str(source), str(linked))
            return linked.read_bytes()
