"""Running a kernel over a grid."""

import ctypes
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from opmux_emulator.codeobject.program import IMAGE_BASE, Kernel, Program
from opmux_emulator.errors import JudgedError, LaunchError
from opmux_emulator.isa.decode import Instruction, columns
from opmux_emulator.isa.matrix import shape_of
from opmux_emulator.isa.opcodes import ARCHS
from opmux_emulator.native import library as native
from opmux_emulator.running.findings import judgement_of
from opmux_emulator.running.kernarg import Value, pack
from opmux_emulator.running.memory import Memory
from opmux_emulator.running.report import RULES, Counts, Report
from opmux_emulator.schedule.latencies import Latencies
from opmux_emulator.schedule.trace import KINDS, Trace

SCRATCH_APERTURE = 1 << 46
LIMIT = 50_000_000
"""Instructions that one wave may execute before it counts as endless."""
MAX_FINDINGS = 256


def launch(
    program: Program,
    kernel: str | None,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[Value] | bytes = (),
    *,
    memory: Memory | None = None,
    dynamic_lds: int = 0,
    ignore: Iterable[str] = (),
    limit: int = LIMIT,
    check: bool = True,
    late: bool = False,
    order: Literal["forward", "backward"] = "forward",
    turn: int = 0,
    model: bool | Latencies = False,
) -> Report:
    """Run a kernel on the CPU and judge it.

    Args:
        program: the code object.
        kernel: which of its kernels; None for the only one.
        grid: workgroups in x, y, z; missing ones are 1.
        block: threads of a workgroup in x, y, z.
        arguments: explicit arguments in order (see :func:`opmux_emulator.running.kernarg.pack`), or the bytes of the
            whole kernarg segment.
        memory: what the kernel may access beyond arrays among its arguments.
        dynamic_lds: bytes of LDS beyond those that the descriptor says.
        ignore: rules that are not applied, by name.
        limit: instructions that a wave may execute.
        check: raise where a rule is broken.
        late: let loads arrive only when a wait asks for them; until then their registers hold a recognisable NaN. The
            rules do not depend on it, the results of a kernel that waits too little do.
        order: in which order the waves of a workgroup take their turns.
        turn: instructions in a turn; 0 lets a wave run until it waits for others.
        model: also model the schedule of a SIMD, from what the first workgroup executes (``Report.schedule``), with
            latencies other than the usual ones if they are given.

    Returns:
        Judgements and counts.

    Raises:
        LaunchError: a grid, workgroup or arguments that do not fit the kernel.
        JudgedError: a rule is broken, and ``check`` holds; or an instruction cannot be executed.
    """
    chosen = program.kernel(kernel)
    grid, block = sizes(chosen, "grid", grid), sizes(chosen, "block", block)
    threads = block[0] * block[1] * block[2]
    largest = chosen.metadata.max_workgroup if chosen.metadata else 1024
    if threads > largest:
        raise LaunchError(f"{chosen.name}: `block`: expected at most {largest} threads, got {threads}")
    unknown = [rule for rule in ignore if rule not in RULES]
    if unknown:
        raise LaunchError(f"`ignore`: no rule {unknown[0]!r}; the rules are {', '.join(RULES)}")
    lds = chosen.descriptor.lds + dynamic_lds
    most = 163840 if program.arch == "gfx950" else 65536
    if lds > most:
        raise LaunchError(f"{chosen.name}: `dynamic_lds`: {program.arch} has {most} bytes of LDS, got {lds}")
    memory = memory or Memory()
    if isinstance(arguments, bytes):
        if chosen.kernarg_size and len(arguments) != chosen.kernarg_size:
            raise LaunchError(
                f"{chosen.name}: its kernarg segment has {chosen.kernarg_size} bytes, got {len(arguments)}"
            )
        segment = arguments
    else:
        segment = pack(chosen, arguments, grid, block, memory)
    if order not in ("forward", "backward"):
        raise LaunchError(f"`order`: expected forward or backward, got {order!r}")
    if turn < 0:
        raise LaunchError(f"`turn`: expected a number of instructions, got {turn}")
    schedule = {"late": late, "backwards": order == "backward", "quantum": turn}
    return run(program, chosen, grid, block, segment, memory, lds, set(ignore), limit, check, schedule, model)


def sizes(kernel: Kernel, name: str, given: Sequence[int]) -> tuple[int, int, int]:
    """Three positive numbers."""
    whole = (*(int(n) for n in given), 1, 1, 1)[:3]
    if len(given) > 3 or min(whole) < 1:
        raise LaunchError(f"{kernel.name}: `{name}`: expected up to three positive numbers, got {tuple(given)}")
    return whole[0], whole[1], whole[2]


