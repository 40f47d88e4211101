"""Constraints: what must hold of a call for an implementation to take it, as data.

From this data come the plan key, the reasons in explain, and the docs table. A constraint's verdict depends only on
the features it declares, so one verdict holds for every call of a plan; its reason may quote the call in question.
"""

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from opmux.declared.call import Call
from opmux.declared.features import Feature, FeatureRule, size_source, tensor_source
from opmux.dtypes import name_of
from opmux.errors import PLUGIN_FAULTS, PluginError
from opmux.signatures.signature import Signature


class Constraint:
    """Something that must hold of a call for an implementation to take it."""

    def features(self, signature: Signature) -> tuple[Feature, ...]:
        """What it reads, beyond dtypes, presence and flags, which every key holds.

        Raises:
            PluginError: where it names an argument that the op does not have.
        """
        return ()

    def check(self, call: Call) -> str | None:
        """The reason why it does not hold, or None."""
        raise NotImplementedError

    def _read(self, call: Call) -> Any:
        """The value of the one feature of a constraint that has one.

        Its label is kept with the signature that it was made for: to make it again would be a third of a plan miss.
        """
        kept = self.__dict__.get("_kept_label")
        if kept is None or kept[0] is not call.signature:
            kept = self.__dict__["_kept_label"] = (call.signature, self.features(call.signature)[0].label)
        return call.features[kept[1]]


@dataclass(frozen=True)
class _OfTensor(Constraint):
    argument: str

    def features(self, signature: Signature) -> tuple[Feature, ...]:
        tensor_source(signature, self.argument, "")
        return ()


_OTHER_FLAVOUR = {
    "float8_e4m3fn": "float8_e4m3fnuz", "float8_e4m3fnuz": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2fnuz", "float8_e5m2fnuz": "float8_e5m2",
}  # fmt: skip
"""The same format in the flavour of other archs."""


class Dtype(Constraint):
    """The tensor argument (or dtype option) has one of these dtypes, by name."""

    def __init__(self, argument: str, *dtypes: str) -> None:
        self.argument, self.dtypes = argument, dtypes

    def __repr__(self) -> str:
        return f"Dtype({self.argument!r}, {', '.join(map(repr, self.dtypes))})"

    def features(self, signature: Signature) -> tuple[Feature, ...]:
        if not any(o.name == self.argument and o.kind == "dtype" for o in signature.options):
            tensor_source(signature, self.argument, "")
        unknown = [
            d for d in self.dtypes if not isinstance(d, str) or not isinstance(getattr(torch, d, None), torch.dtype)
        ]
        if unknown:
            raise PluginError(f"{unknown} are not names of dtypes of torch {torch.__version__}, as 'float32'")
        return ()

    def check(self, call: Call) -> str | None:
        value = call.options.get(self.argument, call.tensors.get(self.argument))
        if value is None:
            return None
        given = name_of(value if isinstance(value, torch.dtype) else value.dtype)
        if given in self.dtypes:
            return None
        other = _OTHER_FLAVOUR.get(given)
        remedy = ": convert it by opmux.convert_fp8" if other in self.dtypes and self.argument in call.tensors else ""
        return f"{self.argument} is {given}, takes {', '.join(self.dtypes)}{remedy}"


class SameDtype(Constraint):
    """The tensor arguments that are present have one dtype."""

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments

    def __repr__(self) -> str:
        return f"SameDtype({', '.join(map(repr, self.arguments))})"

    def features(self, signature: Signature) -> tuple[Feature, ...]:
        for argument in self.arguments:
            tensor_source(signature, argument, "")
        return ()

    def check(self, call: Call) -> str | None:
        given = {n: name_of(t.dtype) for n in self.arguments if (t := call.tensors[n]) is not None}
        if len(set(given.values())) <= 1:
            return None
        return "dtypes differ: " + ", ".join(f"{n} {d}" for n, d in given.items())


@dataclass(frozen=True)
class Present(_OfTensor):
    """The optional tensor is given."""

    def check(self, call: Call) -> str | None:
        return f"{self.argument} is absent" if call.tensors[self.argument] is None else None


@dataclass(frozen=True)
class Absent(_OfTensor):
    """The optional tensor is not given."""

    def check(self, call: Call) -> str | None:
        return None if call.tensors[self.argument] is None else f"{self.argument} is not supported"


@dataclass(frozen=True)
class _OfSize(Constraint):
    name: str
    bound: int | str
    _relation: ClassVar[str]
    _otherwise: ClassVar[str]

    def features(self, signature: Signature) -> tuple[Feature, ...]:
        named = isinstance(self.bound, str) and self.bound != self.name
        if not named and (not isinstance(self.bound, (int, float)) or self.bound != self.bound):
            raise PluginError(f"{type(self).__name__}({self.name!r}, {self.bound!r}) has no meaning")
        if self._refuses(self.bound):
            raise PluginError(f"{type(self).__name__}({self.name!r}, {self.bound!r}) has no meaning")
        read = size_source(signature, self.name)
        bound = size_source(signature, self.bound) if isinstance(self.bound, str) else self.bound
        given = f"{read} is not None and " if any(o.name == self.name and o.nullable for o in signature.options) else ""
        label = f"{self.name} {self._relation.format(self.bound)}"
        return (Feature(label, f"({given}{read} {self._relation.format(bound)})"),)

    @staticmethod
    def _refuses(bound: float | str) -> bool:
        return not isinstance(bound, str) and math.isinf(bound)

    def check(self, call: Call) -> str | None:
        if self._read(call):
            return None
        bound = f"{self.bound} = {call.size(self.bound)}" if isinstance(self.bound, str) else self.bound
        return f"{self.name} = {call.size(self.name)} {self._otherwise.format(bound)}"


