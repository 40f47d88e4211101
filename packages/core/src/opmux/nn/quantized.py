"""The linear layer with an 8-bit weight, whose input is quantised too."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

import opmux
from opmux.dtypes import name_of
from opmux.errors import invalid
from opmux.nn.autocast import autocast_dtype
from opmux.nn.linear import backend_repr
from opmux.nn.quantizable import PLAIN, PLAIN_DTYPES, PLAIN_NAMES, check_blocks, check_input_scale, codes_dtype, flaw_of
from opmux.nn.quantized_product import (
    ACTIVATIONS,
    WEIGHTS,
    StraightThrough,
    quantize_rows,
    quantized_product,
    scale_shape,
)
from opmux.nn.sizes import check_sizes, check_tensors

_FIXED = ("weight", "weight_scale", "input_scale")
"""Parameters that keep their dtype when the module is cast."""


class QuantizedLinear(nn.Module):
    """A linear layer whose weight is stored in 8 bits, and whose input is quantised to them at each call.

    ``y = scaled_linear(q, weight, scale, weight_scale, bias)`` with ``q, scale = quantize(x)``: products of codes are
    accumulated in float32, times both scales, and rounded once, to x's dtype (or autocast's, under autocast).

    Weight, scales and bias are fixed: they require no gradient. The gradient of x passes through its quantisation
    unchanged, so adapters beside the layer and layers before it can be trained. Casting the module (``.to(dtype)``,
    ``.half()``) casts the bias alone.

    The state dict holds ``weight``, ``weight_scale``, ``bias`` and, for static activations, ``input_scale``. A weight
    of 16 bits or more without scales, as `torch.nn.Linear` saves it, is quantised when it is loaded.

    Args:
        in_features: The size of x's last dim.
        out_features: The size of y's last dim.
        bias: Whether there is a bias.
        device: The device of the weights.
        dtype: The dtype of the bias.
        codes: The dtype of the codes of weight and input: ``"fp8"`` for the device's own 8-bit float (e4m3),
            ``"int8"``, or a dtype.
        activations: Which values of x share a scale: those of a ``"token"``, or of a ``"block"`` of 128 in a row,
            computed at each call; ``"static"``, all of them, by the scale ``input_scale``.
        weights: Which values of the weight share a scale: ``"channel"``, an output feature; ``"block"``, 128x128;
            ``"tensor"``, all.
        backend: Passed to the ops.

    Raises:
        InvalidArgument: If a size is not a positive whole number, or codes, activations or weights are none of those
            above.

    Source:
        DeepSeek-AI, "DeepSeek-V3 Technical Report", section 3.3, 2024, https://arxiv.org/abs/2412.19437; per token and
        channel: Dettmers et al., "LLM.int8()", 2022, https://arxiv.org/abs/2208.07339.
    """

    weight: nn.Parameter
    weight_scale: nn.Parameter
    bias: nn.Parameter | None
    input_scale: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        codes: torch.dtype | str = "fp8",
        activations: str = "token",
        weights: str = "channel",
        backend: str | None = None,
    ) -> None:
        super().__init__()
        check_sizes("QuantizedLinear", in_features=in_features, out_features=out_features)
        check_blocks("QuantizedLinear", activations, weights)
        self.in_features, self.out_features = in_features, out_features
        self.activations, self.weights, self.backend = activations, weights, backend
        device = torch.get_default_device() if device is None else torch.device(device)
        stored = codes_dtype("QuantizedLinear", codes, device)
        scales = scale_shape(out_features, in_features, WEIGHTS[weights])
        self.weight = _fixed(torch.empty(out_features, in_features, dtype=stored, device=device))
        self.weight_scale = _fixed(torch.empty(scales, dtype=torch.float32, device=device))
        static = torch.empty(1, 1, dtype=torch.float32, device=device) if activations == "static" else None
        self.register_parameter("input_scale", None if static is None else _fixed(static))
        own_bias = torch.empty(out_features, dtype=dtype, device=device) if bias else None
        self.register_parameter("bias", None if own_bias is None else _fixed(own_bias))
        self.reset_parameters()

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        codes: torch.dtype | str = "fp8",
        activations: str = "token",
        weights: str = "channel",
        input_scale: float | None = None,
        backend: str | None = None,
    ) -> Self:
        """Quantise a linear layer, which is left as it is; a bias is shared with it.

        Args:
            linear: The layer.
            codes: As in the constructor.
            activations: As in the constructor.
            weights: As in the constructor.
            input_scale: The scale of static activations: the largest magnitude of the layer's input over the largest
                value that is stored (448 for float8_e4m3fn, 127 for int8).
            backend: As in the constructor.

        Raises:
            InvalidArgument: If linear is no `torch.nn.Linear`, its weight is on the meta device, is not of a dtype that
                `opmux.quantize` takes, or holds NaN or infinity, static activations have no positive scale, a scale is
                given to others, or as for the constructor.
        """
        if not isinstance(linear, nn.Linear):
            got = type(linear).__name__
            raise invalid("QuantizedLinear", "linear", "a torch.nn.Linear", got, "pass the layer to quantise")
        weight = linear.weight.detach()
        if weight.is_meta:
            remedy = "load its weight first"
            raise invalid("QuantizedLinear", "linear", "a weight with values", "one on the meta device", remedy)
        if (flaw := flaw_of(weight)) is not None:
            raise invalid("QuantizedLinear", "linear", PLAIN, flaw, "repair its weight")
        check_blocks("QuantizedLinear", activations, weights)
        check_input_scale(activations, input_scale)
        codes = codes_dtype("QuantizedLinear", codes, weight.device)
        made = cls(
            linear.in_features, linear.out_features, linear.bias is not None, "meta",
            codes=codes, activations=activations, weights=weights, backend=backend,
        )  # fmt: skip
        made._fill(weight)
        if input_scale is not None:
            made.input_scale = _fixed(torch.full((1, 1), input_scale, dtype=torch.float32, device=weight.device))
        if linear.bias is not None:
            made.bias = _fixed(linear.bias.detach())
        return made.train(linear.training)

    def reset_parameters(self) -> None:
        """Start with the values of a new `torch.nn.Linear`, quantised; a static scale is 1."""
        if self.weight.is_meta:
            return
        fresh = nn.Linear(self.in_features, self.out_features, self.bias is not None, device=self.weight.device)
        self._fill(fresh.weight.detach())
        if self.bias is not None:
            self.bias.data.copy_(fresh.bias.detach())
        if self.input_scale is not None:
            self.input_scale.data.fill_(1.0)

    def forward(self, input: Tensor) -> Tensor:  # torch's name
        """Compute ``input (*tokens, in_features)`` -> ``(*tokens, out_features)``.

        Raises:
            InvalidArgument: If input is no tensor, or has another last dim.
        """
        x = input
        if not isinstance(x, Tensor) or x.shape[-1:] != (self.in_features,):
            check_tensors("QuantizedLinear", input=x)
            raise invalid(
                "QuantizedLinear", "input", f"a last dim of in_features = {self.in_features}", f"shape {list(x.shape)}",
                "make the layer for this size",
            )  # fmt: skip
        rows, out_dtype = x.reshape(-1, self.in_features), autocast_dtype(x) or x.dtype
        if torch.is_grad_enabled() and x.requires_grad:
            out = StraightThrough.apply(  # type: ignore[no-untyped-call]
                rows, None, self.weight, self.weight_scale, self.input_scale, self.bias,
                (self.activations, out_dtype, self.backend),
            )  # fmt: skip
        else:
            q, scale = quantize_rows(rows, self.weight.dtype, self.activations, self.input_scale, self.backend)
            out = quantized_product(q, scale, self.weight, self.weight_scale, self.bias, out_dtype, self.backend)
        result: Tensor = out.view(*x.shape[:-1], self.out_features)
        return result

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Quantise rows ``(m, in_features)``: codes and scales, for `product` of this layer and of like ones.

        Raises:
            InvalidArgument: If x is no tensor of that shape.
        """
        self._check_rows("x", x)
        return quantize_rows(x, self.weight.dtype, self.activations, self.input_scale, self.backend)

    def product(self, q: Tensor, scale: Tensor, out_dtype: torch.dtype) -> Tensor:
        """The result for rows that are quantised already, as by `quantize` or `opmux.rms_norm_quantize`.

        Args:
            q: The codes, ``(m, in_features)``, in the weight's dtype.
            scale: Their scales, float32: ``(m, 1)``, ``(m, ceil(in_features / 128))`` or ``(1, 1)``.
            out_dtype: The dtype of the result.

        Returns:
            ``(m, out_features)`` in out_dtype. There is no gradient.

        Raises:
            InvalidArgument: If q or scale is no tensor of such a shape and dtype.
        """
        self._check_rows("q", q)
        check_tensors("QuantizedLinear", scale=scale)
        if q.dtype != self.weight.dtype:
            remedy = "quantise the rows with dtype= of the weight"
            raise invalid("QuantizedLinear", "q", f"dtype {name_of(self.weight.dtype)}", name_of(q.dtype), remedy)
        if scale.dtype != torch.float32:
            remedy = "give the scales as opmux.quantize returns them; opmux.unpack_scale unpacks others"
            raise invalid("QuantizedLinear", "scale", "dtype float32", name_of(scale.dtype), remedy)
        allowed = [scale_shape(len(q), self.in_features, block) for block in ACTIVATIONS.values()]
        if tuple(scale.shape) not in allowed:
            raise invalid(
                "QuantizedLinear", "scale",
                f"shape {' or '.join(str(list(shape)) for shape in dict.fromkeys(allowed))}", str(list(scale.shape)),
                "quantise the rows with the block (1, -1), (1, 128) or (-1, -1)",
            )  # fmt: skip
        return quantized_product(q, scale, self.weight, self.weight_scale, self.bias, out_dtype, self.backend)

    def dequantized(self, dtype: torch.dtype = torch.float32) -> nn.Linear:
        """A `torch.nn.Linear` with the stored values, as a reference: it differs in that x is not quantised.

        Raises:
            InvalidArgument: If dtype is no floating-point dtype of 16 bits or more.
        """
        if dtype not in PLAIN_DTYPES:
            got = name_of(dtype) if isinstance(dtype, torch.dtype) else repr(dtype)
            raise invalid("QuantizedLinear", "dtype", PLAIN_NAMES, got, "choose one of them for the stored values")
        made = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta", dtype=dtype)
        made.weight = nn.Parameter(opmux.dequantize(self.weight, self.weight_scale, out_dtype=dtype))
        if self.bias is not None:
            made.bias = nn.Parameter(self.bias.detach().to(dtype, copy=True))
        return made.train(self.training)

    def _check_rows(self, name: str, rows: Tensor) -> None:
        check_tensors("QuantizedLinear", **{name: rows})
        if rows.ndim != 2 or rows.shape[1] != self.in_features:
            expected, got = f"shape (m, {self.in_features})", str(list(rows.shape))
            flat = f"flatten the leading dims with .reshape(-1, {self.in_features})"
            remedy = flat if rows.shape[-1:] == (self.in_features,) else "make the layer for this size"
            raise invalid("QuantizedLinear", name, expected, got, remedy)

    def _fill(self, weight: Tensor) -> None:
        q, scale = opmux.quantize(weight, dtype=self.weight.dtype, block=WEIGHTS[self.weights])
        if self.weight.is_meta:
            self.weight, self.weight_scale = _fixed(q), _fixed(scale)
        else:
            self.weight.data.copy_(q)
            self.weight_scale.data.copy_(scale)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Codes and scales move, and keep their dtype."""
        kept = [self._parameters.get(name) for name in _FIXED]

        def moved(tensor: Tensor) -> Tensor:
            found = fn(tensor)
            fixed = any(tensor is one for one in kept) and found.dtype != tensor.dtype
            return tensor.to(found.device) if fixed else found

        return super()._apply(moved, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        _, _, errors = lists
        weight, scale = state_dict.get(f"{prefix}weight"), state_dict.get(f"{prefix}weight_scale")
        for name in ("weight_scale", "input_scale"):
            one, own = state_dict.get(f"{prefix}{name}"), self._parameters.get(name)
            if isinstance(one, Tensor) and own is not None and one.ndim < 2 and one.numel() == own.numel():
                state_dict[f"{prefix}{name}"] = one.reshape(own.shape)  # others save it without dims of 1
        if isinstance(weight, Tensor) and weight.shape == self.weight.shape and weight.dtype != self.weight.dtype:
            got = name_of(weight.dtype)
            if weight.element_size() > 1 and weight.is_floating_point() and scale is None:
                flaw = None if weight.is_meta else flaw_of(weight)
                if flaw is not None:
                    remedy = "repair the checkpoint"
                    errors.append(str(invalid("QuantizedLinear", f"{prefix}weight", PLAIN, flaw, remedy)))
                    return
                q, found = opmux.quantize(weight.detach(), dtype=self.weight.dtype, block=WEIGHTS[self.weights])
                state_dict[f"{prefix}weight"], state_dict[f"{prefix}weight_scale"] = q, found
            else:
                remedy = "make the layer with codes= of this dtype; opmux.convert_fp8 converts between flavours of fp8"
                expected = f"dtype {name_of(self.weight.dtype)}"
                errors.append(str(invalid("QuantizedLinear", f"{prefix}weight", expected, got, remedy)))
                return
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *lists)

    def extra_repr(self) -> str:
        shown = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        blocks = f", codes={name_of(self.weight.dtype)}, activations={self.activations!r}, weights={self.weights!r}"
        return shown + blocks + backend_repr(self.backend)


def _fixed(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)
