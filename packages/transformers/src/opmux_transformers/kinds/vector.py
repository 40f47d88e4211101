"""Plain linears in 16 bits, whose products of a single row are opmux's."""

from collections.abc import Iterable

from torch import nn

from opmux.callpath.op import OPS
from opmux.plugins import loading
from opmux_transformers.foreign import whose_forward
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.kinds.quantize import QUANTIZE
from opmux_transformers.survey import Survey
from opmux_transformers.undo import Patch
from opmux_transformers.vector import DTYPES, vector_forward

_MOST_COLUMNS = 8192
"""In a chain of launches torch is as fast beyond (4096 rows of a weight with 14336 columns on an H200: 31.3 us, opmux
33.3)."""


class VectorKind(Kind[bool]):
    """Linears of torch's own class with a weight of 16 bits that are not quantised; heads stay, for the loss."""

    name = option = "vector"

    def find(self, survey: Survey) -> Iterable[str]:
        """The linears that may be replaced, if a backend computes their products."""
        if not has_backend():
            return ()
        head = getattr(survey.model, "get_output_embeddings", lambda: None)()
        quantised = survey.found(QUANTIZE)
        return (
            path
            for path, module in survey.modules.items()
            if type(module) is nn.Linear and module is not head and path not in quantised and _fits(module)
        )

    def judge(self, survey: Survey, path: str) -> bool | str:
        """Torch's own forward is what is replaced; nothing has to be compared."""
        return whose_forward(survey.modules[path]) or True

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Give each a forward that looks at its input."""
        for path in survey.found(self):
            module = survey.modules[path]
            patch.set(module, "forward", vector_forward.__get__(module), self.name)

    def op(self, finding: bool) -> str:
        """The op that computes a row."""
        return "linear"

    def note(self, finding: bool) -> str:
        """When it does."""
        return "a single row without gradient"


def has_backend() -> bool:
    """Whether a backend is installed for `opmux.linear`: the reference is no match for torch's own product."""
    loading.ensure_loaded()
    return any(found.backend != "reference" for found in OPS["linear"].implementations)


def _fits(module: nn.Linear) -> bool:
    """Whether its weight is a plain one of 16 bits and not too long."""
    weight, bias = (module._parameters.get(name) for name in ("weight", "bias"))
    if weight is None or weight.__class__ is not nn.Parameter or weight.dtype not in DTYPES:
        return False
    return weight.shape[1] <= _MOST_COLUMNS and (bias is None or bias.dtype == weight.dtype)


VECTOR = VectorKind()
