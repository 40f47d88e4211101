"""The records of attention for archs without a copy engine."""

from opmux_cutile.archs import UNPROVED, WITHOUT_COPY_ENGINE
from opmux_cutile.attention.gathered.configs import WIDEST
from opmux_cutile.attention.implementations import FORWARD, forward

RECORDS = tuple(
    forward(
        op,
        WITHOUT_COPY_ENGINE,
        "opmux_cutile.attention.gathered",
        "gathered",
        WIDEST,
        name="gathered",
        priority=UNPROVED,
    )
    for op in FORWARD
)
