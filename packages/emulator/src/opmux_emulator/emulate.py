"""What ``opmux emulate`` does: arguments from words, a launch, the report as text or JSON."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from opmux_emulator.codeobject.program import Program
from opmux_emulator.errors import EmulatorError, LaunchError
from opmux_emulator.running.kernarg import Value
from opmux_emulator.running.launch import launch
from opmux_emulator.running.memory import Memory
from opmux_emulator.running.report import Report
from opmux_emulator.schedule.model import Schedule

DTYPES = {
    "i8": "i1", "u8": "u1", "i16": "i2", "u16": "u2", "i32": "i4", "u32": "u4", "i64": "i8", "u64": "u8",
    "f16": "f2", "f32": "f4", "f64": "f8", "bf16": "u2", "fp8": "u1",
}  # fmt: skip
ARRAY = re.compile(r"(in|out|zeros):(\w+)\[([\d,]+)\]$")
NUMBER = re.compile(r"(\w+)=(.+)$")


def run(
    file: Path,
    kernel: str | None,
    arch: str | None,
    grid: str,
    block: str,
    words: Sequence[str],
    lds: int,
    ignore: Sequence[str],
    limit: int,
    seed: int,
) -> Report:
    """Load, launch and judge.

    Raises:
        EmulatorError: a damaged file, another arch's, or arguments that do not fit.
    """
    program = Program.load(file)
    if arch is not None and arch != program.arch:
        raise LaunchError(f"{file}: expected code for {arch}, got code for {program.arch}")
    memory, random = Memory(), np.random.default_rng(seed)
    values = [value_of(word, k, memory, random) for k, word in enumerate(words)]
    return launch(
        program, kernel, numbers("grid", grid), numbers("block", block), values,
        memory=memory, dynamic_lds=lds, ignore=ignore, limit=limit, check=False,
        model=True,
    )  # fmt: skip


def numbers(name: str, text: str) -> list[int]:
    """``4,1,1`` as numbers."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise LaunchError(f"`--{name}`: expected numbers with commas between, got {text!r}") from None


def value_of(word: str, position: int, memory: Memory, random: np.random.Generator) -> Value:
    """One ``--arg``."""
    if word == "null":
        return None
    if word.startswith("file:"):
        return np.ascontiguousarray(np.load(word.removeprefix("file:")))
    if (array := ARRAY.match(word)) and array[2] in DTYPES:
        shape = [int(n) for n in array[3].split(",")]
        dtype = np.dtype(DTYPES[array[2]])
        if array[1] == "out":
            return memory.empty(int(np.prod(shape)) * dtype.itemsize, f"argument {position}")
        if array[1] == "zeros":
            return np.zeros(shape, dtype)
        return random_array(array[2], shape, dtype, random)
    if (number := NUMBER.match(word)) and number[1] in DTYPES and number[1] not in ("bf16", "fp8"):
        try:
            return np.array(float(number[2]) if number[1][0] == "f" else int(number[2], 0)).astype(DTYPES[number[1]])[
                ()
            ]
        except ValueError:
            pass
    raise LaunchError(
        f"`--arg {word}`: expected i32=5, f32=0.5, null, in:f32[64,128], out:f32[64], zeros:i32[64] or file:x.npy"
    )


def random_array(name: str, shape: list[int], dtype: np.dtype[np.generic], random: np.random.Generator) -> np.ndarray:
    """Random input: standard normal floats, small integers."""
    if name in ("bf16", "fp8"):
        whole = random.standard_normal(shape).astype("f4").view("u4") >> 16
        return whole.astype("u2") if name == "bf16" else random.integers(0x20, 0x40, shape).astype("u1")
    if name[0] == "f":
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0, 100, shape).astype(dtype)


def as_json(report: Report) -> str:
    """The report as JSON."""
    return json.dumps(asdict(report), indent=2)


def as_text(report: Report) -> str:
    """The report for people."""
    counts = report.counts
    requests, lines, lds = counts.memory_requests, counts.memory_lines, counts.lds_accesses
    kinds = ", ".join(f"{n} {kind}" for kind, n in counts.instructions.items() if n)
    text = [
        f"{report.kernel} on {report.arch}: {counts.total} wave-instructions ({kinds})",
        f"memory: {requests} requests, {counts.bytes_per_request:.0f} bytes each, {lines} lines",
        f"LDS: {lds} accesses, {counts.lds_cycles} cycles, {counts.lds_conflict_cycles} of them by conflicts",
        f"matrix instructions: {100 * counts.mfma_share:.1f} %; waves per SIMD: {counts.waves_per_simd}",
        *schedule_text(report.schedule),
        *map(str, report.judgements),
        f"{len(report.judgements)} judgements" + (f", and {report.repeats} repeats of them" if report.repeats else ""),
    ]
    return "\n".join(text)


def schedule_text(schedule: Schedule | None) -> list[str]:
    """What the model says, and that it is a model."""
    if schedule is None:
        return []
    cut = ", of the first instructions only" if schedule.is_cut else ""
    text = [
        f"model of a SIMD with {schedule.waves} waves{cut}: {schedule.cycles} cycles, "
        f"matrix unit busy {100 * schedule.mfma_utilisation:.1f} % of them"
    ]
    if loop := schedule.loop:
        kinds = ", ".join(f"{n} {kind}" for kind, n in loop.instructions.items())
        text.append(
            f"model of its hot loop, {loop.start:#x} to {loop.end:#x}, {loop.iterations} iterations: "
            f"{loop.cycles:.0f} cycles each ({kinds}), matrix unit busy {100 * loop.mfma_utilisation:.1f} %"
        )
    return text


__all__ = ["EmulatorError", "as_json", "as_text", "run"]
