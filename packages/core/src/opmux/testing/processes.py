"""Call a function on several items, each in a process of its own: several run at a time, and each fails alone."""

import math
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

import torch

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass
class Returned(Generic[Answer]):
    """What a process returned, and the parts that it had handed over before."""

    answer: Answer
    parts: list[Any] = field(default_factory=list)


@dataclass
class Lost:
    """What is known of a process that returned no answer: the reason, and the parts that it had handed over."""

    why: str
    parts: list[Any] = field(default_factory=list)


def call_apart(
    function: Callable[[Item], Answer],
    items: Iterable[Item],
    jobs: int,
    limit_s: float | None,
    handed: Callable[[Item], None],
    total_s: float | None = None,
    since: float | None = None,
) -> list[Returned[Answer] | Lost]:
    """The result of a picklable function for each picklable item, or what its process left if it returned none.

    ``handed`` is called after each part that a process hands over, one call at a time. Each process gets its share of
    this one's threads, and ``limit_s`` seconds, or what is left of ``total_s``, which began at ``since`` (of
    `time.monotonic`), or now.
    """
    threads = max(1, torch.get_num_threads() // jobs)
    own = math.inf if limit_s is None else limit_s
    until, over = math.inf, ""
    if total_s is not None:
        until, over = (
            (time.monotonic() if since is None else since) + total_s,
            f"the {total_s:g} s of the whole run were over",
        )
    one_at_a_time = threading.Lock()

    def one(item: Item) -> Returned[Answer] | Lost:
        def count() -> None:
            with one_at_a_time:
                handed(item)

        left = until - time.monotonic()
        if left <= 0:
            return Lost(f"its process was not begun: {over}")
        when = f"when {over}" if left < own else f"after {own:g} s"
        return _call(function, item, min(own, left), threads, count, when)

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, items))


def note(text: str) -> None:
    """In a process that `call_apart` started, record the current step, which is reported if the process dies."""
    if _senders:
        _senders[-1].send((NOTE, text))


def hand_over(part: Any) -> None:
    """In a process that `call_apart` started, hand over a part of the answer, which is kept if the process dies."""
    if _senders:
        _senders[-1].send((PART, part))


NOTE, PART, ANSWER = "note", "part", "answer"

_senders: list[Connection] = []
"""In a process that `call_apart` started: the connection for its notes and its answer."""


def _call(
    function: Callable[[Item], Answer],
    item: Item,
    limit_s: float,
    threads: int,
    count: Callable[[], None],
    when: str,
) -> Returned[Answer] | Lost:
    """Call in a process that is ended after ``limit_s`` seconds; ``when`` says that in a report."""
    context = multiprocessing.get_context("spawn")  # a forked process could not use a GPU that this one has used
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, function, item, threads), daemon=True)
    process.start()
    sender.close()  # so that the end of the process is the end of the pipe
    overdue = threading.Event()

    def end() -> None:
        overdue.set()
        process.kill()

    # It ends a process that hangs within a message too: to receive one has no limit of its own.
    timer = threading.Timer(min(limit_s, threading.TIMEOUT_MAX), end)
    timer.start()
    last = ""
    parts: list[Any] = []
    try:
        while True:
            kind, given = receiver.recv()
            if kind == ANSWER:
                return Returned(given, parts)
            if kind == PART:
                parts.append(given)
                count()
            else:
                last = f", in {given}"
    except (EOFError, OSError):  # the second where it died within a message
        process.join()
        if overdue.is_set():
            return Lost(f"its process was ended {when} without an answer{last}", parts)
        return Lost(f"its process ended without an answer, {_exit_text(process.exitcode)}{last}", parts)
    finally:
        timer.cancel()
        process.kill()
        process.join()
        receiver.close()


def _exit_text(code: int | None) -> str:
    """An exit code in words; if a signal ended the process, the signal."""
    if code is not None and -code in {s.value for s in signal.Signals}:
        return signal.Signals(-code).name
    return f"exit code {code}"


def _child(sender: Connection, function: Callable[[Item], Answer], item: Item, threads: int) -> None:
    torch.set_num_threads(threads)
    _senders.append(sender)
    sender.send((ANSWER, function(item)))
