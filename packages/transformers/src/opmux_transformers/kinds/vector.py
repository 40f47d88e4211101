"""Plain linears in 16 bits, whose products of a single row are opmux's."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

import opmux
from opmux_transformers import vector
from opmux_transformers.calls import linears_are_torchs
from opmux_transformers.foreign import whose_forward
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.kinds.quantize import QUANTIZE, head_of
from opmux_transformers.survey import Survey
from opmux_transformers.undo import Patch

_MOST_COLUMNS = 8192
"""In a chain of launches torch is as fast beyond (4096 rows of a weight with 14336 columns on an H200: 31.3 us, opmux
33.3)."""
_NO_KERNELS = ("reference", "vendor")
"""Backends that have no kernel of their own for a row: the definition, and torch's library itself."""


class VectorKind(Kind[bool]):
    """Linears of torch's own class with a weight of 16 bits that are not quantised; heads stay, for the loss."""

    name = option = "vector"

    def find(self, survey: Survey) -> Iterable[str]:
        """The linears that may be replaced."""
        head, quantised = head_of(survey), survey.found(QUANTIZE)
        return (
            path
            for path, module in survey.modules.items()
            if type(module) is nn.Linear and module is not head and path not in quantised and _fits(module)
        )

    def judge(self, survey: Survey, path: str) -> bool | str | None:
        """Torch's own forward is what is replaced: nothing has to be compared."""
        module = survey.modules[path]
        weight, bias = module._parameters["weight"], module._parameters.get("bias")
        assert weight is not None
        key = ("kernel of a row", weight.device, weight.dtype, weight.shape, bias is None)
        if not survey.once(key, lambda: has_kernel(weight, bias)):
            return None
        if not linears_are_torchs():
            return "already patched: the forward of torch.nn.Linear was replaced"
        return whose_forward(module) or True

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Give each a forward that looks at its input."""
        for path in survey.found(self):
            module = survey.modules[path]
            patch.set(module, "forward", vector.vector_forward.__get__(module), self.name)

    def op(self, finding: bool) -> str:
        """The op that computes a row."""
        return "linear"

    def note(self, finding: bool) -> str:
        """When it does."""
        return "a single row under no_grad"


def has_kernel(weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a kernel of a backend's own is chosen for a row on the device of the weight."""
    if weight.device.type not in vector.DEVICES:
        return False
    with torch.no_grad():
        chosen = opmux.explain(opmux.linear, weight.new_empty(1, weight.shape[1]), weight, bias).chosen
    return chosen is not None and chosen.name.partition(":")[0] not in _NO_KERNELS


def _fits(module: nn.Linear) -> bool:
    """Whether its weight is a plain one of 16 bits, neither empty nor too long."""
    weight, bias = (module._parameters.get(name) for name in ("weight", "bias"))
    if weight is None or weight.__class__ is not nn.Parameter or weight.dtype not in vector.DTYPES:
        return False
    return weight.numel() > 0 and weight.shape[1] <= _MOST_COLUMNS and (bias is None or bias.dtype == weight.dtype)


VECTOR = VectorKind()
