"""The garbage collector, paused while opmux is imported."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No collection inside the block, nor of what was made in it as soon as it ends.

    Defining the ops allocates enough to set off a full collection, and one of torch's heap takes longer than all of
    the import. Nearly everything that is made stays, so that a search for garbage in it finds nothing either.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # else the objects that somebody froze would be collected again
                gc.freeze()
                gc.unfreeze()  # now all of them count as old
            gc.enable()
