"""AMD code objects on a CPU: run, judged, counted. ``launch(Program.load(path), name, grid, block, arguments)``."""

import importlib
from typing import TYPE_CHECKING, Any

from opmux_emulator.__about__ import __version__

if TYPE_CHECKING:
    from opmux_emulator.codeobject.program import Kernel, Program
    from opmux_emulator.errors import CodeObjectError, EmulatorError, JudgedError, LaunchError
    from opmux_emulator.running.launch import launch
    from opmux_emulator.running.memory import Memory
    from opmux_emulator.running.report import RULES, Counts, Judgement, Report
    from opmux_emulator.schedule.latencies import Latencies

__all__ = [
    "RULES",
    "CodeObjectError",
    "Counts",
    "EmulatorError",
    "JudgedError",
    "Judgement",
    "Kernel",
    "Latencies",
    "LaunchError",
    "Memory",
    "Program",
    "Report",
    "__version__",
    "launch",
]

_MODULES = {
    **dict.fromkeys(("Kernel", "Program"), "codeobject.program"),
    **dict.fromkeys(("CodeObjectError", "EmulatorError", "JudgedError", "LaunchError"), "errors"),
    **dict.fromkeys(("RULES", "Counts", "Judgement", "Report"), "running.report"),
    "Latencies": "schedule.latencies",
    "Memory": "running.memory",
    "launch": "running.launch",
}


def __getattr__(name: str) -> Any:
    """Import the interpreter on first use: the core imports this package in every process that has it installed."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
