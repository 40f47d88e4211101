"""Patching a family by name: every model of it that is loaded or constructed afterwards.

Three methods of the family's base class are overridden: ``from_pretrained``, after which a loaded model is patched, and
``__init__`` and ``post_init``, which mark the begin and end of construction. Of nested models, the outermost is
patched. Models on the meta device are patched after ``from_pretrained``.
"""

import threading
import weakref
from typing import Any

import transformers
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

from opmux.errors import InvalidArgument, invalid
from opmux_transformers.configs import FAMILIES, canonical
from opmux_transformers.patching import patch_model
from opmux_transformers.reporting import Report
from opmux_transformers.undo import options_apart, state_of
from opmux_transformers.versions import check_transformers

_METHODS = ("__init__", "post_init", "from_pretrained")


class _Patched:
    """A family whose later models are patched."""

    def __init__(self, base: type[PreTrainedModel], options: dict[str, Any], report: Report) -> None:
        self.base, self.options, self.report = base, options, report


_families: dict[str, _Patched] = {}
_under_construction = threading.local()


def base_class(name: str) -> type[PreTrainedModel]:
    """The class that all models of a family inherit from.

    Raises:
        InvalidArgument: if transformers has no such family.
    """
    known = modeling_auto.MODEL_MAPPING_NAMES
    class_name = known.get(canonical(name))
    if not isinstance(class_name, str) and "/" in name:
        raise InvalidArgument(
            f"opmux_transformers.patch: `model` expected a model or the name of a family, got {name!r}, which looks"
            ' like a place of weights; load them and pass the model, or name its family before, as "llama"'
        )
    if not isinstance(class_name, str):
        raise InvalidArgument(
            f"opmux_transformers.patch: `model` expected the name of a family, got {name!r};"
            f" tested are {', '.join(FAMILIES)}, and any other model_type of transformers may be named"
        )
    cls: Any = getattr(transformers, class_name)
    inherited = [c for c in cls.__mro__ if c.__module__ == cls.__module__ and issubclass(c, PreTrainedModel)]
    base: type[PreTrainedModel] = inherited[-1]
    return base


def patch_family(name: str, options: dict[str, Any]) -> Report:
    """Patch every model of a family that is loaded or constructed from now on."""
    check_transformers()
    base, name = base_class(name), canonical(name)
    if (before := _families.get(name)) is not None:
        if before.options == options:
            return before.report
        expected, got = options_apart(before.options, options)
        raise invalid(
            "opmux_transformers.patch", "model", f"the options that the family {name} is patched with ({expected})",
            got, f'unpatch("{name}") first, or leave the options as they were',
        )  # fmt: skip
    report = Report(base.__name__, name, transformers.__version__)
    report.notes.append(
        "models of this family that are loaded or made from now on are patched; report(model) says how. One made on the"
        " meta device is patched when from_pretrained has loaded it; fill it by hand, and call patch(model)"
    )
    family = _Patched(base, options, report)
    for method, function in _overrides(family).items():
        setattr(base, method, function)
    _families[name] = family
    return report


def unpatch_family(name: str) -> Report:
    """Stop patching the family's later models."""
    family = _families.pop(canonical(name), None)
    if family is None:
        raise InvalidArgument(
            f'opmux_transformers.unpatch: `model` names the family {name}, which patch("{name}") has not patched'
        )
    for method in _METHODS:
        delattr(family.base, method)
    family.report.active = False
    return family.report


def _overrides(family: _Patched) -> dict[str, Any]:
    """The methods of the base class; each calls the one that it overrides."""
    base: Any = family.base
    hidden = {name: vars(base)[name] for name in _METHODS if name in vars(base)}
    if hidden:
        raise InvalidArgument(
            f"opmux_transformers.patch: `model` names a family whose {base.__name__} has its own"
            f" {', '.join(sorted(hidden))}; patch its models one by one"
        )

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        _begun().append(weakref.ref(self))
        super(base, self).__init__(*args, **kwargs)

    def post_init(self: Any) -> None:
        super(base, self).post_init()
        begun = _begun()
        while begun and begun.pop()() is not self:
            pass
        if not begun:
            _patch_unless_meta(self, family.options)

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = super(base, cls).from_pretrained(*args, **kwargs)
        _patch_unless_meta(loaded[0] if isinstance(loaded, tuple) else loaded, family.options)
        return loaded

    return {"__init__": begin, "post_init": post_init, "from_pretrained": classmethod(from_pretrained)}


def _begun() -> list[Any]:
    """The models under construction in this thread, the outermost first."""
    models = getattr(_under_construction, "models", [])
    _under_construction.models = [model for model in models if model() is not None]
    return _under_construction.models  # type: ignore[no-any-return]


def _patch_unless_meta(model: Any, options: dict[str, Any]) -> None:
    if state_of(model) is None and not any(p.is_meta for p in model.parameters()):
        patch_model(model, options)
