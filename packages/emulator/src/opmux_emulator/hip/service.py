"""What the HIP library asks about code objects: run by it as a process, which answers over a socket (descriptor 3).

A request is its number, its size and its bytes. An answer is a HIP error code, its size, and bytes: what was asked for,
or a message where the code is not 0. ``hip/service.cpp`` is the other end.
"""

import ctypes
import importlib
import json
import os
import socket
import struct
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opmux_emulator.codeobject.program import Kernel, Program
from opmux_emulator.errors import CodeObjectError, EmulatorError
from opmux_emulator.native import build
from opmux_emulator.native import library as native
from opmux_emulator.native.build import BuildError
from opmux_emulator.running.findings import judgement_of
from opmux_emulator.running.kernarg import fill_hidden
from opmux_emulator.running.launch import LIMIT, counts_of, dispatch_packet, encode, prepare
from opmux_emulator.running.memory import describe
from opmux_emulator.running.report import RULES, Report

INVALID_VALUE, NOT_INITIALISED, INVALID_IMAGE, NOT_FOUND, ILLEGAL_ADDRESS, TIME_OUT, LAUNCH_FAILURE, NOT_SUPPORTED = (
    1, 3, 200, 500, 700, 702, 719, 801,
)  # fmt: skip
CODES = {"out-of-bounds": ILLEGAL_ADDRESS, "endless": TIME_OUT, "unsupported": NOT_SUPPORTED}
"""The HIP error that stands for a broken rule; any other is ``hipErrorLaunchFailure``."""
SHOWN = 4
"""Judgements in an error's text; the report has all."""


class Refused(Exception):
    """A request that is answered by an error code and a message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Fields:
    """Reads a request's fields in order."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def blob(self) -> bytes:
        (size,) = self.take("I")
        self.at += size
        return self.data[self.at - size : self.at]

    def text(self) -> str:
        return self.blob().decode("utf-8", "replace")


def blob(data: bytes) -> bytes:
    """Bytes with their size before them."""
    return struct.pack("<I", len(data)) + data


@dataclass(frozen=True)
class Options:
    """What ``OPMUX_HIP`` says of launches: rules left out, instructions that a wave may execute, a file for reports."""

    ignored: frozenset[str] = frozenset()
    limit: int = LIMIT
    report: str = ""

    @classmethod
    def read(cls, text: str) -> "Options":
        named = dict(word.split("=", 1) for word in text.split() if "=" in word)
        ignored = frozenset(filter(None, named.get("ignore", "").split(",")))
        strangers = sorted(ignored - set(RULES))
        if strangers:
            raise Refused(INVALID_VALUE, f"`ignore`: no rule {strangers[0]!r}; the rules are {', '.join(RULES)}")
        limit = named.get("limit", str(LIMIT))
        if not limit.isdecimal():
            raise Refused(INVALID_VALUE, f"`limit`: expected a number of instructions, got {limit!r}")
        return cls(ignored, int(limit), named.get("report", ""))


