"""The weights of a mixture's experts, plain or as 8-bit codes, and their grouped products.

Both kinds prepare rows (codes quantise them), and multiply prepared rows that are sorted by expert, or that lie in each
expert's own room.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import opmux
from opmux.dtypes import name_of
from opmux.errors import invalid
from opmux.nn.quantizable import CODES
from opmux.nn.quantized_product import ACTIVATIONS
from opmux.nn.sizes import check_tensors

Prepared = tuple[Tensor, ...]
"""Rows as a product takes them: the rows themselves, or their codes and scales; the leading dims are those of rows."""


@dataclass(frozen=True)
class PlainWeights:
    """Weights of 16 bits or more.

    Attributes:
        weight: ``(experts, n, k)``.
    """

    weight: Tensor

    def prepared(self, rows: Tensor, backend: str | None) -> Prepared:
        """Rows ``(*rows, k)``, as they are."""
        return (rows,)

    def of_sorted(self, rows: Prepared, offsets: Tensor, out_dtype: torch.dtype, backend: str | None) -> Tensor:
        """The products of rows ``(m, k)`` sorted by expert: ``(m, n)``."""
        return opmux.grouped_linear(rows[0], self.weight, offsets, backend=backend)

    def of_masked(
        self, rows: Prepared, counts: Tensor, expected: int, out_dtype: torch.dtype, backend: str | None
    ) -> Tensor:
        """The products of the first ``counts`` rows of each expert, ``(experts, max_m, k)``."""
        return opmux.masked_grouped_linear(rows[0], self.weight, counts, expected_m=expected, backend=backend)

    def recorded(self, rows: Tensor, offsets: Tensor, out_dtype: torch.dtype, backend: str | None) -> Tensor:
        """`of_sorted` with a gradient, of rows that are not prepared."""
        return self.of_sorted((rows,), offsets, out_dtype, backend)


@dataclass(frozen=True)
class GroupedCodes:
    """Weights of 8 bits, in the place of a plain tensor in `mix_experts`.

    Rows are quantised at each product. The gradient of the rows passes through their quantisation unchanged, and so
    does that of ``original``; codes and scales have none.

    Attributes:
        weight: The codes, ``(experts, n, k)``.
        scale: Their scales, float32: ``(experts, 1, 1)``, ``(experts, n, 1)`` for channels, or
            ``(experts, ceil(n / 128), ceil(k / 128))``.
        activations: Which values of a row share a scale: ``"token"`` or ``"block"``, as in `QuantizedLinear`.
        original: What the codes were made of, ``(experts, n, k)``, to get its gradient; or None.

    Raises:
        InvalidArgument: If weight has no codes, scale is not of float32, shapes do not fit each other, activations name
            nothing, or one of the others is no tensor.
    """

    weight: Tensor
    scale: Tensor
    activations: str = "token"
    original: Tensor | None = None

    def __post_init__(self) -> None:
        if self.activations not in ("token", "block"):
            expected = "'token' or 'block'"
            raise invalid("GroupedCodes", "activations", expected, repr(self.activations), "choose one of them")
        check_tensors("GroupedCodes", weight=self.weight, scale=self.scale)
        if self.original is not None:
            check_tensors("GroupedCodes", original=self.original)
        if self.weight.dim() != 3:
            raise invalid("GroupedCodes", "weight", "3 dims", f"{self.weight.dim()}", "give (experts, n, k)")
        if self.weight.dtype not in CODES:
            got, remedy = name_of(self.weight.dtype), "quantise it with `opmux.quantize`"
            raise invalid("GroupedCodes", "weight", "codes of 8 bits", got, remedy)
        experts, n, k = self.weight.shape
        allowed = {(experts, 1, 1), (experts, n, 1), (experts, -(-n // 128), -(-k // 128))}
        shapes = " or ".join(map(str, sorted(allowed)))
        if tuple(self.scale.shape) not in allowed:
            raise invalid("GroupedCodes", "scale", f"shape {shapes}", f"{tuple(self.scale.shape)}", "quantise it again")
        if self.scale.dtype != torch.float32:
            got, remedy = name_of(self.scale.dtype), "give the scales as opmux.quantize returns them"
            raise invalid("GroupedCodes", "scale", "dtype float32", got, remedy)
        if self.original is not None and self.original.shape != self.weight.shape:
            got = f"{tuple(self.original.shape)}"
            raise invalid(
                "GroupedCodes", "original", f"shape {(experts, n, k)}", got, "give what the codes were made of"
            )

    def prepared(self, rows: Tensor, backend: str | None) -> Prepared:
        """The codes and the scales of rows ``(*rows, k)``."""
        q, scale = opmux.quantize(
            rows.reshape(-1, rows.shape[-1]), dtype=self.weight.dtype, block=ACTIVATIONS[self.activations],
            backend=backend,
        )  # fmt: skip
        return q.view(rows.shape), scale.view(*rows.shape[:-1], scale.shape[-1])

    def gated(self, both: Tensor, backend: str | None) -> Prepared:
        """The codes and the scales of a SwiGLU of ``(*rows, 2 * k)``, quantised in the pass that computes it."""
        q, scale = opmux.silu_and_mul_quantize(
            both.reshape(-1, both.shape[-1]), dtype=self.weight.dtype, block=ACTIVATIONS[self.activations],
            backend=backend,
        )  # fmt: skip
        return q.view(*both.shape[:-1], q.shape[-1]), scale.view(*both.shape[:-1], scale.shape[-1])

    def of_sorted(self, rows: Prepared, offsets: Tensor, out_dtype: torch.dtype, backend: str | None) -> Tensor:
        """The products of rows ``(m, k)`` sorted by expert: ``(m, n)``."""
        x_scale, scale = self._paired(rows[1])
        return opmux.scaled_grouped_linear(
            rows[0], self.weight.detach(), offsets, x_scale, scale, out_dtype=out_dtype, backend=backend
        )

    def of_masked(
        self, rows: Prepared, counts: Tensor, expected: int, out_dtype: torch.dtype, backend: str | None
    ) -> Tensor:
        """The products of the first ``counts`` rows of each expert, ``(experts, max_m, k)``."""
        x_scale, scale = self._paired(rows[1])
        return opmux.scaled_masked_grouped_linear(
            rows[0], self.weight.detach(), counts, x_scale, scale, expected_m=expected, out_dtype=out_dtype,
            backend=backend,
        )  # fmt: skip

    def recorded(self, rows: Tensor, offsets: Tensor, out_dtype: torch.dtype, backend: str | None) -> Tensor:
        """`of_sorted` with a gradient, of rows that are not prepared."""
        options = (self.activations, out_dtype, backend)
        return _StraightThrough.apply(rows, self.original, self.weight, self.scale, offsets, options)  # type: ignore[no-untyped-call, no-any-return]

    def _paired(self, x_scale: Tensor) -> tuple[Tensor, Tensor]:
        """Views of the scales that are a pair of the ops: those of the coarser one are repeated."""
        experts, n, k = self.weight.shape
        scale = self.scale.detach()
        if max(x_scale.shape[-1], scale.shape[2]) > 1:
            blocks = -(-k // 128)
            rows = n if scale.shape[1] == n else -(-n // 128)
            return x_scale.expand(*x_scale.shape[:-1], blocks), scale.expand(experts, rows, blocks)
        return x_scale, scale.expand(experts, n, 1) if scale.shape[1] == 1 else scale


class _StraightThrough(torch.autograd.Function):
    """The grouped product of quantised rows, whose gradient passes through the quantisation unchanged."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        original: Tensor | None,
        weight: Tensor,
        scale: Tensor,
        offsets: Tensor,
        options: tuple[str, torch.dtype, str | None],
    ) -> Tensor:
        """Quantise the rows and multiply; the arguments are those of `GroupedCodes`."""
        activations, out_dtype, backend = options
        wants_original = original is not None and original.requires_grad
        ctx.save_for_backward(weight, scale, offsets, rows if wants_original else None)
        ctx.rows_dtype, ctx.backend = rows.dtype, backend
        ctx.original_dtype = None if original is None else original.dtype
        codes = GroupedCodes(weight, scale, activations)
        return codes.of_sorted(codes.prepared(rows.detach(), backend), offsets, out_dtype, backend)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the rows and of the original weights."""
        (grad,) = grads
        weight, scale, offsets, rows = ctx.saved_tensors
        wants_rows, wants_original, *_ = ctx.needs_input_grad
        of_rows = of_original = None
        if wants_rows:
            values = opmux.dequantize(weight.detach(), scale.detach(), out_dtype=grad.dtype, backend=ctx.backend)
            of_rows = opmux.grouped_linear(grad, values.mT, offsets, backend=ctx.backend).to(ctx.rows_dtype)
        if wants_original:
            sums = torch.zeros(weight.shape, dtype=torch.float32, device=grad.device)
            opmux.grouped_weight_grad(sums, grad, rows.to(grad.dtype), offsets, backend=ctx.backend)
            of_original = sums.to(ctx.original_dtype)
        return of_rows, of_original, None, None, None, None
