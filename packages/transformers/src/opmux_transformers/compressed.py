"""Linears that compressed-tensors has quantised, and the hook by which the library decompresses a model.

A linear of the library's is torch's own class with a ``quantization_scheme``, a ``quantization_status``, and a forward
of its own, which rounds the input and then computes an ordinary product. While the weight is compressed, that forward
cannot multiply it: a hook of the model replaces all codes by floating-point numbers before its first call. So what such
a linear computes is what it computes once the library has decompressed it, and a patch that multiplies the codes has to
keep the hook from running. Only the library's own objects are read; it is imported by whoever made the model.
"""

import importlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

LIBRARY = "compressed_tensors"
HOOK = "ct_decompress_hook"
"""The attribute of a model that holds the handle of the library's hook."""
SUSPENDED = "_opmux_suspended"
"""The attribute of a model that holds its `Suspended` hook."""
INT8_STEP = 254 / 255
"""The library's step of dynamic int8 activations over opmux's.

It divides the largest magnitude of a row by 127.5 and cuts codes off at 127; opmux divides it by 127. Values that are
whole multiples of the latter get the same codes from both.
"""
FLOAT8 = torch.float8_e4m3fn
"""The library's only 8-bit float."""
_DECOMPRESSED = "decompressed"
_COMPRESSED = "compressed"


def _text(value: Any) -> str:
    """An enumeration of strings, or a string."""
    return str(getattr(value, "value", value))


def scheme_of(module: nn.Module) -> Any:
    """The scheme by which the library has quantised a module; None if it has not."""
    scheme = vars(module).get("quantization_scheme")
    return scheme if type(scheme).__module__.partition(".")[0] == LIBRARY else None


def is_compressed(module: nn.Module) -> bool:
    """Whether the library holds a module's weight in its compressed form."""
    return _text(vars(module).get("quantization_status")) == _COMPRESSED


def is_decompressed(module: nn.Module) -> bool:
    """Whether the library has replaced a module's codes by floating-point numbers."""
    return _text(vars(module).get("quantization_status")) == _DECOMPRESSED


def is_exact(module: nn.Module) -> bool:
    """Whether a module rounds nothing, as in a check."""
    return vars(module).get("quantization_enabled", True) is not True


def has_own_forward(module: nn.Module) -> bool:
    """Whether a module's forward is the one that the library gave it."""
    function = getattr(vars(module).get("forward"), "__func__", None)
    home = str(getattr(function, "__globals__", {}).get("__name__", ""))
    return scheme_of(module) is not None and home.startswith(f"{LIBRARY}.quantization.")


def waits(module: nn.Module) -> bool:
    """Whether a module computes nothing before the library has decompressed it."""
    return is_compressed(module) and has_own_forward(module)


def flaw_of(module: nn.Module) -> str | None:
    """Why opmux has no product for a linear that the library has quantised; None if it may have one."""
    scheme = scheme_of(module)
    weights, inputs, outputs = scheme.weights, scheme.input_activations, scheme.output_activations
    if weights is None:
        return "its scheme does not quantise its weight"
    if weights.num_bits != 8:
        return f"its weight has {weights.num_bits} bits"
    if not weights.symmetric:
        return "its weight has zero points (an asymmetric scheme)"
    if (shared := _text(weights.strategy)) not in ("tensor", "channel", "block"):
        return f"its weight has scales of {_names(weights)}" + (", not of channels" if shared == "group" else "")
    if inputs is None:
        return "its input is not quantised: it multiplies in 16 bits"
    return _flaw_of_input(weights, inputs, outputs) or _flaw_of_state(module)


def _flaw_of_input(weights: Any, inputs: Any, outputs: Any) -> str | None:
    if (_text(inputs.type), inputs.num_bits) != (_text(weights.type), weights.num_bits):
        own, other = (f"{_text(args.type)}{args.num_bits}" for args in (inputs, weights))
        return f"its input is rounded to {own}, and its weight is {other}"
    if not inputs.symmetric:
        return "its input has zero points (an asymmetric scheme)"
    if outputs is not None:
        return "its output is quantised too"
    if inputs.dynamic is False:
        return None
    shared = _text(inputs.strategy)
    if inputs.dynamic is not True or shared not in ("token", "group") or inputs.group_size not in (None, 128):
        return f"its input has dynamic scales of {_names(inputs)}, not of tokens or groups of 128"
    return None


