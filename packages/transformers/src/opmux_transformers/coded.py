"""Linear layers whose weight is stored in 8 bits: how one stores its codes, and the forward that multiplies them.

In a check of what lies around such a layer, the layer gets a random weight of full precision and computes an ordinary
product: rounding to 8 bits would turn the last bits of its input into visible differences.
"""

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import opmux
from opmux.nn import Linear, QuantizedLinear, autocast_dtype
from opmux.nn.quantized_product import StraightThrough, quantize_rows, quantized_product
from opmux_transformers.carried import carried
from opmux_transformers.compressed import FLOAT8, is_decompressed, is_exact
from opmux_transformers.foreign import mark

OWN = "_opmux_own_forward"
"""Attribute of a linear that another library may take back: the forward that this library gave it."""
SCALE = "_opmux_scale"
"""Attribute of a linear whose scales have 16 bits: its `KeptScale`, which holds them in float32."""
PLACE = "_opmux_place"
"""Attribute of a linear with a part of a joint weight: which of them it is."""
CODES = "_opmux_codes"
"""Attribute of a forward that multiplies codes: its `Codes`."""


@dataclass(frozen=True)
class Codes:
    """How a linear stores its codes.

    Attributes:
        scale: The attribute that holds the weight's scales.
        input_scale: The attribute that holds the scale of static activations; empty if they are dynamic.
        activations: Which values of the input share a scale: a name of `opmux.nn.QuantizedLinear`.
        casts: Whether its result has autocast's dtype; else it has the input's.
    """

    scale: str
    input_scale: str
    activations: str
    casts: bool = False

    def of_weight(self, module: nn.Module) -> tuple[Tensor, Tensor, Tensor | None]:
        """The codes of a module's weight, their scales, and its bias."""
        return tensor_of(module, "weight"), matrix(tensor_of(module, self.scale)), _bias_of(module)

    def stored(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        """The codes and their scales as the module holds them."""
        return tensor_of(module, "weight"), tensor_of(module, self.scale)

    def take(self, module: nn.Module, weight: Tensor, scale: Tensor) -> None:
        """Hold equal codes and scales that lie elsewhere."""
        own, own_scale = self.stored(module)
        own.data, own_scale.data = weight, scale

    def of_input(self, module: nn.Module) -> Tensor | None:
        """The scale of static activations, ``(1, 1)``."""
        return matrix(tensor_of(module, self.input_scale)) if self.input_scale else None

    def dtype(self, module: nn.Module) -> torch.dtype:
        """The dtype of the codes."""
        return tensor_of(module, "weight").dtype

    def casts_now(self, module: nn.Module) -> bool:
        """Whether its result has another dtype than its input at the moment."""
        return self.casts and torch.is_autocast_enabled(tensor_of(module, "weight").device.type)

    def original(self, module: nn.Module) -> Tensor | None:
        """The parameter that the codes were made of; None if the codes are all there is."""
        return None

    def product(self, module: nn.Module, q: Tensor, scale: Tensor, out_dtype: torch.dtype) -> Tensor:
        """The module's result for rows that are quantised already."""
        weight, weight_scale, bias = self.of_weight(module)
        return quantized_product(q, scale, weight, weight_scale, bias, out_dtype, backend_of(module))

    def of_numbers(self, module: nn.Module, input: Tensor) -> Tensor:
        """The module's result while its weight holds numbers, and no codes."""
        return functional.linear(input, tensor_of(module, "weight"), _bias_of(module))


class Kept:
    """The codes of a plain linear's weight, made again when torch says that the weight has changed.

    A write through ``.data`` does not, nor does a write to an inference tensor. The latter is quantised at each call;
    after the former, `made_again` is due. A compiled graph cannot ask: it quantises a weight that it trains, and takes
    what is kept for others.

    A weight that has taken the place of the one the codes were made of is quantised at each call too: FSDP gathers a
    sharded weight into memory of its own, and keeps the version of that memory as it was.

    Attributes:
        dtype: That of the codes.
        name: The attribute of the module that holds the weight.
        transposed: Whether the weight's rows are its inputs.
    """

    def __init__(self, dtype: torch.dtype, name: str = "weight", transposed: bool = False) -> None:
        self.dtype, self.name, self.transposed = dtype, name, transposed
        self.key: tuple[Any, ...] | None = None
        self.codes: tuple[Tensor, Tensor] | None = None
        self.made_of: weakref.ref[Tensor] | None = None

    def of(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The codes ``(*, n, k)`` and the scales ``(*, n, 1)`` of a weight."""
        key, codes = self.key, self.codes  # in this order: another thread may be writing them in the other
        if torch.compiler.is_compiling():
            trained = torch.is_grad_enabled() and weight.requires_grad
            return self._quantized(weight) if codes is None or trained else codes
        if self.made_of is not None and self.made_of() is not weight:
            self.key = self.codes = None
            return self._quantized(weight)
        return self.made_again(weight) if codes is None or key is None or key != _key(weight) else codes

    def made_again(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The same, quantised now whatever is kept."""
        key, codes = _key(weight), self._quantized(weight)
        for tensor in codes:  # a CUDA graph of a compiled model would copy them at each replay
            torch._dynamo.mark_static_address(tensor)
        self.made_of = weakref.ref(weight)
        self.codes = codes
        self.key = key
        return codes

    def __deepcopy__(self, memo: dict[int, Any]) -> "Kept":
        """One for the copy of the module, whose parameters are copied before it."""
        made, weight = self.for_replica(), None if self.made_of is None else self.made_of()
        if weight is not None and id(weight) in memo:
            made.made_again(memo[id(weight)])
        return made

    def for_replica(self) -> "Kept":
        """One for a replica of the module, whose weight may be on another device and is quantised in another thread."""
        return Kept(self.dtype, self.name, self.transposed)

    def _quantized(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        weight = weight.detach()
        return opmux.quantize(weight.mT if self.transposed else weight, dtype=self.dtype, block=(1, -1))


def _key(weight: Tensor) -> tuple[Any, ...] | None:
    """What changes with a weight; None if nothing of it would: inference tensors count no versions."""
    return None if weight.is_inference() else (weight.data_ptr(), weight.dtype, weight.device, weight._version)


@dataclass(frozen=True)
class MadeCodes(Codes):
    """Codes that are made of a plain linear's weight and kept beside it, in the attribute ``scale``."""

    def of_weight(self, module: nn.Module) -> tuple[Tensor, Tensor, Tensor | None]:
        """The codes, their scales, and the bias."""
        kept: Kept = getattr(module, self.scale)
        return *kept.of(tensor_of(module, "weight")), _bias_of(module)

    def stored(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        """The codes and their scales."""
        kept: Kept = getattr(module, self.scale)
        return kept.of(tensor_of(module, "weight"))

    def take(self, module: nn.Module, weight: Tensor, scale: Tensor) -> None:
        """Keep equal codes and scales that lie elsewhere."""
        kept: Kept = getattr(module, self.scale)
        kept.codes = weight, scale

    def dtype(self, module: nn.Module) -> torch.dtype:
        """The dtype of the codes."""
        kept: Kept = getattr(module, self.scale)
        return kept.dtype

    def original(self, module: nn.Module) -> Tensor | None:
        """The weight itself."""
        return tensor_of(module, "weight")


class KeptScale(Kept):
    """A weight's scales in float32, kept beside those of 16 bits and made again when they have changed."""

    def __init__(self, name: str) -> None:
        super().__init__(torch.float32, name)

    def for_replica(self) -> "KeptScale":
        """One for a replica of the module."""
        return KeptScale(self.name)

    def _quantized(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        scale = matrix(weight.detach())
        return scale, scale


@dataclass(frozen=True)
class CompressedCodes(Codes):
    """Codes of compressed-tensors, which the library may replace by numbers.

    Attributes:
        kept: Whether scales in float32 are kept beside the module's own, in the attribute `SCALE`.
    """

    kept: bool = False

    def of_weight(self, module: nn.Module) -> tuple[Tensor, Tensor, Tensor | None]:
        """The codes, their scales, and the bias."""
        weight, scale = self._both(module)
        if weight.element_size() > 1 and not is_exact(module) and not is_decompressed(module):
            weight = weight.to(FLOAT8)  # `model.half()` and the like have cast them; 16 bits hold every code
        return weight, scale, _bias_of(module)

    def stored(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        """The codes as the module holds them, and the scales that are multiplied."""
        return self._both(module) if self.kept else super().stored(module)

    def take(self, module: nn.Module, weight: Tensor, scale: Tensor) -> None:
        """Hold equal codes and scales that lie elsewhere."""
        if not self.kept:
            super().take(module, weight, scale)
            return
        tensor_of(module, "weight").data = weight
        module.__dict__[SCALE].codes = scale, scale

    def _both(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        scale = tensor_of(module, self.scale)
        return tensor_of(module, "weight"), module.__dict__[SCALE].of(scale)[1] if self.kept else matrix(scale)

    def of_numbers(self, module: nn.Module, input: Tensor) -> Tensor:
        """An ordinary product in a check; what the library computes, once it has decompressed the module."""
        if not is_decompressed(module):
            return super().of_numbers(module, input)
        found: Tensor = module.__dict__[OWN](input)
        return found


def tensor_of(module: nn.Module, name: str) -> Tensor:
    """A module's own tensor: ``__getattr__`` of a module takes longer than many views."""
    found = module._parameters.get(name)
    return getattr(module, name) if found is None else found


def _bias_of(module: nn.Module) -> Tensor | None:
    """A module's bias; replicas of DataParallel hold it as an attribute."""
    bias = module._parameters.get("bias")
    return getattr(module, "bias", None) if bias is None else bias


def backend_of(module: nn.Module) -> str | None:
    """The backend that a linear of opmux's asks for; None if any will do."""
    return module.backend if isinstance(module, (QuantizedLinear, Linear)) else None


def matrix(scale: Tensor) -> Tensor:
    """Scales as opmux's ops take them: float32 of two dims; a scalar is one for all, a vector one for each channel."""
    if scale.ndim != 2:
        scale = scale.reshape(-1, 1)
    return scale if scale.dtype == torch.float32 else scale.to(torch.float32)


def codes_of(module: nn.Module) -> Codes | None:
    """How a module whose forward multiplies its codes stores them; None if its forward is another."""
    function = getattr(vars(module).get("forward"), "__func__", None)
    return getattr(function, CODES, None)


@functools.cache
def forward_of(codes: Codes) -> Callable[..., Tensor]:
    """The forward that replaces such a module's own."""

    def forward(self: nn.Module, input: Tensor) -> Tensor:
        weight, scale, bias = codes.of_weight(self)
        if weight.element_size() > 1:  # in a check, or dequantised since
            return codes.of_numbers(self, input)
        ready = carried(input)
        if ready is not None and ready.parts is not None:
            part: Tensor = ready.parts[self.__dict__[PLACE]]
            return part.view(*input.shape[:-1], part.shape[-1])
        rows = input if ready is not None else input.reshape(-1, input.shape[-1])
        out_dtype = (autocast_dtype(input) if codes.casts else None) or input.dtype
        backend = backend_of(self)
        original = codes.original(self) if torch.is_grad_enabled() else None
        if torch.is_grad_enabled() and (input.requires_grad or (original is not None and original.requires_grad)):
            options = (codes.activations, out_dtype, backend)
            bias = bias.detach() if bias is not None and original is None else bias
            out: Any = StraightThrough.apply(rows, original, weight, scale, codes.of_input(self), bias, options)  # type: ignore[no-untyped-call]
        else:
            q, x_scale = (
                ready.codes
                if ready is not None
                else quantize_rows(rows, weight.dtype, codes.activations, codes.of_input(self), backend)
            )
            out = quantized_product(q, x_scale, weight, scale, bias, out_dtype, backend)
        result: Tensor = out.view(*input.shape[:-1], weight.shape[0])
        return result

    setattr(forward, CODES, codes)
    return mark(forward)
