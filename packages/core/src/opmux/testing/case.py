"""A case: one call of an op, fully described by its id.

The id reads ``bf16,weight=f32,tokens=3x5,hidden=77,eps=0.1,@view=gapped``: the dtype of the first tensor, other
dtypes that are not the usual ones, the dims, the options that are not defaults, and how the case is run. It contains
no character that is special to a shell or to Python in double quotes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from opmux.callpath.op import OPS, Op
from opmux.dtypes import SHORT_NAMES, short_name_of
from opmux.errors import InvalidArgument
from opmux.signatures.signature import Option, Signature, TensorArgument

VALUES = "values"
PLAIN = "plain"
NORMAL = "normal"
ONE_SCALE = "one_scale"
"""Contents of a case whose scales have the second of the shapes that they may have: one scale for all heads."""


@dataclass(frozen=True)
class Case:
    """One call of an op.

    Attributes:
        dtypes: the dtype of each tensor that is given; a missing optional tensor is absent.
        dims: the size of each dim; a tuple for a leading ``*name``.
        options: the options that are not defaults, and those that have no default.
        view: how the tensors lie in memory (`opmux.testing.memory.VIEWS`).
        data: what is special about their contents; each probe and each input maker defines its own words.
        probe: what is checked (`opmux.testing.probes.PROBES`).
    """

    op: str
    dtypes: Mapping[str, torch.dtype]
    dims: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    view: str = PLAIN
    data: str = NORMAL
    probe: str = VALUES

    @property
    def definition(self) -> Op:
        """The op itself.

        Raises:
            InvalidArgument: If there is no op of that name.
        """
        return op_named(self.op)

    @property
    def id(self) -> str:
        """The text that `parse_case` reads."""
        signature = self.definition.signature
        first = signature.tensors[0]
        lead = self.dtypes[first.name]
        parts = [short_name_of(lead)]
        scaled = {scale: name for name, scale in signature.scales.items()}
        for tensor in signature.tensors[1:]:
            given = self.dtypes.get(tensor.name)
            if given is None and tensor.name in scaled and self.dtypes[scaled[tensor.name]].itemsize > 1:
                continue  # only codes have a scale
            if given is None:
                parts.append(f"{tensor.name}=none")
            elif given != usual_dtype(tensor, lead):
                parts.append(f"{tensor.name}={short_name_of(given)}")
        parts += [f"{name}={_size_text(self.dims[name])}" for name in signature.binders]
        parts += [f"{o.name}={_option_text(self.options[o.name])}" for o in signature.options if o.name in self.options]
        usual = {"view": PLAIN, "data": NORMAL, "probe": VALUES}
        parts += [f"@{name}={getattr(self, name)}" for name in usual if getattr(self, name) != usual[name]]
        return ",".join(parts)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor that is given."""
        signature = self.definition.signature
        filled = {o.name: self.options.get(o.name, o.default) for o in signature.options}
        which = -1 if self.data == ONE_SCALE else 0
        return {
            t.name: t.shape.alternatives[which].value(self.dims, filled)
            for t in signature.tensors
            if t.name in self.dtypes
        }


def probe_of(case_id: str) -> str:
    """The probe of the case with this id."""
    return case_id.rpartition("@probe=")[2] if "@probe=" in case_id else VALUES


def op_named(name: str) -> Op:
    """The op of that name.

    Raises:
        InvalidArgument: If there is none.
    """
    if name not in OPS:
        raise InvalidArgument(f"conformance: `ops` expected names of ops, got {name!r}; see `opmux ops` for the ops")
    return OPS[name]


def usual_dtype(tensor: TensorArgument, lead: torch.dtype) -> torch.dtype:
    """The default dtype of a tensor, given that of the first tensor."""
    if len(tensor.dtypes) == 1:
        return next(iter(tensor.dtypes))
    if lead in tensor.dtypes:
        return lead
    for fallback in (torch.float32, torch.int32):
        if fallback in tensor.dtypes:
            return fallback
    return sorted(tensor.dtypes, key=str)[0]


def without_idle_scales(signature: Signature, found: Mapping[str, torch.dtype]) -> dict[str, torch.dtype]:
    """The dtypes of tensors, without those of scales of tensors that hold no 8-bit codes."""
    idle = {s for name, s in signature.scales.items() if name not in found or found[name].itemsize > 1}
    return {name: dtype for name, dtype in found.items() if name not in idle}


def _size_text(size: Any) -> str:
    if isinstance(size, tuple):
        return "x".join(map(str, size)) or "-"
    return str(size)


def _option_text(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return short_name_of(value)
    if isinstance(value, tuple):
        return "x".join(_option_text(v) for v in value)
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def parse_case(op: str, text: str) -> Case:
    """Read a case's id.

    Raises:
        InvalidArgument: If the op does not exist or the text is no id of a case of it.
    """
    signature = op_named(op).signature
    first, *parts = text.split(",")
    try:
        lead = _dtype(first)
        dtypes = {signature.tensors[0].name: lead} | {t.name: usual_dtype(t, lead) for t in signature.tensors[1:]}
        dims: dict[str, Any] = {}
        options: dict[str, Any] = {}
        ways: dict[str, str] = {}
        for part in parts:
            name, _, value = part.partition("=")
            if name.startswith("@") and name[1:] in ("view", "data", "probe"):
                ways[name[1:]] = value
            elif name in signature.binders:
                dims[name] = _size(value, name in signature.stars)
            elif any(o.name == name for o in signature.options):
                options[name] = _option_value(next(o for o in signature.options if o.name == name), value)
            elif value == "none" and signature.tensor(name).optional:
                del dtypes[name]
            else:
                dtypes[signature.tensor(name).name] = _dtype(value)
        missing = [name for name in signature.binders if name not in dims]
        if missing:
            raise ValueError(f"it does not say {', '.join(missing)}")
    except (ValueError, StopIteration, KeyError, AttributeError) as error:
        raise InvalidArgument(
            f"{op}: `case` expected the id of a conformance case, got {text!r} ({error}); "
            "take it from a report, or from opmux.testing.cases_of"
        ) from None
    return Case(op, without_idle_scales(signature, dtypes), dims, options, **ways)


def _dtype(text: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, SHORT_NAMES.get(text, text))
    return dtype


def _size(text: str, star: bool) -> Any:
    if star:
        return () if text == "-" else tuple(int(part) for part in text.split("x"))
    return int(text)


def _option_value(option: Option, text: str) -> Any:
    if text == "none" and option.nullable:
        return None
    match option.kind:
        case "float":
            return float(text)
        case "int":
            return int(text)
        case "bool":
            return _truth(text)
        case "dtype":
            return _dtype(text)
        case "ints":
            return tuple(int(part) for part in text.split("x"))
        case "bools":
            return tuple(_truth(part) for part in text.split("x"))
    return text


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text == "true"


def all_options(signature: Signature, case: Case) -> dict[str, Any]:
    """Every option of a case's call, defaults filled in; those without a value are omitted."""
    filled = {o.name: o.default for o in signature.options if not o.required}
    return filled | dict(case.options)