class MultipleOf(_OfSize):
    """The dim (or int option) is a multiple of ``bound``."""

    _relation, _otherwise = "% {} == 0", "is not a multiple of {}"

    @staticmethod
    def _refuses(bound: float | str) -> bool:
        return not isinstance(bound, int) or bound < 1


class AtMost(_OfSize):
    """The dim (or number option) is at most ``bound``, a number or the name of another dim."""

    _relation, _otherwise = "<= {}", "is more than {}"


class AtLeast(_OfSize):
    """The dim (or number option) is at least ``bound``, a number or the name of another dim."""

    _relation, _otherwise = ">= {}", "is less than {}"


class OneOf(Constraint):
    """The dim or option has one of these values."""

    def __init__(self, name: str, *values: Any) -> None:
        self.name, self.values = name, values

    def __repr__(self) -> str:
        return f"OneOf({self.name!r}, {', '.join(map(repr, self.values))})"

    def features(self, signature: Signature) -> tuple[Feature, ...]:
        try:
            written = ast.literal_eval(repr(self.values))
        except (ValueError, SyntaxError):
            written = None
        if written != self.values or not self.values or any(isinstance(v, (list, dict, set)) for v in self.values):
            raise PluginError(
                f"OneOf({self.name!r}, ...) takes plain numbers, strings, bools and tuples, got {self.values!r}"
            )
        label = f"{self.name} in {self.values!r}"
        return (Feature(label, f"{size_source(signature, self.name)} in {self.values!r}"),)

    def check(self, call: Call) -> str | None:
        if self._read(call):
            return None
        return f"{self.name} = {call.size(self.name)!r} is not {' or '.join(map(repr, self.values))}"


@dataclass(frozen=True)
class Equal(Constraint):
    """Two dims (or options) have equal values; a star dim counts as the product of its sizes."""

    first: str
    second: str

    def features(self, signature: Signature) -> tuple[Feature, ...]:
        if self.first == self.second:
            raise PluginError(f"Equal({self.first!r}, {self.second!r}) always holds: name two dims or options")
        read = f"({size_source(signature, self.first)} == {size_source(signature, self.second)})"
        return (Feature(f"{self.first} == {self.second}", read),)

    def check(self, call: Call) -> str | None:
        if self._read(call):
            return None
        return f"{self.first} = {call.size(self.first)} is not equal to {self.second} = {call.size(self.second)}"


class AnyOf(Constraint):
    """At least one of these constraints holds: ``AnyOf(OneOf("causal", False), Equal("seq_q", "seq_k"))``."""

    JOINT: ClassVar[str] = ", and "
    """What stands between the reasons in a refusal."""

    def __init__(self, *constraints: Constraint) -> None:
        self.constraints = constraints

    def __repr__(self) -> str:
        return f"AnyOf({', '.join(map(repr, self.constraints))})"

    def features(self, signature: Signature) -> tuple[Feature, ...]:
        if len(self.constraints) < 2:
            raise PluginError(f"{self!r} has no meaning: name two constraints or more")
        return tuple(feature for constraint in self.constraints for feature in constraint.features(signature))

    def check(self, call: Call) -> str | None:
        reasons = []
        for constraint in self.constraints:
            reason = refusal(constraint, call)
            if reason is None:
                return None
            reasons.append(reason)
        return self.JOINT.join(reasons)


@dataclass(frozen=True)
class Predicate(Constraint):
    """For what data cannot say: a function of the declared features that returns a reason (str) or None.

    Anything else that it returns, and anything that it raises, counts as a refusal, whose reason names the function.
    """

    function: Callable[[Mapping[str, Any]], str | None]
    reads: tuple[FeatureRule, ...]

    def features(self, signature: Signature) -> tuple[Feature, ...]:
        if not callable(self.function):
            raise PluginError(f"predicate {self.function!r} is not a function")
        if not isinstance(self.reads, tuple) or not all(isinstance(rule, FeatureRule) for rule in self.reads):
            raise PluginError(
                f"predicate {self.name} has reads={self.reads!r}, expected a tuple, as (Exact('hidden'),)"
            )
        return tuple(rule.feature(signature) for rule in self.reads)

    @property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.function, "__name__", self.function))

    def check(self, call: Call) -> str | None:
        labels = [f.label for f in self.features(call.signature)]
        return self.function({label: call.features[label] for label in labels})


def called(constraint: Constraint) -> str:
    """What a constraint is called where it fails instead of judging."""
    return f"predicate {constraint.name}" if isinstance(constraint, Predicate) else type(constraint).__name__


def refusal(constraint: Constraint, call: Call) -> str | None:
    """Why a constraint does not hold of a call, or None where it holds.

    `Constraint.check` may be a plugin's code: an exception in it, and an answer that is neither a str nor None, are
    refusals that name the constraint, so that neither choosing nor explaining can fail on it.
    """
    try:
        reason: Any = constraint.check(call)
    except PLUGIN_FAULTS as error:
        return f"{called(constraint)} raised {type(error).__name__}: {error}"
    if reason is None or isinstance(reason, str):
        return reason
    return f"{called(constraint)} returned {reason!r}, expected None where the call is taken, else the reason as a str"


def is_failure(constraint: Constraint, reason: str) -> bool:
    """Whether a reason that `refusal` gave is a failure of the constraint itself, or of one in it, not its verdict."""
    if isinstance(constraint, AnyOf):
        parts = reason.split(AnyOf.JOINT)
        return any(is_failure(inner, part) for inner in constraint.constraints for part in parts)
    return reason.startswith((f"{called(constraint)} raised ", f"{called(constraint)} returned "))