def _flaw_of_state(module: nn.Module) -> str | None:
    """Why the state of a linear hinders a product of its codes."""
    if is_exact(module):
        return "its quantisation is switched off (quantization_enabled)"
    if is_decompressed(module):
        return "its weight was decompressed by the model's first call; patch a model before it is called"
    if not is_compressed(module):
        return f"its weight is not compressed yet (quantization_status {_text(vars(module)['quantization_status'])})"
    if not has_own_forward(module) or type(module._parameters) is not dict:
        return "its weight is offloaded, or its forward is not the one that the library gave it"
    return None


def activations_of(module: nn.Module, static: bool) -> str | None:
    """Which values of the input of a linear without flaws share a scale: a name of `opmux.nn.QuantizedLinear`.

    Args:
        module: The linear.
        static: Whether it has a scale for its input. None is returned where its scheme names one that is not there.
    """
    inputs = scheme_of(module).input_activations
    if inputs.dynamic is False:
        return "static" if static else None
    return "block" if _text(inputs.strategy) == "group" else "token"


def _names(args: Any) -> str:
    shared = _text(args.strategy)
    return f"groups of {args.group_size}" if shared == "group" else f"the strategy {shared!r}"


def quantizes_attention(module: nn.Module) -> bool:
    """Whether the library rounds what an attention module attends to: keys and values, and perhaps queries."""
    return scheme_of(module) is not None and hasattr(module, "kv_cache")


def decompress(module: Any) -> None:
    """Decompress one module as the library does, in place; its rounding of the input stays on."""
    library = importlib.import_module(f"{LIBRARY}.compressors")
    vars(module)["quantization_enabled"] = True
    library.decompress_module(module)


def remedy() -> str:
    """How a model whose scheme opmux lacks is loaded so that the rest of it can be replaced.

    Older versions of transformers have the library decompress it after loading, which wraps all of its modules.
    """
    home = importlib.import_module("transformers.quantizers.quantizer_compressed_tensors")
    if "get_load_operations" in vars(home.CompressedTensorsHfQuantizer):
        return "load it with CompressedTensorsConfig(dequantize=True) to have the others replaced"
    return "transformers 5.23 can load it with CompressedTensorsConfig(dequantize=True) to have the others replaced"


@dataclass(eq=False)
class Suspended:
    """The library's hook, which a patch has taken from a model.

    Attributes:
        key: Its key among the model's hooks.
        hook: The function.
        place: How many hooks stood before it.
    """

    key: int
    hook: Any
    place: int

    def with_it(self, model: nn.Module) -> OrderedDict[int, Any]:
        """A model's hooks, with this one again, unless the library has removed it since or has set another one."""
        handle, held = vars(model).get(HOOK), list(model._forward_pre_hooks.items())
        if handle is not None and handle.id == self.key and self.key not in model._forward_pre_hooks:
            held.insert(min(self.place, len(held)), (self.key, self.hook))
        return OrderedDict(held)

    def put_back(self, model: nn.Module) -> None:
        """Put the hook back in place: handles of other hooks refer to the model's own dictionary."""
        held, hooks = self.with_it(model), model._forward_pre_hooks
        hooks.clear()
        hooks.update(held)


def has_hook(model: nn.Module) -> bool:
    """Whether the library's hook will run at a model's next call."""
    handle = vars(model).get(HOOK)
    return handle is not None and handle.id in model._forward_pre_hooks


def unsuspended(module: nn.Module) -> dict[str, Any]:
    """What to change in a module's attributes to have its suspended hook again; nothing if it has none."""
    taken = vars(module).get(SUSPENDED)
    return {} if taken is None else {"_forward_pre_hooks": taken.with_it(module)}


def suspend(model: nn.Module) -> Suspended | None:
    """Take the library's hook from a model; None if it has none."""
    if not has_hook(model):
        return None
    key, hooks = vars(model)[HOOK].id, model._forward_pre_hooks
    place = list(hooks).index(key)
    return Suspended(key, hooks.pop(key), place)
