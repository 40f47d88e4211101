"""What the helper process does: it builds what it is told to, until the process that tells it is gone."""

import importlib
import os
import pickle
import sys
import threading
import time

NICE = 5
"""How far it steps back behind the processes that serve."""

LOOK_S = 1.0
"""How often it looks whether the process that it builds for is there."""


def serve() -> None:
    """Answer each build on the standard output: None, or what went wrong."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what compilers print must not mix with the answers
    os.nice(NICE)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    while True:
        try:
            function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(_problem_with(function, arguments), answers)
        answers.flush()


def _end_with(parent: int) -> None:
    """End this process once its parent is gone, also in the middle of a build."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)


def _problem_with(function: str, arguments: bytes) -> str | None:
    module, _, name = function.partition(":")
    try:
        getattr(importlib.import_module(module), name)(*pickle.loads(arguments))
    except Exception as error:  # a compiler may raise anything
        return f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"
    return None
