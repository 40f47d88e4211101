"""The records of `linear` and of its gradients for archs without a copy engine."""

from dataclasses import replace

from opmux_cutile.archs import UNPROVED, WITHOUT_COPY_ENGINE
from opmux_cutile.products.implementations import GRADIENTS, LINEAR

RECORDS = (
    replace(
        LINEAR,
        name="gathered",
        target="opmux_cutile.products.gathered.targets:linear",
        archs=WITHOUT_COPY_ENGINE,
        priority=UNPROVED,
        config="opmux_cutile.products.gathered.configs:gathered_config",
        space="opmux_cutile.products.gathered.configs:gathered_space",
    ),
    replace(
        GRADIENTS,
        name="gathered",
        target="opmux_cutile.products.gathered.targets:linear_backward",
        archs=WITHOUT_COPY_ENGINE,
        priority=UNPROVED,
        config="opmux_cutile.products.gathered.configs:gathered_backward_config",
        space="opmux_cutile.products.gathered.configs:gathered_backward_space",
    ),
)
