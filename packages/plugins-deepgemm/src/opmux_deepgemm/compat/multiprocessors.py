"""How many multiprocessors kernels use."""

import torch

from opmux.plugin import InvalidArgument
from opmux_deepgemm.launching import limit_units, units_of

_sms: int | None = None


def set_num_sms(new_num_sms: int) -> None:
    """Let kernels use so many multiprocessors at most; 0 takes all. Those for few rows use as many as they have blocks.

    Raises:
        InvalidArgument: if it is no number from 0 to the GPU's.
    """
    global _sms
    most = units_of(torch.cuda.current_device())
    if not 0 <= new_num_sms <= most:
        raise InvalidArgument(f"set_num_sms: `new_num_sms` expected a number from 0 to {most}, got {new_num_sms}")
    _sms = new_num_sms or None
    limit_units(_sms)


def get_num_sms() -> int:
    """How many multiprocessors kernels use."""
    return units_of(torch.cuda.current_device()) if _sms is None else _sms
