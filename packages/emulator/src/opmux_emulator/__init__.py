"""AMD code objects on a CPU: run, judged, counted. ``launch(Program.load(path), name, grid, block, arguments)``."""

from opmux_emulator.__about__ import __version__
from opmux_emulator.codeobject.program import Kernel, Program
from opmux_emulator.errors import CodeObjectError, EmulatorError, JudgedError, LaunchError
from opmux_emulator.running.launch import launch
from opmux_emulator.running.memory import Memory
from opmux_emulator.running.report import RULES, Counts, Judgement, Report

__all__ = [
    "RULES",
    "CodeObjectError",
    "Counts",
    "EmulatorError",
    "JudgedError",
    "Judgement",
    "Kernel",
    "LaunchError",
    "Memory",
    "Program",
    "Report",
    "__version__",
    "launch",
]
