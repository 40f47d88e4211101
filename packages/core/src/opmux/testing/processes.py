"""Call a function on several ops, each in a process of its own: several run at a time, and each fails alone."""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import TypeVar

import torch

Answer = TypeVar("Answer")


def call_apart(
    function: Callable[[str], Answer],
    ops: Iterable[str],
    jobs: int,
    limit_s: float | None,
    ended: Callable[[str], None],
) -> list[Answer | str]:
    """The result of a picklable function for each op, or the reason why its process returned none.

    ``ended`` is called after each op. Each process gets its share of this one's threads, and ``limit_s`` seconds.
    """
    threads = max(1, torch.get_num_threads() // jobs)

    def one(op: str) -> Answer | str:
        answer = _call(function, op, limit_s, threads)
        ended(op)
        return answer

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, ops))


def note(text: str) -> None:
    """In a process that `call_apart` started, record the current step, which is reported if the process dies."""
    if _senders:
        _senders[-1].send((NOTE, text))


NOTE, ANSWER = "note", "answer"

_senders: list[Connection] = []
"""In a process that `call_apart` started: the connection for its notes and its answer."""


def _call(function: Callable[[str], Answer], op: str, limit_s: float | None, threads: int) -> Answer | str:
    context = multiprocessing.get_context("spawn")  # a forked process could not use a GPU that this one has used
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, function, op, threads), daemon=True)
    process.start()
    sender.close()  # so that the end of the process is the end of the pipe
    ends = None if limit_s is None else time.monotonic() + limit_s
    last = ""
    try:
        while receiver.poll(None if ends is None else max(0.0, ends - time.monotonic())):
            kind, given = receiver.recv()
            if kind == ANSWER:
                answer: Answer = given
                return answer
            last = f", in {given}"
        return f"its process was ended after {limit_s:g} s without an answer{last}"
    except EOFError:
        process.join()
        return f"its process ended without an answer, {_exit_text(process.exitcode)}{last}"
    finally:
        process.kill()
        process.join()
        receiver.close()


def _exit_text(code: int | None) -> str:
    """An exit code in words; if a signal ended the process, the signal."""
    if code is not None and -code in {s.value for s in signal.Signals}:
        return signal.Signals(-code).name
    return f"exit code {code}"


def _child(sender: Connection, function: Callable[[str], Answer], op: str, threads: int) -> None:
    torch.set_num_threads(threads)
    _senders.append(sender)
    sender.send((ANSWER, function(op)))
