"""What this package raises."""


class EmulatorError(ValueError):
    """A code object, a kernel or a launch that cannot be loaded or run; the message says what and why."""


class CodeObjectError(EmulatorError):
    """Not a code object of a supported arch, or a damaged one."""


class LaunchError(EmulatorError):
    """Arguments, a grid or a workgroup that do not fit the kernel."""


class JudgedError(EmulatorError):
    """A kernel broke a rule; ``findings`` holds every judgement."""

    def __init__(self, message: str, findings: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings
