"""Dim expressions of shaped annotations: parsed once, evaluated on numbers, and written as source.

The grammar is a subset of jaxtyping's notation: a name, an integer, an affine form of one
name (``2*n``, ``batch+1``), an option's value in braces (``{block[0]}``), ``a/b``, which means ceil(a / b), and
``a|b``, which is either of the two. A block of -1 is the whole dim. One leading ``*name`` stands for any number of
dims.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_AFFINE = re.compile(r"^(?:(?P<coefficient>\d+)\*)?(?P<name>[a-z_]\w*)(?P<offset>[+-]\d+)?$")
_OPTION = re.compile(r"^\{(?P<name>[a-z_]\w*)(?:\[(?P<index>\d+)\])?\}$")


@dataclass(frozen=True)
class Affine:
    """``coefficient * name + offset``; without a name, the integer ``offset``."""

    name: str | None
    coefficient: int = 1
    offset: int = 0

    @property
    def is_bare(self) -> bool:
        return self.name is not None and self.coefficient == 1 and self.offset == 0

    def value(self, dims: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        return self.offset if self.name is None else self.coefficient * dims[self.name] + self.offset

    def source(self) -> str:
        if self.name is None:
            return str(self.offset)
        text = self.name if self.coefficient == 1 else f"{self.coefficient} * {self.name}"
        return text if self.offset == 0 else f"({text} + {self.offset})"


@dataclass(frozen=True)
class OptionValue:
    """``{name}`` or ``{name[index]}``: the value of an integer option."""

    name: str
    index: int | None = None

    def value(self, dims: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        value = options[self.name]
        return value if self.index is None else value[self.index]

    def source(self) -> str:
        return self.name if self.index is None else f"{self.name}[{self.index}]"


@dataclass(frozen=True)
class CeilQuotient:
    """``numerator / denominator``, rounded up; a denominator of -1 is the whole dim, so the quotient is 1."""

    numerator: Affine
    denominator: Affine | OptionValue

    def value(self, dims: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        whole = self.numerator.value(dims, options)
        block = self.denominator.value(dims, options)
        return whole and 1 if block == -1 else -(-whole // block)

    def source(self) -> str:
        whole, block = self.numerator.source(), self.denominator.source()
        if isinstance(self.denominator, Affine):
            return f"-(-{whole} // {block})"
        return f"((1 if {whole} else 0) if {block} == -1 else -(-{whole} // {block}))"


@dataclass(frozen=True)
class Either:
    """``first|second``: a tensor may have either size there; no dim is bound by it."""

    first: Affine
    second: Affine

    def value(self, dims: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        return self.first.value(dims, options)

    def source(self) -> str:
        return self.first.source()


Dim = Affine | OptionValue | CeilQuotient | Either


@dataclass(frozen=True)
class Shape:
    """A tensor's shape: an optional leading ``*star`` and the dims after it."""

    text: str
    star: str | None
    dims: tuple[Dim, ...]

    def value(self, dims: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Any, ...]:
        """The concrete shape, given the bound dims (a star's value is a tuple) and the options."""
        leading = tuple(dims[self.star]) if self.star else ()
        return leading + tuple(dim.value(dims, options) for dim in self.dims)

    @property
    def alternatives(self) -> tuple["Shape", ...]:
        """The shapes without a choice: one, or two where a dim is ``a|b``: all of the first, then of the second."""
        if not any(isinstance(dim, Either) for dim in self.dims):
            return (self,)
        return tuple(
            Shape(self.text, self.star, tuple(getattr(d, side) if isinstance(d, Either) else d for d in self.dims))
            for side in ("first", "second")
        )

    def names(self) -> Iterable[str]:
        if self.star:
            yield self.star
        for dim in self.dims:
            parts = (dim.first, dim.second) if isinstance(dim, Either) else (dim,)
            for part in parts:
                affine = part.numerator if isinstance(part, CeilQuotient) else part
                if isinstance(affine, Affine) and affine.name is not None:
                    yield affine.name


def parse_dim(text: str) -> Dim:
    """Parse one dim expression.

    Raises:
        ValueError: where the text does not match the grammar.
    """
    if "|" in text:
        first, second = (parse_dim(part) for part in text.split("|", 1))
        if isinstance(first, Affine) and isinstance(second, Affine):
            return Either(first, second)
    elif "/" in text:
        numerator, _, denominator = text.partition("/")
        top, bottom = parse_dim(numerator), parse_dim(denominator)
        integer = isinstance(bottom, Affine) and bottom.name is None and bottom.offset > 0
        if (
            isinstance(top, Affine)
            and not isinstance(bottom, (CeilQuotient, Either))
            and (integer or isinstance(bottom, OptionValue))
        ):
            return CeilQuotient(top, bottom)
    elif text.isdigit():
        return Affine(None, 0, int(text))
    elif match := _AFFINE.match(text):
        return Affine(match["name"], int(match["coefficient"] or 1), int(match["offset"] or 0))
    elif match := _OPTION.match(text):
        return OptionValue(match["name"], int(match["index"]) if match["index"] else None)
    raise ValueError(f"dim {text!r} is not a name, an integer, `2*n`, `n+1`, `{{option}}`, `a/b` or `a|b`")


def parse_shape(text: str) -> Shape:
    """Parse the dims of an annotation, such as ``"*tokens hidden"``."""
    words = text.split()
    star = None
    if words and words[0].startswith("*"):
        star = words.pop(0)[1:]
    return Shape(text, star, tuple(parse_dim(word) for word in words))