class Service:
    """Keeps the code objects that were loaded, and answers."""

    def __init__(self) -> None:
        self.programs: dict[int, Program] = {}
        self.kernels: dict[int, tuple[Program, Kernel]] = {}
        self.loaded = self.asked = 0

    def answer(self, kind: int, data: bytes) -> bytes:
        """The answer to a request.

        Raises:
            Refused: it cannot be done; the message says why.
        """
        asked: dict[int, Callable[[Fields], bytes]] = {
            1: self.load, 2: self.kernel, 3: self.tables, 4: self.prepare, 5: self.judge, 6: self.unload,
            7: self.extract,
        }  # fmt: skip
        try:
            return asked[kind](Fields(data))
        except CodeObjectError as error:
            raise Refused(INVALID_IMAGE, str(error)) from None
        except EmulatorError as error:
            raise Refused(INVALID_VALUE, str(error)) from None

    def load(self, fields: Fields) -> bytes:
        """A code object: its arch, variables and kernels by name, relocations, and the image in memory."""
        program = Program(fields.blob())
        names = list(program.kernels)  # read now, so that a damaged one is refused when it is loaded
        self.loaded += 1
        self.programs[self.loaded] = program
        out = [struct.pack("<I", self.loaded), blob(program.arch.encode())]
        symbols = [s for s in program.elf.symbols if s.name not in names]
        out.append(struct.pack("<I", len(symbols)))
        out += [blob(s.name.encode()) + struct.pack("<QQ", s.value, s.size) for s in symbols]
        out.append(struct.pack("<I", len(program.elf.relocations)))
        out += [struct.pack("<QQ", r.offset, r.addend & (1 << 64) - 1) for r in program.elf.relocations]
        out.append(blob(bytes(program.image)))
        return b"".join(out)

    def unload(self, fields: Fields) -> bytes:
        gone = self.programs.pop(fields.take("I")[0], None)
        self.kernels = {number: known for number, known in self.kernels.items() if known[0] is not gone}
        return b""

    def kernel(self, fields: Fields) -> bytes:
        """A kernel: registers, LDS, limits, arguments."""
        program = self.programs[fields.take("I")[0]]
        try:
            kernel = program.kernel(fields.text())
        except CodeObjectError as error:
            raise Refused(NOT_FOUND, str(error)) from None
        self.asked += 1
        self.kernels[self.asked] = (program, kernel)
        arguments = [a for a in kernel.metadata.arguments if not a.is_hidden] if kernel.metadata else []
        descriptor, metadata = kernel.descriptor, kernel.metadata
        out = struct.pack(
            "<10I", self.asked, descriptor.vgprs, descriptor.accum_offset, descriptor.scratch,
            descriptor.lds, metadata.max_workgroup if metadata else 1024, kernel.kernarg_size,
            max((a.offset + a.size for a in arguments), default=0), bool(metadata and metadata.arguments),
            len(arguments),
        )  # fmt: skip
        return out + b"".join(struct.pack("<II", a.offset, a.size) for a in arguments)

    def tables(self, fields: Fields) -> bytes:
        """A kernel's instructions as the interpreter reads them."""
        table, at, _, _ = encode(*self.kernels[fields.take("I")[0]])
        return blob(table.tobytes()) + blob(at.tobytes())

    def prepare(self, fields: Fields) -> bytes:
        """What a launch starts with: settings, scalar registers, the whole kernarg segment, the dispatch packet."""
        program, kernel, grid, block, lds = self.launched(fields)
        image_at, segment_at, packet_at = fields.take("QQQ")
        options = Options.read(fields.text())
        segment = bytearray(fields.blob())
        segment.extend(bytes(max(0, kernel.kernarg_size - len(segment))))
        fill_hidden(kernel, segment, grid, block, lds)
        settings, user = prepare(
            program, kernel, grid, block, bytes(segment), (segment_at, packet_at, image_at),
            kernel.descriptor.lds + lds, set(options.ignored), options.limit,
        )  # fmt: skip
        packet = dispatch_packet(grid, block, kernel)
        return b"".join(map(blob, (bytes(settings), user.tobytes(), bytes(segment), packet.tobytes())))

    def launched(self, fields: Fields) -> tuple[Program, Kernel, tuple[int, int, int], tuple[int, int, int], int]:
        number, *sizes, lds = fields.take("I3I3II")
        program, kernel = self.kernels[number]
        return program, kernel, (sizes[0], sizes[1], sizes[2]), (sizes[3], sizes[4], sizes[5]), lds

    def judge(self, fields: Fields) -> bytes:
        """Judgements in words, and the report as JSON."""
        program, kernel, grid, block, lds = self.launched(fields)
        (repeats,) = fields.take("Q")
        counts = native.Counts.from_buffer_copy(fields.blob())
        raw, size = fields.blob(), ctypes.sizeof(native.Finding)
        findings = [native.Finding.from_buffer_copy(raw, k) for k in range(0, len(raw), size)]
        options = Options.read(fields.text())
        blocks = []
        for _ in range(fields.take("I")[0]):
            base, length = fields.take("QQ")
            blocks.append((base, length, fields.text()))
        _, code = program.code
        judgements = tuple(
            judgement_of(found, kernel, code, grid, lambda a: describe(a, blocks), kernel.descriptor)
            for found in findings
        )
        counted = counts_of(counts, kernel, program.arch, int(np.prod(block)), kernel.descriptor.lds + lds)
        report = Report(kernel.name, program.arch, judgements, repeats, counted, 0.0)
        written = json.dumps(asdict(report))
        if options.report:
            with Path(options.report).open("a", encoding="utf-8") as file:
                file.write(written + "\n")
        if not judgements:
            return blob(b"") + blob(written.encode())
        text = "\n".join(map(str, judgements[:SHOWN]))
        if len(judgements) > SHOWN:
            text += f"\n{len(judgements)} judgements in all"
        code_of = min((CODES.get(j.rule, LAUNCH_FAILURE) for j in judgements), key=severity)
        raise Answered(code_of, blob(text.encode()) + blob(written.encode()))

    def extract(self, fields: Fields) -> bytes:
        """A compressed bundle of clang's, unpacked: zlib's alone, since Python has no zstd before 3.14."""
        data = fields.blob()
        version, method = struct.unpack_from("<HH", data, 4)
        at = {1: 20, 2: 24, 3: 32}.get(version)
        if at is None:
            raise Refused(INVALID_IMAGE, f"a compressed bundle of version {version}; known are 1 to 3")
        if method > 1:
            raise Refused(
                INVALID_IMAGE, f"a bundle that is compressed by method {method}; known are 0 (zlib) and 1 (zstd)"
            )
        try:
            library: Any = zlib if method == 0 else importlib.import_module("compression.zstd")
        except ImportError:
            raise Refused(
                INVALID_IMAGE,
                "a bundle that is compressed with zstd: compile with --no-offload-compress, or name a Python of 3.14 "
                'or newer: OPMUX_HIP="... python=PATH"',
            ) from None
        try:
            return bytes(library.decompress(data[at:]))
        except Exception as error:  # each library has its own
            raise Refused(INVALID_IMAGE, f"a compressed bundle that cannot be unpacked: {error}") from None


