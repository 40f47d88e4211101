"""Ranks of one job: rank 0 measures while the others wait, and every rank gets its result and its rows.

The others wait in a gloo group of their own: a collective of NCCL would run a kernel on the devices that are being
measured, and the default group's timeout is shorter than a run of the tuner.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch

from opmux.errors import InvalidArgument, OpmuxError

_PATIENCE = timedelta(days=7)
"""How long the other ranks wait; where rank 0 dies, they notice at once."""

Result = TypeVar("Result")


def launched() -> tuple[int, int] | None:
    """Rank and number of ranks where torchrun started this process among several, else None."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    rank, size = (int(os.environ.get(name, fallback)) for name, fallback in (("RANK", "0"), ("WORLD_SIZE", "1")))
    return (rank, size) if size > 1 else None


def on_rank_zero(what: str, work: Callable[[], Result], follow: Callable[[Any], None] | None = None) -> Result:
    """Do work on rank 0 of the default process group and return its result on every rank; alone, just do it.

    Args:
        what: what is done; errors begin with it.
        work: what rank 0 does.
        follow: called on every rank with the gloo group, after the work succeeded.

    Raises:
        InvalidArgument: on other ranks than 0 of torchrun, where no process group is initialized.
        OpmuxError: what the work raises on rank 0, on every rank.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        _refuse_without_group(what)
        return work()
    if distributed.get_world_size() == 1:
        return work()
    group = distributed.new_group(backend="gloo", timeout=_PATIENCE)
    try:
        result = _shared(what, work, group)
        if follow is not None:
            follow(group)
        return result
    finally:
        distributed.destroy_process_group(group)


def _refuse_without_group(what: str) -> None:
    rank, size = launched() or (0, 1)
    if rank:
        raise InvalidArgument(
            f"{what}: expected an initialized process group on rank {rank} of {size}, got none; call "
            "torch.distributed.init_process_group() first, so that this rank waits for rank 0 and gets its rows"
        )


def _shared(what: str, work: Callable[[], Result], group: Any) -> Result:
    """The result of the work on rank 0, or its error, on every rank."""
    box: list[Any] = [None, None]
    failed: BaseException | None = None
    if torch.distributed.get_rank(group) == 0:
        try:
            box[0] = work()
        except BaseException as error:  # an interrupt too: otherwise the other ranks would wait for a week
            failed = error
            box[1] = (type(error), str(error)) if isinstance(error, OpmuxError) else (OpmuxError, _named(what, error))
    torch.distributed.broadcast_object_list(box, group=group, group_src=0)
    if failed is not None:
        raise failed
    if box[1] is not None:
        kind, text = box[1]
        raise kind(text)
    found: Result = box[0]
    return found


def _named(what: str, error: BaseException) -> str:
    return f"{what}: rank 0 stopped with {type(error).__name__}{f': {error}' if str(error) else ''}"
