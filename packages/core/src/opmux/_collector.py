"""The garbage collector, paused while opmux is imported."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No collection inside the block.

    Defining the ops allocates enough to set off a full collection, and one of torch's heap takes longer than all of
    the import.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
