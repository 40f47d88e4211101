"""The error of the kernel writer."""


class WriterError(ValueError):
    """A kernel that cannot be written: a register used before its load is waited for, no registers left, ..."""
