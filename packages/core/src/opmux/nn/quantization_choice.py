"""Which linear layers of a model are quantised, and why the others are left."""

import dis
import inspect
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from torch import nn

from opmux.nn.linear import Linear
from opmux.nn.quantizable import flaw_of
from opmux.nn.quantized import QuantizedLinear

_HEAD = "the head: its rounding reaches the logits at once, and it is read once for each token"
_ROUTER = "a router: a rounded score may send a token to another expert"

DEFAULT_SKIP: dict[str, str] = {
    "*lm_head": _HEAD,
    "*lm_head.*": _HEAD,
    "*embed_out": _HEAD,
    "*score": _HEAD,
    "*classifier": _HEAD,
    "*router*": _ROUTER,
    "gate": _ROUTER,
    "*.gate": _ROUTER,
    "*.shared_expert_gate": "a router: a rounded score may weigh an expert otherwise",
}
"""What `quantize_` leaves alone unless told otherwise: patterns of paths -> the reason. ``"*lm_head"`` also stands for
what the model's ``get_output_embeddings()`` returns, if it has this method."""


AS_TORCH = "_opmux_as_torch"
"""Attribute of a function that may be set on a linear as its forward, and computes what torch's own does."""


@dataclass
class Found:
    """A linear layer: where it is, and why it is left."""

    linear: nn.Linear
    shape: tuple[int, int]
    places: list[tuple[nn.Module, str, str]] = field(default_factory=list)
    """The modules that hold it, under which name, and its path there."""
    reason: str | None = None
    made: QuantizedLinear | None = None

    @property
    def path(self) -> str:
        return self.places[0][2]


def judged(model: nn.Module, skip: Mapping[str, str] | Sequence[str]) -> list[Found]:
    """All linear layers with the reason to leave them, by identity."""
    found: dict[int, Found] = {}
    for path, holder in model.named_modules(remove_duplicate=False):
        for name, child in holder._modules.items():
            if isinstance(child, nn.Linear):
                one = found.setdefault(id(child), Found(child, (child.out_features, child.in_features)))
                if all(place[0] is not holder or place[1] != name for place in one.places):
                    one.places.append((holder, name, f"{path}.{name}".lstrip(".")))
    reasons = skip if isinstance(skip, Mapping) else dict.fromkeys(skip, "")
    head = getattr(model, "get_output_embeddings", lambda: None)()
    for one in found.values():
        one.reason = reason_to_leave(one.linear, [path for _, _, path in one.places], reasons)
        if one.reason is None and "*lm_head" in reasons and one.linear is head:
            one.reason = f"{_HEAD} (get_output_embeddings() returns it)"
        reader = next((holder for holder, name, _ in one.places if _reads_weight(holder, name)), None)
        if one.reason is None and reader is not None:
            one.reason = f"the forward of {type(reader).__name__} reads its weight"
    names: dict[int, str] = {}
    for path, module in model.named_modules():
        for name, tensor in itertools.chain(module._parameters.items(), module._buffers.items()):
            if tensor is not None:
                one_of = found.get(id(module))
                if one_of is None or one_of.reason is not None:
                    names[id(tensor)] = f"{path}.{name}".lstrip(".")
    for one in found.values():
        other = names.get(id(one.linear._parameters.get("weight")))
        if one.reason is None and other is not None:
            one.reason = f"its weight is shared with {other}, which is not converted"
    return [*found.values()]


def other_weights(model: nn.Module, taken: Collection[nn.Module] = ()) -> list[str]:
    """Notes on matrices of modules that are no linear layers of torch's, as GPT-2's Conv1D or the experts of a mixture.

    Embeddings are looked up in and not multiplied by, so they are not named.

    Args:
        model: The model.
        taken: Modules whose weights are quantised in another way.
    """
    found: dict[str, tuple[int, int]] = {}
    for module in model.modules():
        if isinstance(module, (nn.Linear, QuantizedLinear, nn.Embedding)) or module in taken:
            continue
        for parameter in module._parameters.values():
            if parameter is None or parameter.ndim < 2 or not parameter.is_floating_point():
                continue
            if parameter.element_size() > 1:  # others have codes already
                count, size = found.get(type(module).__name__, (0, 0))
                found[type(module).__name__] = count + 1, size + parameter.numel() * parameter.element_size()
    return [
        f"{count} weight{'s' * (count > 1)} of {name} ({size / 2**20:.1f} MiB) "
        f"stay{'s' * (count == 1)} as {'they are' if count > 1 else 'it is'}: only torch's linear layers are converted"
        for name, (count, size) in found.items()
    ]


def reason_to_leave(linear: nn.Linear, paths: Sequence[str], skip: Mapping[str, str]) -> str | None:
    """Why a layer is left, apart from what it shares; None if nothing speaks against it.

    Args:
        linear: The layer.
        paths: Its paths in the model.
        skip: Patterns of paths, with a reason each, which may be empty.
    """
    for pattern, reason in skip.items():
        if any(fnmatchcase(path, pattern) for path in paths):
            return f"{reason} (it matches {pattern!r})" if reason else f"it matches {pattern!r}"
    if type(linear) not in (nn.Linear, Linear):
        return f"its class is {type(linear).__name__}, which may compute something else"
    if linear._parameters.get("weight") is None:
        return "its weight is computed before each call"
    forward = vars(linear).get("forward")
    if forward is not None and not getattr(forward, AS_TORCH, False):
        return "its forward was replaced"
    hooks = (linear._forward_hooks, linear._forward_pre_hooks, linear._backward_hooks, linear._backward_pre_hooks)
    if any(hooks):
        return "it has hooks, which would not move along"
    if linear.weight.is_meta:
        return "its weight is on the meta device: load it first"
    flaw = flaw_of(linear.weight)
    return None if flaw is None else f"its weight has {flaw}"


def _reads_weight(holder: nn.Module, name: str) -> bool:
    """Whether the forward of a module's class reads the weight of a layer that it holds, which would find codes.

    What its instructions show is that ``.weight`` follows the layer's name, or that the layer gets another name first.
    """
    code = getattr(inspect.unwrap(type(holder).forward), "__code__", None)
    if code is None or name not in code.co_names or "weight" not in code.co_names:
        return False
    return any(
        first.opname == "LOAD_ATTR"
        and first.argval == name
        and (second.argval == "weight" or second.opname.startswith("STORE_"))
        for first, second in itertools.pairwise(dis.get_instructions(code))
    )
