"""Calls whose instances cover the families, one of each: what CI builds, and what is built from an older CK."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opmux.plugin import registered_ops, takers
from opmux_ck.building.calls import instances_of
from opmux_ck.building.instances import Instance

ARCH = "gfx942"
BF16, FP16, FNUZ, INT8 = torch.bfloat16, torch.float16, torch.float8_e4m3fnuz, torch.int8


@dataclass(frozen=True)
class Covered:
    """A call.

    Attributes:
        name: of the test.
        op: what is called.
        tensors: by position.
        options: by keyword.
        multiplies: whether it has a product, and with it matrix instructions.
        codes: whether the first result has codes, of which few may differ by one.
        part: what it needs of CK, if not the op's name.
    """

    name: str
    op: str
    tensors: tuple[Tensor | None, ...]
    options: dict[str, Any] = field(default_factory=dict)
    multiplies: bool = True
    codes: bool = False
    part: str = ""

    def instances(self) -> list[Instance]:
        """What the call launches."""
        taker = next(iter(takers(registered_ops()[self.op], *self.tensors, arch=ARCH, backend="ck", **self.options)))
        return list(instances_of(self.op, taker.call, taker.config()))


def drawn(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    """Normal values, or codes of about that size."""
    return (torch.randn(shape) * (40 if dtype is INT8 else 1)).clamp(-127, 127).to(dtype)


def scales(*shape: int) -> Tensor:
    """Between 0.5 and 1.5."""
    return torch.rand(shape) + 0.5


def offsets(*values: int) -> Tensor:
    """Where groups start."""
    return torch.tensor(values, dtype=torch.int32)


def covered() -> tuple[Covered, ...]:
    """The calls: rows, columns and k that end within a tile."""
    torch.manual_seed(20)
    rows, gain = (drawn(5, 504), drawn(5, 504)), drawn(504)
    to_int8 = {"dtype": INT8, "block": (1, 128)}
    heads = (drawn(1, 70, 2, 64), drawn(1, 90, 1, 64), drawn(1, 90, 1, 64))
    out = {"out_dtype": BF16}
    return (
        Covered("rms-norm", "rms_norm", (rows[0], gain), multiplies=False),
        Covered("codes-of-a-norm", "add_rms_norm_quantize", (*rows, gain), to_int8, multiplies=False, codes=True),
        Covered("layer-norm", "add_layer_norm", (*rows, gain, gain), multiplies=False),
        Covered("few-rows", "linear", (drawn(5, 520), drawn(72, 520), None)),
        Covered(
            "bias",
            "linear",
            (drawn(70, 264, dtype=FP16), drawn(136, 264, dtype=FP16), drawn(136, dtype=FP16)),
            part="linear with a bias",
        ),
        Covered(
            "channels",
            "scaled_linear",
            (drawn(40, 272, dtype=FNUZ), drawn(72, 272, dtype=FNUZ), scales(40, 1), scales(72, 1)),
            out,
        ),
        Covered("groups", "grouped_linear", (drawn(50, 264), drawn(3, 72, 264), offsets(0, 30, 30, 50))),
        Covered(
            "groups-of-blocks",
            "scaled_grouped_linear",
            (drawn(60, 272, dtype=INT8), drawn(2, 136, 272, dtype=INT8), offsets(0, 40, 57), scales(60, 3),
             scales(2, 2, 3)),
            out,
        ),
        Covered("attention", "attention_lse", heads, {"causal": True}),
    )  # fmt: skip
