"""Mixtures of experts that store their weights together: named in the report, and left as they are."""

import inspect
from collections.abc import Iterable

from torch import nn

from opmux_transformers.kinds.kind import Kind
from opmux_transformers.survey import Survey


def holds_experts(module: nn.Module) -> bool:
    """Whether a module holds several matrices in one tensor, and names experts.

    Convolutions and some attentions also hold tensors of three dims, but have no attribute or parameter that names
    experts.
    """
    if not any(p is not None and p.ndim == 3 and min(p.shape) > 1 for p in module._parameters.values()):
        return False
    return any("expert" in name for name in (*vars(module), *inspect.signature(type(module).forward).parameters))


class ExpertsKind(Kind[None]):
    """Mixtures of experts, which are never replaced."""

    name = "experts"

    def find(self, survey: Survey) -> Iterable[str]:
        """Modules that hold several matrices in one tensor."""
        return (path for path, module in survey.modules.items() if holds_experts(module))

    def judge(self, survey: Survey, path: str) -> str:
        """Left, always."""
        return "a mixture of experts holds its weights together; only dense MLPs are replaced"


EXPERTS = ExpertsKind()
