"""What the helper process does: it builds what it is told to, until the process that tells it is gone."""

import importlib
import os
import pickle
import signal
import sys
import threading
import time

NICE = 5
"""How far it steps back behind the processes that serve."""

LOOK_S = 1.0
"""How often it looks whether the process that it builds for is there."""


def serve(descriptor: int) -> None:
    """Answer each build in this pipe: None, or what went wrong."""
    answers = os.fdopen(descriptor, "wb")
    os.set_inheritable(descriptor, False)  # a compiler that outlives this process must not keep it open
    os.dup2(2, 1)
    os.nice(NICE)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    while True:
        try:
            function, arguments = pickle.load(sys.stdin.buffer)  # from the process that started this one
        except EOFError:
            return
        pickle.dump(_problem_with(function, arguments), answers)
        answers.flush()


def _end_with(parent: int) -> None:
    """End this process and its compilers once its parent is gone, also in the middle of a build."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os.killpg(0, signal.SIGKILL)  # the group is this process's own


def _problem_with(function: str, arguments: bytes) -> str | None:
    module, _, name = function.partition(":")
    try:
        getattr(importlib.import_module(module), name)(*pickle.loads(arguments))
    except Exception as error:  # a compiler may raise anything
        return f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"
    return None
