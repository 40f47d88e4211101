"""Peers from other packages, each of them a peer only where it is installed: FlashAttention 4 and Quack.

Both are kernels for NVIDIA GPUs. Nothing here imports them until one of their calls is to be timed.
"""

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from opmux.bench.gradients import backward_call

Run = Callable[[], Any]

FLASH_ATTENTION, QUACK = "FlashAttention 4", "Quack"

_MODULES = {FLASH_ATTENTION: "flash_attn.cute", QUACK: "quack"}
_DISTRIBUTIONS = {FLASH_ATTENTION: "flash-attn-4", QUACK: "quack-kernels"}


def library_peers(op: str, given: Mapping[str, Any]) -> dict[str, Callable[[], Run]]:
    """The peers of a call from the packages that are installed, by name.

    Args:
        op: the op's name.
        given: its tensors and options by name.

    Returns:
        Functions that make the call to be timed; they may raise where the package does not take it.
    """
    found: dict[str, Callable[[], Run]] = {}
    for name, module in _MODULES.items():
        make = _MAKERS.get((name, op))
        if make is not None and _installed(module):
            found[name] = _making(make, module, given)
    return found


def package_of(peer: str) -> str | None:
    """The package of a peer with its version; None for a peer that is torch's own."""
    distribution = _DISTRIBUTIONS.get(peer)
    if distribution is None:
        return None
    try:
        return f"{distribution} {importlib.metadata.version(distribution)}"
    except importlib.metadata.PackageNotFoundError:  # found on the path without its metadata
        return distribution


def _installed(module: str) -> bool:
    parent = module.partition(".")[0]
    try:
        return importlib.util.find_spec(parent) is not None and importlib.util.find_spec(module) is not None
    except Exception:  # importing the parent may raise anything
        return False


Make = Callable[[Any, Mapping[str, Any]], Run]


def _making(make: Make, module: str, given: Mapping[str, Any]) -> Callable[[], Run]:
    return lambda: make(importlib.import_module(module), given)


def _scoring(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of attention as FlashAttention 4 takes them: an open side of the window is None."""
    left, right = (None if side < 0 else side for side in given["window"])
    return {
        "softmax_scale": given["scale"],
        "causal": given["causal"],
        "window_size": (left, right),
        "softcap": given["softcap"],
    }


def _out(result: Any) -> Tensor:
    """The output, of which some releases return the lse too."""
    out: Tensor = result[0] if isinstance(result, tuple) else result
    return out


def _attention(module: Any, given: Mapping[str, Any]) -> Run:
    q, k, v = given["q"], given["k"], given["v"]
    options = _scoring(given)
    return lambda: _out(module.flash_attn_func(q, k, v, **options))


def _attention_varlen(module: Any, given: Mapping[str, Any]) -> Run:
    q, k, v = given["q"], given["k"], given["v"]
    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    options = {name: given[name] for name in names} | _scoring(given)
    return lambda: _out(module.flash_attn_varlen_func(q, k, v, **options))


def _attention_backward(module: Any, given: Mapping[str, Any]) -> Run:
    options = _scoring(given)

    def through(_: Callable[..., Any]) -> Callable[..., Tensor]:
        return lambda q, k, v, **__: _out(module.flash_attn_func(q, k, v, **options))

    return backward_call("attention_backward", given, through)


def _rms_norm(module: Any, given: Mapping[str, Any]) -> Run:
    weight = given["weight"] + given["weight_offset"] if given["weight_offset"] else given["weight"]
    x, eps = given["x"], given["eps"]
    return lambda: module.rmsnorm(x, weight, eps=eps)


def _linear(module: Any, given: Mapping[str, Any]) -> Run:
    gemm = importlib.import_module(f"{module.__name__}.gemm_interface").gemm
    x, w, bias = given["x"], given["w"], given["bias"]
    options = {} if bias is None else {"bias": bias}

    def run() -> Tensor:
        product: Tensor = gemm(x.reshape(-1, x.shape[-1]), w.mT, **options)
        return product.view(*x.shape[:-1], w.shape[0])

    return run


_MAKERS: dict[tuple[str, str], Make] = {
    (FLASH_ATTENTION, "attention"): _attention,
    (FLASH_ATTENTION, "attention_varlen"): _attention_varlen,
    (FLASH_ATTENTION, "attention_backward"): _attention_backward,
    (QUACK, "rms_norm"): _rms_norm,
    (QUACK, "linear"): _linear,
}
