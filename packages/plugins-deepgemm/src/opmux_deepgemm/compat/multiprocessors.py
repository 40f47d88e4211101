"""How many multiprocessors kernels use."""

import torch

from opmux_deepgemm.compat.arguments import check_number
from opmux_deepgemm.launching import limit_units, units_of

_sms: int | None = None


def set_num_sms(new_num_sms: int) -> None:
    """Let kernels use so many multiprocessors at most; 0 takes all. Those for few rows use as many as they have blocks.

    Raises:
        InvalidArgument: if it is no number from 0 to the GPU's.
    """
    global _sms
    check_number("set_num_sms", "new_num_sms", new_num_sms, 0, units_of(torch.cuda.current_device()))
    _sms = new_num_sms or None
    limit_units(_sms)


def get_num_sms() -> int:
    """How many multiprocessors kernels use."""
    return units_of(torch.cuda.current_device()) if _sms is None else _sms