def user_registers(kernel: Kernel, segment: int, packet: int, data: bytes) -> list[int]:
    """The scalar registers that the launch fills (LLVM's AMDGPUUsage, "Initial Kernel Execution State")."""
    properties, words = kernel.descriptor.properties, []
    if properties & 1:  # a descriptor of the private segment: swizzled by the interpreter itself
        words += [0, SCRATCH_APERTURE >> 32, 0xFFFFFFFF, 0x00E00000]
    for bit, value in ((1, packet), (2, 0), (3, segment), (4, 0), (5, 0)):
        if properties >> bit & 1:
            words += [value & 0xFFFFFFFF, value >> 32]
    if properties >> 6 & 1:
        words.append(kernel.descriptor.scratch)
    preload = kernel.descriptor.preload
    words += np.frombuffer(data.ljust(4 * preload, b"\0"), "<u4", preload).tolist()
    return words


def encode(program: Program, kernel: Kernel) -> tuple[np.ndarray, np.ndarray, list[Instruction], int]:
    """The instructions as the interpreter reads them, and which one lies at each dword."""
    base, code = program.code
    operations = native.operations()
    accum = kernel.descriptor.accum_offset
    index = {instruction.pc: k for k, instruction in enumerate(code)}
    at = np.full((code[-1].pc + code[-1].size) // 4 if code else 0, -1, np.int32)
    rows = []
    for k, instruction in enumerate(code):
        at[instruction.pc // 4] = k
        op = -1
        if not instruction.error and instruction.name:
            matrix = shape_of(instruction.name, instruction.cbsz, instruction.blgp)
            op = operations["mfma"] if matrix else operations.get(instruction.name, -1)
        target = index.get(instruction.target, -1) if instruction.target >= 0 else -1
        rows.append(columns(instruction, op, target, accum))
    table = np.array(rows, np.int64).astype(np.uint32).view(np.int32).reshape(len(rows), -1)
    return np.ascontiguousarray(table), at, code, base


def run(
    program: Program,
    kernel: Kernel,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    segment: bytes,
    memory: Memory,
    lds: int,
    ignored: set[str],
    limit: int,
    check: bool,
    schedule: Mapping[str, int],
    model: bool | Latencies,
) -> Report:
    """Lay out memory, run, and read what the interpreter recorded."""
    descriptor = kernel.descriptor
    table, at, code, _ = encode(program, kernel)
    image, space = np.frombuffer(program.image_at(IMAGE_BASE), np.uint8).copy(), Memory()
    space.blocks, space._next = list(memory.blocks), memory._next
    kernarg = np.frombuffer(segment, np.uint8).copy() if segment else np.zeros(4, np.uint8)
    segment_at = space.add(kernarg, "kernarg segment", writable=False)
    packet_at = space.add(dispatch_packet(grid, block, kernel), "dispatch packet", writable=False)
    settings, user = prepare(
        program, kernel, grid, block, segment, (segment_at, packet_at, IMAGE_BASE), lds, ignored, limit
    )
    for name, value in schedule.items():
        setattr(settings, name, value)
    latencies = model if isinstance(model, Latencies) else Latencies()
    trace = Trace(settings.waves) if model else None
    if trace:
        trace.attach(settings)
    blocks = [native.Allocation(IMAGE_BASE, image.size, image.ctypes.data, None, None, None, 0, 0)]
    for b in space.blocks:
        b.forget_accesses()
        unwritten = None if b.unwritten is None else b.unwritten.ctypes.data
        blocks.append(
            native.Allocation(
                b.base,
                b.data.size,
                b.data.ctypes.data,
                unwritten,
                b.writer.ctypes.data,
                b.reader.ctypes.data,
                b.writable,
            )
        )
    allocations = (native.Allocation * len(blocks))(*blocks)
    findings, counts, repeats = (native.Finding * MAX_FINDINGS)(), native.Counts(), ctypes.c_uint64()
    started = time.perf_counter()
    found = native.library().emulator_run(
        ctypes.byref(settings), table.ctypes.data_as(ctypes.c_void_p), len(code), at.ctypes.data_as(ctypes.c_void_p),
        len(at), user.ctypes.data_as(ctypes.c_void_p), allocations, len(blocks), findings, ctypes.byref(repeats),
        ctypes.byref(counts),
    )  # fmt: skip
    seconds = time.perf_counter() - started
    judgements = tuple(judgement_of(findings[k], kernel, code, grid, space.describe, descriptor) for k in range(found))
    counted = counts_of(counts, kernel, program.arch, block[0] * block[1] * block[2], lds)
    report = Report(
        kernel.name, program.arch, judgements, repeats.value, counted, seconds,
        trace.schedule(table, code, counted.waves_per_simd, latencies) if trace else None,
    )  # fmt: skip
    fatal = [j for j in judgements if j.rule in ("unsupported", "endless")]
    if fatal or (check and judgements):
        shown = "\n".join(str(j) for j in (fatal or judgements)[:8])
        more = f"\n{len(judgements)} judgements in all" if len(judgements) > 8 else ""
        raise JudgedError(f"{shown}{more}", judgements)
    return report


def prepare(
    program: Program,
    kernel: Kernel,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    segment: bytes,
    addresses: tuple[int, int, int],
    lds: int,
    ignored: set[str],
    limit: int,
) -> tuple[native.Launch, np.ndarray]:
    """How the interpreter is to run a kernel, and the scalar registers that the launch fills.

    Args:
        program: the code object.
        kernel: one of its kernels.
        grid: workgroups in x, y, z.
        block: threads of a workgroup in x, y, z.
        segment: the kernarg segment.
        addresses: device addresses of the kernarg segment, the dispatch packet and the code object's image.
        lds: bytes of LDS, dynamic ones included.
        ignored: rules that are not applied.
        limit: instructions that a wave may execute.

    Raises:
        LaunchError: the descriptor asks for more user registers than there are.
    """
    descriptor, (base, code) = kernel.descriptor, program.code
    entry = next((k for k, i in enumerate(code) if i.pc == kernel.entry - base), 0)
    user = np.array([*user_registers(kernel, addresses[0], addresses[1], segment), *[0] * 16], np.uint32)
    count = max(descriptor.user_sgprs, len(user) - 16)
    if count > 16:
        raise LaunchError(f"{kernel.name}: its descriptor asks for {count} user registers; there are 16")
    threads = block[0] * block[1] * block[2]
    settings = native.Launch(
        waves=(threads + 63) // 64, lds_size=lds, arch=ARCHS.index(program.arch), vgprs=descriptor.vgprs,
        sgprs=descriptor.sgprs, mode=descriptor.mode, workitem_id=descriptor.workitem_ids, limit=limit,
        scratch_per_lane=descriptor.scratch, code_base=addresses[2] + base, user_sgprs=count, packed_ids=1,
        enabled=sum(1 << k for k, rule in enumerate(RULES) if rule not in ignored), max_findings=MAX_FINDINGS,
        group_info=descriptor.has_workgroup_info, accum_offset=descriptor.accum_offset, entry=entry,
        private_offset=descriptor.has_private_offset and program.arch == "gfx90a",
    )  # fmt: skip
    settings.groups[:], settings.workgroup[:], settings.group_id[:] = grid, block, descriptor.workgroup_ids
    return settings, user


def dispatch_packet(grid: Sequence[int], block: Sequence[int], kernel: Kernel) -> np.ndarray:
    """The AQL packet that a kernel may look at for its sizes (HSA, section 2.9.6)."""
    packet = np.zeros(16, np.uint32)
    packet[1] = block[0] | block[1] << 16
    packet[2] = block[2]
    packet[3:6] = [g * b for g, b in zip(grid, block, strict=True)]
    packet[6], packet[7] = kernel.descriptor.scratch, kernel.descriptor.lds
    return packet.view(np.uint8)


def counts_of(raw: native.Counts, kernel: Kernel, arch: str, threads: int, lds: int) -> Counts:
    """The interpreter's counts in words."""
    names = native.operations()
    return Counts(
        {kind: raw.instructions[k] for k, kind in enumerate(KINDS)},
        {name: raw.opcodes[k] for name, k in names.items() if raw.opcodes[k]},
        raw.flops, raw.lds_accesses, raw.lds_cycles, raw.lds_conflict_cycles, raw.vmem_requests, raw.vmem_bytes,
        raw.vmem_lines, raw.barriers, occupancy(kernel.descriptor.vgprs, lds, threads, arch),
    )  # fmt: skip


def occupancy(vgprs: int, lds: int, threads: int, arch: str) -> int:
    """Waves that fit on one SIMD: 512 registers a lane, 64 KiB of LDS a CU (160 KiB on gfx950), eight waves at most."""
    waves = (threads + 63) // 64
    by_registers = min(8, 512 // max(vgprs, 1))
    groups = (163840 if arch == "gfx950" else 65536) // lds if lds else 32
    return min(by_registers, max(1, groups * waves // 4))
