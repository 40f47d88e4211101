"""The interface of a kind: one thing that a patch looks for in a model, and replaces."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from opmux_transformers.survey import Survey
from opmux_transformers.undo import Patch

F = TypeVar("F")
"""What a kind finds out about a module."""


class Kind(ABC, Generic[F]):
    """One kind of replacement; ``F`` is what it finds out about a module.

    A kind holds no state: its findings are in the `Survey`, its changes in the `Patch`. `find` and `judge` of all kinds
    run first, in the order of `KINDS`, and change nothing; then `replace` of each, then `report`. `undo` runs in
    reverse order.
    """

    name: str
    """The name of the kind in a report's rows."""

    option: str | None = None
    """The argument of `patch` that switches it off; None if there is none."""

    at_once: bool = False
    """Whether its modules are replaced as soon as they are judged, so that later kinds find them replaced."""

    @abstractmethod
    def find(self, survey: Survey) -> Iterable[str]:
        """The paths of the modules that may be of this kind."""

    @abstractmethod
    def judge(self, survey: Survey, path: str) -> F | str | None:
        """The finding for a module, the reason to leave it, or None if it is not of this kind after all.

        Called once for each path that `find` returned, unless another library has replaced the module's class.
        """

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Change the modules in `Survey.found` of this kind, by `Patch.set` under its name; by default, do nothing."""

    def undo(self, patch: Patch) -> None:
        """Put back what `replace` changed."""
        patch.put_back(self.name)

    def op(self, finding: F) -> str:
        """The ops that compute a replaced module, for its row."""
        return ""

    def note(self, finding: F) -> str:
        """A remark for its row."""
        return ""

    def report(self, survey: Survey, patch: Patch) -> None:
        """Add a row for every module that was judged, and notes on the model as a whole."""
        found = survey.found(self)
        for path, result in survey.results[self.name].items():
            class_name = type(survey.modules[path]).__name__
            if path in found:
                patch.report.add(self.name, path, self.op(found[path]), self.note(found[path]), class_name)
            elif result is not None:
                reason = result if isinstance(result, str) else f"not asked for: {self.option}=False"
                patch.report.add(self.name, path, reason=reason, class_name=class_name)
