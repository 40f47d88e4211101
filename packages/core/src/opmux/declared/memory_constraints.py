"""Constraints on how tensors lie in memory: strides, alignment, span, the blocks of scales."""

from dataclasses import dataclass
from typing import ClassVar

from opmux.declared.call import Call
from opmux.declared.constraints import Constraint
from opmux.declared.features import Feature, tensor_source
from opmux.declared.functions import ALIGNED, HAS_BLOCKS, SPAN
from opmux.errors import PluginError
from opmux.signatures.signature import Signature


class _OfLayout(Constraint):
    _what: ClassVar[str]
    _source: ClassVar[str]
    _otherwise: ClassVar[str]

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.arguments))})"

    def features(self, signature: Signature) -> tuple[Feature, ...]:
        return tuple(
            Feature(self._what.format(a), tensor_source(signature, a, self._source, absent="True"))
            for a in self.arguments
        )

    def check(self, call: Call) -> str | None:
        for argument in self.arguments:
            if not call.features[self._what.format(argument)]:
                return self._otherwise.format(argument, list(call.tensors[argument].stride()))
        return None


class Contiguous(_OfLayout):
    """The tensors are contiguous."""

    _what, _source, _otherwise = "contiguous({})", "{}.is_contiguous()", "{} is not contiguous: strides {}"


class UnitStride(_OfLayout):
    """The last dim of the tensors has stride 1 (or size 1)."""

    _what = "unit_stride({})"
    _source = "({0}.stride()[-1] == 1 or {0}.size(-1) <= 1)"
    _otherwise = "the last stride of {} is not 1: strides {}"


@dataclass(frozen=True)
class Aligned(Constraint):
    """The tensor's address, and every stride but a unit one, is a multiple of ``bytes``."""

    argument: str
    bytes: int = 16

    def features(self, signature: Signature) -> tuple[Feature, ...]:
        if not isinstance(self.bytes, int) or self.bytes < 1:
            raise PluginError(f"{self!r} has no meaning: bytes is a positive whole number, as 16")
        read = f"{ALIGNED}({{}}, {self.bytes})"
        return (
            Feature(f"aligned({self.argument}, {self.bytes})", tensor_source(signature, self.argument, read, "True")),
        )

    def check(self, call: Call) -> str | None:
        return None if self._read(call) else f"{self.argument} is not aligned to {self.bytes} bytes"


@dataclass(frozen=True)
class MaxNumel(Constraint):
    """The tensor spans at most ``bound`` elements, gaps between its strides included: the reach of 32-bit indices."""

    argument: str
    bound: int = 2**31 - 1

    def features(self, signature: Signature) -> tuple[Feature, ...]:
        read = f"{SPAN}({{}}) <= {self.bound}"
        return (
            Feature(f"span({self.argument}) <= {self.bound}", tensor_source(signature, self.argument, read, "True")),
        )

    def check(self, call: Call) -> str | None:
        return None if self._read(call) else f"{self.argument} spans more than {self.bound} elements"


@dataclass(frozen=True)
class ScaleBlock(Constraint):
    """The scale of a tensor has one value per ``block`` (-1: the whole dim). Where two blocks coincide, both hold."""

    argument: str
    block: tuple[int, ...]
    scale: str = ""

    def features(self, signature: Signature) -> tuple[Feature, ...]:
        scale = self.scale or f"{self.argument}_scale"
        tensor_source(signature, self.argument, "")
        read = f"{HAS_BLOCKS}({self.argument}, {{}}, {self.block!r})"
        return (Feature(f"blocks({scale}) = {self.block}", tensor_source(signature, scale, read, "False")),)

    def check(self, call: Call) -> str | None:
        scale = self.scale or f"{self.argument}_scale"
        if self._read(call):
            return None
        given = call.tensors[scale]
        shape = "absent" if given is None else list(given.shape)
        return f"{scale} is {shape}, takes one scale per {list(self.block)} block of {self.argument}"
