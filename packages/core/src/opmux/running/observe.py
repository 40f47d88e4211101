"""`opmux.trace()`: what ran, how often, and for how long.

While a trace is open, the plan tables hold timed callables; otherwise a call pays nothing. Plans outlive the beginning
and the end of a trace: a call that ran in it can be captured after it.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from opmux.callpath.op import OPS, Op
from opmux.errors import InvalidArgument
from opmux.running import modes
from opmux.running.recorded_shapes import RecordedShapes
from opmux.running.targets import Plan
from opmux.tables import text_table


@dataclass
class TraceRow:
    """One op on one backend.

    Attributes:
        calls: how often it ran.
        fallbacks: how many of these ran because something better had failed, or because a GPU had only the reference.
        awaiting: how many of these ran while something better was being built in the background.
        host_us: time in the calls on the host, in microseconds, inner ops included.
        device_us: time on the GPU between the calls' start and end, in microseconds; 0 on the CPU.
    """

    op: str
    arch: str
    backend: str
    calls: int = 0
    fallbacks: int = 0
    awaiting: int = 0
    host_us: float = 0.0
    device_us: float = 0.0


@dataclass
class Trace:
    """What `opmux.trace` collects; prints as a table. ``rows`` is complete once the ``with`` block has ended."""

    record_shapes: Path | None = None
    _shapes: RecordedShapes = field(default_factory=RecordedShapes, repr=False)
    _rows: dict[tuple[str, str, str], TraceRow] = field(default_factory=dict)
    _events: list[tuple[TraceRow, Any, Any]] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def rows(self) -> list[TraceRow]:
        """The rows, in order of op and backend."""
        self._settle()
        return [self._rows[key] for key in sorted(self._rows)]

    def as_dict(self) -> list[dict[str, Any]]:
        """The rows as plain data."""
        return [{name: getattr(row, name) for name in TraceRow.__dataclass_fields__} for row in self.rows]

    def __enter__(self) -> "Trace":
        if self.record_shapes is not None and not self.record_shapes.absolute().parent.is_dir():
            raise InvalidArgument(
                f"trace: `record_shapes` expected a file in a folder that exists, got {self.record_shapes}; "
                "make the folder"
            )
        open_traces.append(self)
        _exchange_callables()
        return self

    def __exit__(self, *exception: object) -> None:
        open_traces.remove(self)
        _exchange_callables()
        self._settle()
        if self.record_shapes is not None:
            with self._lock:
                self._shapes.write(self.record_shapes)

    def __str__(self) -> str:
        header = ["op", "arch", "backend", "calls", "fallbacks", "awaiting", "host_us", "device_us"]
        cells = [
            [r.op, r.arch, r.backend, *map(str, (r.calls, r.fallbacks, r.awaiting)), f"{r.host_us:.1f}",
             f"{r.device_us:.1f}"]
            for r in self.rows
        ]  # fmt: skip
        return text_table(header, cells, right={3, 4, 5, 6, 7})

    def record_call(self, op: Op, tensors: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Count one call's shapes, if they are recorded."""
        if self.record_shapes is not None:
            with self._lock:
                self._shapes.count(op, tensors, options)

    def record(self, op: str, plan: Plan, host_us: float, events: tuple[Any, Any] | None) -> None:
        """Count one call."""
        name, arch = plan.implementation.full_name, plan.arch.name
        with self._lock:
            row = self._rows.setdefault((op, arch, name), TraceRow(op, arch, name))
            row.calls += 1
            row.fallbacks += plan.fallback
            row.awaiting += plan.job is not None
            row.host_us += host_us
            if events is not None:
                self._events.append((row, *events))

    def _settle(self) -> None:
        """Turn pairs of device events into time; waits for the device."""
        with self._lock:
            events, self._events = self._events, []
        for row, start, end in events:
            end.synchronize()
            row.device_us += start.elapsed_time(end) * 1e3


open_traces: list[Trace] = []
"""Where calls are counted now."""


def trace(*, record_shapes: str | os.PathLike[str] | None = None) -> Trace:
    """Record what runs inside a ``with`` block: ``with opmux.trace() as t: ...; print(t)``.

    Args:
        record_shapes: a file to which the shapes of all calls are written when the block ends, with how often each was
            made: what ``opmux tune --from-trace`` reads. Calls without any element are left out. Replays of CUDA graphs
            are not seen.

    Raises:
        InvalidArgument: when the block begins, if the file's folder does not exist; when it ends, if the file cannot be
            written.
    """
    return Trace(None if record_shapes is None else Path(record_shapes))


def _exchange_callables() -> None:
    """Time what runs the plans of every op, or do so no longer."""
    for op in tuple(OPS.values()):
        op.rerun_plans(_callable_of)


def _callable_of(op: Op, plan: Plan) -> Callable[..., Any] | None:
    """What runs a plan now; None where it waits for a build, whose callable belongs to one table."""
    if plan.job is not None:
        return None
    return observed(op, plan) if open_traces else plan.run


def observed(op: Op, plan: Plan) -> Callable[..., Any]:
    """The callable to keep for a plan while a trace is open: ``plan.run``, timed."""
    run, traces = plan.run, tuple(open_traces)
    on_gpu = plan.arch.is_gpu

    def timed(*tensors: Any, **options: Any) -> Any:
        events = None
        if on_gpu and not modes.capturing():
            events = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            stream = torch.cuda.current_stream(tensors[0].device)
            events[0].record(stream)
        started = time.perf_counter_ns()
        results = run(*tensors, **options)
        host_us = (time.perf_counter_ns() - started) / 1e3
        if events is not None:
            events[1].record(stream)
        for open_trace in traces:
            open_trace.record(op.name, plan, host_us, events)
            open_trace.record_call(op, tensors, options)
        return results

    return timed
