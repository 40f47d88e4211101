"""The gradient of an op without a handwritten backward: rerun its reference under torch's autograd."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from opmux.callpath.op import Op


def run_reference_backward(op: Op, arguments: Mapping[str, Any], mask: Sequence[bool]) -> tuple[Tensor, ...]:
    """Compute a generated backward op: rerun the reference's forward with recording, then apply autograd.

    Args:
        op: the forward op.
        arguments: the backward op's arguments: ``grad_<output>``, the forward's tensors and options.
        mask: which of the forward's tensor arguments need a gradient.

    Returns:
        A gradient for each of the forward's tensor arguments; an empty tensor for one that is unwanted or absent.
    """
    tensors = [arguments[a.name] for a in op.signature.tensors]
    wanted = [want and tensor is not None for want, tensor in zip(mask, tensors, strict=True)]
    options = {o.name: arguments[o.name] for o in op.signature.options}
    with _recording():
        leaves = [None if t is None else _leaf(t, want) for t, want in zip(tensors, wanted, strict=True)]
        results = op.reference(*leaves, **options)
        several = results if isinstance(results, tuple) else (results,)
        given = [arguments[f"grad_{o.name}"] for o in op.signature.outputs]
        pairs = [(result, grad) for result, grad in zip(several, given, strict=True) if result.requires_grad]
        asked = [leaf for leaf, want in zip(leaves, wanted, strict=True) if leaf is not None and want]
        found: Iterator[Any] = iter([None] * len(asked))
        if pairs and asked:
            roots, grads = zip(*pairs, strict=True)
            found = iter(torch.autograd.grad(roots, asked, grads, allow_unused=True))
    gradients = []
    for tensor, want in zip(tensors, wanted, strict=True):
        if not want:
            gradients.append(tensors[0].new_empty(0, dtype=(tensors[0] if tensor is None else tensor).dtype))
            continue
        grad = next(found)
        gradients.append(tensor.new_zeros(tensor.shape) if grad is None else grad.contiguous())
    return tuple(gradients)


@contextmanager
def _recording() -> Iterator[None]:
    """Enable recording by autograd, wherever this is called from."""
    with torch.inference_mode(False):
        # Inside a registered kernel, autograd's dispatch keys are excluded: include them, or nothing is recorded.
        include = torch._C._dispatch_tls_local_include_set()
        exclude = torch._C._dispatch_tls_local_exclude_set()
        for key in ("AutogradFunctionality", "AutogradOther", "ADInplaceOrView"):
            exclude = exclude.remove(getattr(torch._C.DispatchKey, key))
        with torch._C._ForceDispatchKeyGuard(include, exclude), torch.enable_grad():
            yield


def _leaf(tensor: Tensor, wanted: bool) -> Tensor:
    """A tensor with the same values that requires a gradient if one is wanted."""
    made = tensor.clone() if tensor.is_inference() else tensor.detach()
    return made.requires_grad_(wanted)
