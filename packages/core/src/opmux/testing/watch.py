"""Reports which case was running when the process died: a kernel that aborts leaves Python no chance to do so."""

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
    """A small helper process. It receives a description of the next step, and prints it if this process dies.

    As a context manager it starts and ends the process. If none can be started, nothing is watched.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Watch":
        if sys.executable:
            # A session of its own, so that an interrupt from the terminal reaches only this process.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM], stdin=subprocess.PIPE, text=True, start_new_session=True
            )
        return self

    def about_to(self, text: str) -> None:
        """Set the text to print if the process dies from now on; empty for none."""
        if self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.write(text + "\n")
                self._process.stdin.flush()
            except BrokenPipeError:  # the helper was ended: the run continues unwatched
                self._process = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.about_to("")
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
