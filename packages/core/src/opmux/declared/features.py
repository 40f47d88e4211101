"""Features: what an implementation reads of a call. A plan serves all calls whose features are equal.

A feature is source code in its op's key, so a call pays only for the features that some implementation registered.
In that source, dims, options and tensor arguments are plain names; a star dim is read as its product. The functions
that it calls are those of `opmux.declared.functions`.
"""

from dataclasses import dataclass

from opmux.declared.functions import PRODUCT, STRIDE_ORDER, last_name, shift_name
from opmux.errors import PluginError
from opmux.signatures.signature import Signature


@dataclass(frozen=True)
class Feature:
    """One element of a plan key.

    Attributes:
        label: its name in explain and for config functions: ``k % 128 == 0``, ``bucket(m)``.
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
        return f"{PRODUCT}({name})" if name in signature.stars else name
    if any(option.name == name for option in signature.options):
        return name
    known = [*signature.binders, *(o.name for o in signature.options)]
    raise PluginError(f"{signature.name} has no dim or option `{name}`; it has {', '.join(known)}")


def tensor_source(signature: Signature, name: str, read: str, absent: str = "None") -> str:
    """The source that reads a property of a tensor argument; ``absent`` is its value for an absent optional one.

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
    """An entry of an implementation's ``features=``: it yields one `Feature` for an op."""

    def feature(self, signature: Signature) -> Feature:
        """The feature for this op.

        Raises:
            PluginError: where the op lacks the dim, option or tensor.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Exact(FeatureRule):
    """The exact value of a dim or option: one plan for each value."""

    name: str

    def feature(self, signature: Signature) -> Feature:
        return Feature(self.name, size_source(signature, self.name))


@dataclass(frozen=True)
class Bucket(FeatureRule):
    """A dim rounded up to steps, so that similar sizes share plans.

    With one step per octave, the exponent of the dim rounded up to a power of two: 7 for 65 to 128, 0 for 1. An empty
    dim counts as 2. With more, the dim rounded up to the end of its step: with ``per_octave=8`` 80 for 73 to 80, and
    288 for 257 to 288. Such steps show the waves of tiles that an octave hides.
    """

    name: str
    per_octave: int = 1

    def feature(self, signature: Signature) -> Feature:
        size, steps = size_source(signature, self.name), self.per_octave
        if not isinstance(steps, int) or steps < 1 or steps & (steps - 1):
            raise PluginError(f"Bucket({self.name!r}, per_octave={steps!r}): per_octave is a power of two, as 4")
        if steps == 1:
            return Feature(f"bucket({self.name})", f"({size} - 1).bit_length()")
        # Variables of its own in the generated code, so that a star dim's product is computed once.
        last, shift = last_name(self.name), shift_name(self.name)
        read = f"({last} := {size} - 1) >> ({shift} := max({last}.bit_length() - {steps.bit_length()}, 0))"
        return Feature(f"bucket({self.name}, {steps})", f"(({read}) + 1 << {shift})")


@dataclass(frozen=True)
class StrideOrder(FeatureRule):
    """The dims of a tensor from the largest stride to the smallest, as a tuple of positions."""

    name: str

    def feature(self, signature: Signature) -> Feature:
        return Feature(
            f"stride_order({self.name})", tensor_source(signature, self.name, f"{STRIDE_ORDER}({{}}.stride())")
        )


@dataclass(frozen=True)
class Alignment(FeatureRule):
    """The largest power of two up to 16 that divides a tensor's address in bytes."""

    name: str

    def feature(self, signature: Signature) -> Feature:
        read = "({0}.data_ptr() | 16) & -({0}.data_ptr() | 16)"
        return Feature(f"alignment({self.name})", tensor_source(signature, self.name, read))
