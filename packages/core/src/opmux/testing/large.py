"""Placeholder."""
from collections.abc import Iterator
from opmux.op import Op
from opmux.testing.case import Case
from opmux.testing.profiles import Profile

def cases(op: Op, profile: Profile) -> Iterator[Case]:
    """None yet."""
    return iter(())
