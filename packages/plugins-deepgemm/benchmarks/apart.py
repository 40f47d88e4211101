"""Items that are measured in a process of their own, so that one that hangs or crashes costs only itself."""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple


class Limits(NamedTuple):
    """Seconds: to start a GPU in a new process, for one item, and until when, by `time.monotonic`, items may begin."""

    start: float
    each: float
    until: float = float("inf")


class Outcome(NamedTuple):
    """What became of an item: what it was measured as, or why it was not."""

    item: Any
    found: Any = None
    problem: str = ""


def measured(
    items: Sequence[Any], warm: Callable[[], object], measure: Callable[[Any], Any], limits: Limits
) -> Iterator[Outcome]:
    """Measure each item, in order. After one that hangs or crashes, the rest goes on in another process.

    Args:
        items: what is measured; they and what is found must be picklable.
        warm: what a process does first, as starting the GPU: its time counts for no item.
        measure: what is done with an item; an exception whose message has "CUDA error" ends its process.
        limits: for each.
    """
    left = list(items)
    while left:
        if time.monotonic() >= limits.until:
            yield from (Outcome(item, problem="not begun: the time of all parts is up") for item in left)
            return
        ended = 0
        for outcome in _in_one_process(left, warm, measure, limits):
            ended += 1
            yield outcome
        if not ended and time.monotonic() < limits.until:  # it did not even start: nor would the next process
            yield from (Outcome(item, problem=f"the GPU did not start in {limits.start:g} s") for item in left)
            return
        del left[:ended]


def _in_one_process(
    items: Sequence[Any], warm: Callable[[], object], measure: Callable[[Any], Any], limits: Limits
) -> Iterator[Outcome]:
    fork = multiprocessing.get_context("fork")  # the caller has not touched the GPU
    reader, writer = fork.Pipe(duplex=False)
    process = fork.Process(target=_work, args=(items, warm, measure, writer))
    process.start()
    writer.close()
    try:
        if not reader.poll(limits.start) or _received(reader) is None:
            return
        for item in items:
            if time.monotonic() >= limits.until:
                return
            if not reader.poll(limits.each):
                yield Outcome(item, problem=f"hung: ended after {limits.each:g} s")
                return
            message = _received(reader)
            if message is None:
                process.join(10)
                yield Outcome(item, problem=f"its process ended with {process.exitcode}")
                return
            found, problem, goes_on = message
            yield Outcome(item, found, problem)
            if not goes_on:
                return
    finally:
        process.kill()
        process.join(10)
        reader.close()


def _received(reader: Connection) -> Any:
    """The next message, or None where the process has ended."""
    try:
        return reader.recv()
    except EOFError:
        return None


def _work(items: Sequence[Any], warm: Callable[[], object], measure: Callable[[Any], Any], writer: Connection) -> None:
    warm()
    writer.send("warm")
    for item in items:
        try:
            writer.send((measure(item), "", True))
        except Exception as error:
            goes_on = "CUDA error" not in str(error)  # after which nothing runs in this process
            writer.send((None, f"{type(error).__name__}: {str(error)[:300]}", goes_on))
            if not goes_on:
                return
