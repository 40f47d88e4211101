"""Damaged, foreign and ill-fitting input: one clear error each."""

import contextlib
import random
import struct

import numpy as np
import pytest
from assembling import assemble
from mutants.kernels import calls_of, linked, source_of

from opmux_emulator import CodeObjectError, EmulatorError, JudgedError, LaunchError, Memory, Program, launch


@pytest.fixture
def data() -> bytes:
    import tempfile
    import warnings
    from pathlib import Path

    from assembling import TEMPLATE

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from triton._C.libtriton import amd
        from triton.backends.amd.compiler import assemble_amdgcn

        sizes = dict.fromkeys(("kernarg", "vgprs", "accum"), 8) | dict.fromkeys(("lds", "scratch"), 0)
        text = TEMPLATE.format(arch="gfx942", body="", ids=1, name="k", args="      []", denormals=3, flat="", **sizes)
        with tempfile.TemporaryDirectory() as folder:
            source, linked = Path(folder, "k.o"), Path(folder, "k.hsaco")
            source.write_bytes(assemble_amdgcn(text, "gfx942", ""))
            amd.link_hsaco(str(source), str(linked))
            return linked.read_bytes()


def test_no_elf_file() -> None:
    with pytest.raises(CodeObjectError, match=r"expected an ELF file, got one that begins with b'PK"):
        Program(b"PK\x03\x04" + bytes(100))


def test_every_truncation_is_one_error(data: bytes) -> None:
    assert Program(data).kernel().name == "k"
    for size in range(16, len(data) - 64, 97):
        with pytest.raises(CodeObjectError, match="truncated"):
            Program(data[:size]).kernel()


def test_another_machine(data: bytes) -> None:
    with pytest.raises(CodeObjectError, match=r"expected ELF machine 224 \(AMD GPU\), got 62"):
        Program(data[:18] + struct.pack("<H", 62) + data[20:])


def test_another_arch(data: bytes) -> None:
    with pytest.raises(CodeObjectError, match=r"its arch \(EF_AMDGPU_MACH 0x41\) is none of gfx90a, gfx942, gfx950"):
        Program(data[:48] + struct.pack("<I", 0x41) + data[52:])


def test_no_such_kernel() -> None:
    with pytest.raises(CodeObjectError, match="it has no kernel 'gemm'; it has k"):
        launch(assemble(""), "gemm", (1,), (64,))


def test_too_many_arguments() -> None:
    with pytest.raises(LaunchError, match="k: expected 4 arguments, got 5"):
        launch(assemble(""), "k", (1,), (64,), [0] * 5)


def test_an_argument_that_does_not_fit() -> None:
    with pytest.raises(LaunchError, match="k: argument `p0`: expected 8 bytes, got 4 bytes"):
        launch(assemble(""), "k", (1,), (64,), [np.float32(1)])


def test_a_kernarg_segment_of_the_wrong_size() -> None:
    with pytest.raises(LaunchError, match="k: its kernarg segment has 32 bytes, got 16"):
        launch(assemble(""), "k", (1,), (64,), bytes(16))


def test_sizes() -> None:
    with pytest.raises(LaunchError, match=r"k: `grid`: expected up to three positive numbers, got \(0,\)"):
        launch(assemble(""), "k", (0,), (64,))
    with pytest.raises(LaunchError, match="k: `block`: expected at most 1024 threads, got 2048"):
        launch(assemble(""), "k", (1,), (2048,))
    with pytest.raises(LaunchError, match="k: `dynamic_lds`: gfx942 has 65536 bytes of LDS, got 70000"):
        launch(assemble(""), "k", (1,), (64,), dynamic_lds=70000)


def test_an_unknown_rule() -> None:
    with pytest.raises(LaunchError, match="`ignore`: no rule 'races'; the rules are outstanding, "):
        launch(assemble(""), "k", (1,), (64,), ignore=["races"])


def test_an_array_with_gaps() -> None:
    with pytest.raises(LaunchError, match="memory p0: expected a contiguous array"):
        launch(assemble(""), "k", (1,), (64,), [np.zeros((4, 4), "f4")[:, ::2]])


def test_an_endless_loop_ends() -> None:
    with pytest.raises(JudgedError, match="k: endless: a wave executed 1001 instructions"):
        launch(assemble("again:\n  s_branch again\n"), "k", (1,), (64,), limit=1000)


def test_an_instruction_without_semantics() -> None:
    said = "unsupported: v_smfmac_f32_16x16x32_f16: sparse matrix instructions are not executed yet"
    with pytest.raises(JudgedError, match=said):
        launch(assemble("  v_smfmac_f32_16x16x32_f16 v[0:3], v[4:5], v[8:11], v12\n"), "k", (1,), (64,))


def test_an_unknown_opcode() -> None:
    """Where a wave reaches it; the word is of no instruction."""
    with pytest.raises(JudgedError, match=r"k: unsupported: gfx942 has no SOP2 instruction with opcode \d+ \(0x"):
        launch(assemble("  .long 0xaf800000\n"), "k", (1,), (64,))
    assert launch(assemble("  s_endpgm\n  .long 0xaf800000\n"), "k", (1,), (64,)).is_clean


def test_segments_beyond_any_size(data: bytes) -> None:
    """A damaged program header: its memory is not asked of the machine."""
    (headers,) = struct.unpack_from("<Q", data, 32)
    (size,) = struct.unpack_from("<H", data, 54)
    loads = [k for k in range(8) if struct.unpack_from("<I", data, headers + k * size)[0] == 1]
    at = headers + loads[-1] * size + 16  # p_vaddr
    with pytest.raises(CodeObjectError, match=r"its segments end at 0x[0-9a-f]+: expected at most 0x40000000 bytes"):
        Program(data[:at] + struct.pack("<Q", 1 << 60) + data[at + 8 :])


def test_an_argument_before_the_segment() -> None:
    """The note is damaged, not the kernel."""
    good = linked(source_of("gemm-gfx950"), "gfx950")
    assert Program(good).kernel().metadata is not None
    at = good.index(b".size\x08") + 6
    with pytest.raises(CodeObjectError, match=r"argument '' of gemm has offset 0 and size -1"):
        Program(good[: at - 1] + b"\xff" + good[at:])


@pytest.mark.parametrize("seed", range(24))
def test_damaged_code_objects_run_or_give_one_error_of_this_package(seed: int) -> None:
    """Bytes changed anywhere: header, descriptor, metadata, code. The process lives."""
    chance, call = random.Random(seed), calls_of("softmax-gfx942")[0]
    damaged = bytearray(linked(source_of("softmax-gfx942"), "gfx942"))
    for _ in range(chance.choice((1, 2, 8))):
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    memory = Memory()
    with contextlib.suppress(EmulatorError):
        program = Program(bytes(damaged))
        arguments, _ = call.place(memory)
        launch(
            program, None, call.grid, (call.threads,), arguments, memory=memory, dynamic_lds=call.lds, limit=5000
        )  # fmt: skip