class Answered(Refused):
    """An error code whose bytes are fields, not a message."""

    def __init__(self, code: int, data: bytes) -> None:
        super().__init__(code, "")
        self.data = data


def severity(code: int) -> int:
    """Lower is worse: what could not be executed at all, then addresses, then the other rules."""
    return (NOT_SUPPORTED, TIME_OUT, ILLEGAL_ADDRESS, LAUNCH_FAILURE).index(code)


def serve(connection: socket.socket) -> None:
    """Greet with the interpreter's path and this package's sources, then answer until the other end closes."""

    def send(code: int, data: bytes) -> None:
        connection.sendall(struct.pack("<iI", code, len(data)) + data)

    def receive(size: int) -> bytes:
        parts = []
        while size and (part := connection.recv(min(size, 1 << 20))):
            parts.append(part)
            size -= len(part)
        return b"".join(parts) if not size else b""

    try:
        send(0, blob(str(native.path_of_library()).encode()) + blob(build.sources(build.HIP).encode()))
    except BuildError as error:
        send(NOT_INITIALISED, blob(str(error).encode()))
        return
    service = Service()
    while head := receive(8):
        kind, size = struct.unpack("<II", head)
        try:
            send(0, service.answer(kind, receive(size)))
        except Answered as answer:
            send(answer.code, answer.data)
        except Refused as refused:
            send(refused.code, str(refused).encode())
        except Exception as error:  # a fault of this program: the caller's process goes on, and hears of it
            send(NOT_INITIALISED, f"the emulator's service failed: {error!r}".encode())


def main() -> None:
    """Serve the process that started this one."""
    connection = socket.socket(fileno=os.dup(3))
    connection.setblocking(True)
    os.close(3)
    serve(connection)


if __name__ == "__main__":
    main()
