"""Kernels as the text of an assembly source, with the descriptors and metadata that a loader reads.

LLVM's AMDGPUUsage, "Code Object V3 and Above", has both formats.
"""

from collections.abc import Sequence

from opmux_asm.writer.kernel import SIZES, Argument, Kernel

HEADER = """\
// {family} for {arch}, written by opmux_asm {version}. Read it from the top: .set gives registers their names.
.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
.amdhsa_code_object_version 5
"""
BODY = """
// {about}
// Arguments: {arguments}
.text
.globl {name}
.p2align 8
.type {name},@function
{name}:
{code}
  s_endpgm
.{name}_end:
.size {name}, .{name}_end - {name}

.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_group_segment_fixed_size {lds}
  .amdhsa_kernarg_size {kernarg}
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_system_sgpr_workgroup_id_y {id_y}
  .amdhsa_system_sgpr_workgroup_id_z {id_z}
  .amdhsa_system_vgpr_workitem_id 0
  .amdhsa_ieee_mode 0
  .amdhsa_float_denorm_mode_32 3
  .amdhsa_next_free_vgpr {registers}
  .amdhsa_accum_offset {accumulation}
  .amdhsa_next_free_sgpr {scalars}
.end_amdhsa_kernel
"""
METADATA = """
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--{arch}
amdhsa.kernels:
{kernels}
...
.end_amdgpu_metadata
"""
KERNEL = """\
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: {kernarg}
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: {scalars}
    .vgpr_count: {registers}
    .agpr_count: {accumulators}
    .max_flat_workgroup_size: {threads}
    .args:
{arguments}"""


def registers_of(kernel: Kernel) -> tuple[int, int, int]:
    """Vector registers in all, how many come before the accumulation registers, and scalar registers."""
    vectors = -(-max(kernel.files["v"].most, 1) // 4) * 4
    return vectors + kernel.files["a"].most, vectors, kernel.files["s"].most


def facts_of(kernel: Kernel) -> dict[str, object]:
    """What the templates name."""
    registers, accumulation, scalars = registers_of(kernel)
    return {
        "name": kernel.name, "lds": kernel.lds, "kernarg": kernel.kernarg_bytes, "registers": registers,
        "accumulation": accumulation, "accumulators": kernel.files["a"].most, "scalars": scalars + 6,
        "threads": kernel.threads,
    }  # fmt: skip


def body(kernel: Kernel) -> str:
    """A kernel's code and descriptor."""
    facts = facts_of(kernel) | {"scalars": kernel.files["s"].most}
    described = ", ".join(f"{a.name} {a.letter} at {at}" for a, at in kernel.layout)
    return BODY.format(
        **facts, about=kernel.about.replace("\n", "\n// "), arguments=described, id_y=int(kernel.dims > 1),
        id_z=int(kernel.dims > 2), code="\n".join(map(str, kernel.lines)),
    )  # fmt: skip


def argument(given: Argument, at: int) -> str:
    """An argument in the metadata."""
    kind = "global_buffer" if given.letter == "p" else "by_value"
    space = ", .address_space: global" if given.letter == "p" else ""
    size = SIZES[given.letter]
    return f"      - {{.name: {given.name}, .offset: {at}, .size: {size}, .value_kind: {kind}{space}}}"


def described(kernel: Kernel) -> str:
    """A kernel in the metadata."""
    arguments = "\n".join(argument(a, at) for a, at in kernel.layout)
    return KERNEL.format(**facts_of(kernel) | {"arguments": arguments})


def module(family: str, arch: str, kernels: Sequence[Kernel], version: str) -> str:
    """The source of a code object.

    Args:
        family: what its kernels have in common.
        arch: gfx942 or gfx950.
        kernels: with distinct names.
        version: of the writer.
    """
    text = HEADER.format(family=family, arch=arch, version=version) + "".join(map(body, kernels))
    return text + METADATA.format(arch=arch, kernels="\n".join(map(described, kernels)))
