"""DeepGEMM's dense products."""

from functools import lru_cache

import torch
from torch import Tensor

import opmux
from opmux_deepgemm.compat.adding import add, ask, begin, readable
from opmux_deepgemm.compat.arguments import check_codes, check_tensor
from opmux_deepgemm.compat.checking import (
    Block,
    Recipe,
    Scaled,
    check,
    check_result,
    of_views,
    published,
    rows_of_b,
)
from opmux_deepgemm.configs import Config
from opmux_deepgemm.implementations import BACKEND
from opmux_deepgemm.launching import Operands, multiply
from opmux_deepgemm.model import scored
from opmux_deepgemm.space import Sizes


def _fp8_gemm(
    name: str, a: Scaled, b: Scaled, d: Tensor, c: Tensor | None = None, recipe: Recipe = None,
    recipe_a: Block = None, recipe_b: Block = None, compiled_dims: str = "nk", disable_ue8m0_cast: bool = False,
) -> None:  # fmt: skip
    """``d = a @ b.T``, plus c where it is given.

    Args:
        a: ``(m, k)`` and scales of 1x128 blocks, ``(m, ceil(k / 128))`` in any strides.
        b: ``(n, k)`` and scales of 128x128 blocks, ``(ceil(n / 128), ceil(k / 128))``; those of 1x128 blocks,
            ``(n, ceil(k / 128))``, where the recipe is (1, 1, 128).
        d: ``(m, n)`` bfloat16 or float32; written to.
        c: ``(m, n)`` in d's dtype, which may be d itself; None stands for 0.
        recipe: the blocks: None, (1, 128, 128) or (1, 1, 128).
        recipe_a, recipe_b: the blocks of each operand, both where ``recipe`` is None, or none.
        compiled_dims, disable_ue8m0_cast: see the module.

    Raises:
        UnsupportedCall: where the kernels do not take the call; the message says why.
        InvalidArgument: where shapes or dtypes do not fit.
    """
    rows = rows_of_b(name, recipe, recipe_a, recipe_b)
    check(name, compiled_dims, d, 2, c)
    check_codes(name, a, b, 2, 2)
    check_result(name, d, a[0], b[0])
    given = (a[0], b[0], a[1], b[1])
    if rows == 1:
        total = d if d.dtype == torch.float32 else d.new_empty(d.shape, dtype=torch.float32)
        add(opmux.scaled_linear_accumulate, total, c, *given, backend=BACKEND)
        if total is not d:
            d.copy_(total)
    elif c is None:
        opmux.scaled_linear(*given, out_dtype=d.dtype, backend=BACKEND, out=d)
    else:
        product = opmux.scaled_linear(*given, out_dtype=torch.float32, backend=BACKEND)
        torch.add(product, readable(c, d), out=d)


def _bf16_gemm(name: str, a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None, compiled_dims: str = "nk") -> None:
    """``d = a @ b.T`` of a ``(m, k)`` and b ``(n, k)`` in bfloat16, plus c where it is given.

    d and c are as in `fp8_gemm_nt`. A sum in float32 is added by the copy engine; one in bfloat16 is rounded once.
    """
    check(name, compiled_dims, d, 2, c)
    check_tensor(name, "a", a, 2)
    check_tensor(name, "b", b, 2)
    check_result(name, d, a, b)
    if c is None:
        opmux.linear(a, b, out_dtype=d.dtype, backend=BACKEND, out=d)
        return
    plain = d.dtype == torch.float32 and d.is_contiguous() and d.data_ptr() % 16 == 0
    total = d if plain else d.new_empty(d.shape, dtype=torch.float32)
    _add(readable(a, total), readable(b, total), total, c)
    if total is not d:
        d.copy_(total)


_VIEWS = "``d = {} @ {}``: `fp8_gemm_nt` of transposed views, scales likewise."
_nn, _tn, _tt = (of_views(_fp8_gemm, *turned, scaled=True) for turned in ((False, True), (True, True), (True, False)))

fp8_gemm_nt = published(_fp8_gemm, "fp8_gemm_nt")
fp8_gemm_nn = published(_nn, "fp8_gemm_nn", _VIEWS.format("a", "b"))
fp8_gemm_tn = published(_tn, "fp8_gemm_tn", _VIEWS.format("a.T", "b"))
fp8_gemm_tt = published(_tt, "fp8_gemm_tt", _VIEWS.format("a.T", "b.T"))

_ALSO = "`fp8_gemm_{}` by its other name; codes of four bits are for other GPUs."
fp8_fp4_gemm_nt = published(_fp8_gemm, "fp8_fp4_gemm_nt", _ALSO.format("nt"))
fp8_fp4_gemm_nn = published(_nn, "fp8_fp4_gemm_nn", _ALSO.format("nn"))
fp8_fp4_gemm_tn = published(_tn, "fp8_fp4_gemm_tn", _ALSO.format("tn"))
fp8_fp4_gemm_tt = published(_tt, "fp8_fp4_gemm_tt", _ALSO.format("tt"))

_BF16_VIEWS = "``d = {} @ {}``: `bf16_gemm_nt` of transposed views."
bf16_gemm_nt = published(_bf16_gemm, "bf16_gemm_nt")
bf16_gemm_nn = published(of_views(_bf16_gemm, False, True), "bf16_gemm_nn", _BF16_VIEWS.format("a", "b"))
bf16_gemm_tn = published(of_views(_bf16_gemm, True, True), "bf16_gemm_tn", _BF16_VIEWS.format("a.T", "b"))
bf16_gemm_tt = published(of_views(_bf16_gemm, True, False), "bf16_gemm_tt", _BF16_VIEWS.format("a.T", "b.T"))


def _add(a: Tensor, b: Tensor, total: Tensor, c: Tensor) -> None:
    """Add a product in bfloat16 to c in float32, which no op of the core does; `linear` says what is refused."""
    ask(opmux.linear, a, b, backend=BACKEND)
    begin(total, c)
    if total.numel():
        config = _config(a.shape, a.stride(), b.shape, b.stride())
        multiply(config, Operands(a, b), total, accumulate=True)


@lru_cache(maxsize=1024)
def _config(
    a: tuple[int, ...], a_strides: tuple[int, ...], b: tuple[int, ...], b_strides: tuple[int, ...]
) -> Config:  # fmt: skip
    """The config of a product in bfloat16 that is added."""
    across = (strides[0] == 1 and strides[1] != 1 for strides in (a_strides, b_strides))
    return scored(Sizes(a[0], b[0], 2 * a[1], False, 0, True, *across))[0].config
