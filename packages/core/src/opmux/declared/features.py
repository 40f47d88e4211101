"""Features: what an implementation reads of a call. A plan serves all calls whose features are equal.

A feature is written out as source into its op's key, so that a call costs only what somebody registered asked for.
In that source, dims, options and tensor arguments are plain names; a star dim is read as its product.
"""

from dataclasses import dataclass

from opmux.errors import PluginError
from opmux.signatures.signature import Signature


@dataclass(frozen=True)
class Feature:
    """One element of a plan key.

    Attributes:
        label: how explain and a config function name it: ``k % 128 == 0``, ``bucket(m)``.
        source: the expression that computes it.
    """

    label: str
    source: str


def size_source(signature: Signature, name: str) -> str:
    """The source that reads a dim (a star dim as its product) or an option.

    Raises:
        PluginError: where the op has neither.
    """
    if name in signature.binders:
        return f"_prod({name})" if name in signature.stars else name
    if any(option.name == name for option in signature.options):
        return name
    known = [*signature.binders, *(o.name for o in signature.options)]
    raise PluginError(f"{signature.name} has no dim or option `{name}`; it has {', '.join(known)}")


def tensor_source(signature: Signature, name: str, read: str, absent: str = "None") -> str:
    """The source that reads something of a tensor argument; ``absent`` stands for a missing optional one.

    Raises:
        PluginError: where the op has no such tensor.
    """
    for tensor in signature.tensors:
        if tensor.name == name:
            expression = read.format(name)
            return f"({absent} if {name} is None else {expression})" if tensor.optional else expression
    known = ", ".join(t.name for t in signature.tensors)
    raise PluginError(f"{signature.name} has no tensor argument `{name}`; it has {known}")


class FeatureRule:
    """Something an implementation lists under ``features=``: it yields one `Feature` for an op."""

    def feature(self, signature: Signature) -> Feature:
        """The feature for this op.

        Raises:
            PluginError: where the op lacks the dim, option or tensor.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Exact(FeatureRule):
    """The very value of a dim or option: a plan for each."""

    name: str

    def feature(self, signature: Signature) -> Feature:
        return Feature(self.name, size_source(signature, self.name))


@dataclass(frozen=True)
class Bucket(FeatureRule):
    """The exponent of a dim rounded up to a power of two: 7 for 65 to 128, 0 for 1. An empty dim counts as 2."""

    name: str

    def feature(self, signature: Signature) -> Feature:
        size = size_source(signature, self.name)
        return Feature(f"bucket({self.name})", f"({size} - 1).bit_length()")


@dataclass(frozen=True)
class StrideOrder(FeatureRule):
    """The dims of a tensor from the largest stride to the smallest, as a tuple of positions."""

    name: str

    def feature(self, signature: Signature) -> Feature:
        return Feature(f"stride_order({self.name})", tensor_source(signature, self.name, "_stride_order({}.stride())"))


@dataclass(frozen=True)
class Alignment(FeatureRule):
    """The largest power of two up to 16 that divides a tensor's address in bytes."""

    name: str

    def feature(self, signature: Signature) -> Feature:
        read = "({0}.data_ptr() | 16) & -({0}.data_ptr() | 16)"
        return Feature(f"alignment({self.name})", tensor_source(signature, self.name, read))


def stride_order(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Positions of the dims by falling stride."""
    return tuple(sorted(range(len(strides)), key=lambda position: -strides[position]))
