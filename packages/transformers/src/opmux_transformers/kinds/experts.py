"""Mixtures of experts that hold their weights together: named in the report, and left as they are."""

from collections.abc import Iterable

from torch import nn

from opmux_transformers.kinds.kind import Kind
from opmux_transformers.survey import Survey


def holds_experts(module: nn.Module) -> bool:
    """Whether a module holds the matrices of several experts in one tensor: two tensors or more of as many matrices."""
    tensors = [p for p in module._parameters.values() if p is not None and p.ndim == 3 and min(p.shape) > 1]
    return len(tensors) > 1 and len({p.shape[0] for p in tensors}) == 1


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
