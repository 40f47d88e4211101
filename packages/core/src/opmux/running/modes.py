"""The modes of torch that decide what a call may do: graph capture, and determinism."""

import torch


def capturing() -> bool:
    """Whether the current stream is capturing a CUDA/HIP graph; does not initialise a device."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def deterministic_mode() -> bool:
    """Whether torch's deterministic mode is on; warn-only mode does not count, since torch itself continues then."""
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
