"""Telling which case was running when the process died: a kernel that aborts takes Python's own messages with it."""

import subprocess
import sys
from types import TracebackType

_PROGRAM = """
import sys
last = ""
for line in sys.stdin:
    last = line.rstrip()
if last:
    sys.stderr.write(last + "\\n")
"""


class Watch:
    """A small process beside this one. It is told what comes next, and prints that should this one end without a word.

    As a context manager it starts and ends the process. Where none can be started, nothing is watched.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Watch":
        if sys.executable:
            # A session of its own: an interrupt from the terminal is for this process alone.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM], stdin=subprocess.PIPE, text=True, start_new_session=True
            )
        return self

    def about_to(self, text: str) -> None:
        """Say what is to be printed if the process dies from here on; empty for nothing."""
        if self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.write(text + "\n")
                self._process.stdin.flush()
            except BrokenPipeError:  # somebody ended it: the run goes on unwatched
                self._process = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.about_to("")
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
