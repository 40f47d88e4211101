"""Modules that make cos and sin: if all layers that use them are replaced, the tables are halved once for all."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from opmux_transformers.foreign import mark
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.kinds.rope import ROPE
from opmux_transformers.kinds.rotation import Layout
from opmux_transformers.probe import is_candidate, strangers
from opmux_transformers.survey import Survey
from opmux_transformers.undo import Patch


class RopeTablesKind(Kind[Layout]):
    """The cos and sin of all layers; a finding is how they hold their angles."""

    name = "rope tables"

    def find(self, survey: Survey) -> Iterable[str]:
        """Modules whose cos and sin an attention uses; complex tables hold every angle once already."""
        return (path for path, tables in survey.tables.items() if not tables.is_complex and _users(survey, path))

    def judge(self, survey: Survey, path: str) -> Layout | str:
        """Halve them if only replaced rotations read them."""
        turning, users = survey.found(ROPE), _users(survey, path)
        layouts = {turning[user].layout for user in users if user in turning}
        if len(layouts) != 1 or not all(user in turning for user in users) or strangers(survey):
            return "not every layer that uses them was replaced"
        return layouts.pop()

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Give each a forward that halves the result of its own."""
        for path, layout in survey.found(self).items():
            maker = survey.modules[path]
            patch.set(maker, "forward", halving(maker, layout).__get__(maker), self.name)

    def op(self, finding: Layout) -> str:
        """No op of its own."""
        return "halved once"


def _users(survey: Survey, path: str) -> list[str]:
    """The attention modules that rotate by these tables, or may."""
    tables = survey.tables[path]
    return [p for p, module in survey.modules.items() if is_candidate(module) and survey.tables_of(p) == tables]


def halving(module: nn.Module, layout: Layout) -> Callable[..., tuple[Tensor, Tensor]]:
    """The forward of a module that makes tables, with its result halved and widened once for all layers."""
    own = type(module).forward

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        cos, sin = own(self, *args, **kwargs)
        return layout.once(cos).float().contiguous(), layout.once(sin).float().contiguous()

    return mark(forward)


ROPE_TABLES = RopeTablesKind()
