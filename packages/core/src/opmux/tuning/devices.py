"""Rows of several device models, as a call on one of them sees them: by which roofline, and from how far away."""

import math
from collections.abc import Sequence

import torch

from opmux.tuning.measured.device import DeviceModel
from opmux.tuning.measured.row import Machine, MeasuredRow
from opmux.tuning.roofline import Figures, Roofline, roofline

OTHER_DEVICE = 1.0
"""Octaves by which rows of another device model are farther away, besides how unlike the models are."""


class Devices:
    """The device models of some rows, as a call on one of them, or on another one, sees them.

    Attributes:
        home: the name of the device model of the call.
        reference: the roofline by which work is measured: of the call's device model, or without rows of it of the most
            alike.
        roof: the roofline of the call's device model.
    """

    def __init__(
        self,
        arch: str,
        dtypes: Sequence[torch.dtype],
        rows: Sequence[MeasuredRow],
        device: DeviceModel | None,
    ) -> None:
        counts: dict[str, int] = {}
        machines: dict[str, Machine] = {}
        for row in rows:
            name = row.machine.device
            counts[name] = counts.get(name, 0) + 1
            machines.setdefault(name, row.machine)
        most = min(counts, key=lambda name: (-counts[name], name))
        self.home = most if device is None else device.name
        here: Figures = machines[most] if device is None else device
        unlike = {name: _unlike(machine, here) for name, machine in machines.items()}
        nearest = min(machines, key=lambda name: (name != self.home, unlike[name], name))
        first = machines[nearest]
        self.reference = roofline(arch, dtypes, first)
        self.roof = self.reference if nearest == self.home else roofline(arch, dtypes, here, first)
        self._of = {
            name: (
                self.reference if name == nearest else roofline(arch, dtypes, machine, first),
                0.0 if name == self.home else OTHER_DEVICE + unlike[name],
            )
            for name, machine in machines.items()
        }

    def of(self, machine: Machine) -> tuple[Roofline, float]:
        """The roofline of a machine's device model, and the octaves by which its rows are farther away."""
        return self._of[machine.device]


def _unlike(one: Figures, other: Figures) -> float:
    """How unlike two device models are: the logarithms of the ratios of bandwidth and of cycles."""
    pairs = (
        (one.memory_gbps, other.memory_gbps),
        (one.multiprocessors * one.clock_mhz, other.multiprocessors * other.clock_mhz),
    )
    return sum(abs(math.log(a / b)) for a, b in pairs if a and b)
