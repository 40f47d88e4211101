"""Kernels that Triton compiled, reported to the core: what it found in its cache does not count."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import triton

from opmux.plugin import report_build

_PER_SECOND = 1e6
"""Triton's times are in microseconds."""


@contextmanager
def reported() -> Iterator[None]:
    """Report what is compiled meanwhile; another listener hears of it too."""
    knobs = triton.knobs.compilation
    before = knobs.listener

    def listen(*, times: Any, cache_hit: bool, **rest: Any) -> None:
        if not cache_hit:
            report_build(times.total / _PER_SECOND)
        if before is not None:
            before(times=times, cache_hit=cache_hit, **rest)

    knobs.listener = listen
    try:
        yield
    finally:
        knobs.listener = before
