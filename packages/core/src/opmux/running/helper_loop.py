"""What the helper process does: it builds what it is told to, until the process that tells it is gone."""

import importlib
import os
import pickle
import sys

NICE = 5
"""How far it steps back behind the processes that serve."""


def serve() -> None:
    """Answer each build on the standard output: None, or what went wrong."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what compilers print must not mix with the answers
    os.nice(NICE)
    while True:
        try:
            function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(_problem_with(function, arguments), answers)
        answers.flush()


def _problem_with(function: str, arguments: bytes) -> str | None:
    module, _, name = function.partition(":")
    try:
        getattr(importlib.import_module(module), name)(*pickle.loads(arguments))
    except Exception as error:  # a compiler may raise anything
        return f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"
    return None
