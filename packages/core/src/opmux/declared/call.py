"""A call: one use of an op, as constraints and the resolver see it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from opmux.arch import Arch
from opmux.signatures.signature import Signature
from opmux.signatures.validation import numel


@dataclass(frozen=True)
class Call:
    """One use of an op, as constraints see it.

    Attributes:
        features: the value of every feature in the op's key, by label.
    """

    signature: Signature
    arch: Arch
    tensors: Mapping[str, Any]
    options: Mapping[str, Any]
    dims: Mapping[str, Any]
    features: Mapping[str, Any] = field(default_factory=dict)

    def size(self, name: str) -> Any:
        """A dim's size (a star dim's product) or an option's value."""
        return numel(self.dims, name) if name in self.dims else self.options[name]
