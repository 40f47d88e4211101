"""Flop counts for torch's FlopCounterMode, from the expressions that the ops declare.

torch.utils.flop_counter takes longer to import than opmux itself, so nothing is registered until a program has
imported it and makes a call under a dispatch mode.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from opmux.callpath import codegen, names
from opmux.callpath.op import OPS, Op
from opmux.signatures.validation import bind_dims, numel

_MODULE = "torch.utils.flop_counter"


def count_where_counted() -> None:
    """Make all FlopCounterModes, active ones and later ones, count opmux's ops."""
    if not torch._C._len_torch_dispatch_stack() or _MODULE not in sys.modules:
        return
    registry = sys.modules[_MODULE].flop_registry
    for name, op in tuple(OPS.items()):
        packet = getattr(torch.ops.opmux, name)
        if op.flops is not None and packet not in registry:
            registry[packet] = formula(op)
    for mode in _get_current_dispatch_mode_stack():
        known = getattr(getattr(mode, "counter", None), "flop_registry", None)
        if known is not None:  # a mode copies the registry when it is created
            for name in OPS:
                packet = getattr(torch.ops.opmux, name)
                if packet in registry:
                    known.setdefault(packet, registry[packet])


def formula(op: Op) -> Callable[..., int]:
    """The flop formula of one op, as FlopCounterMode calls it: with the op's arguments and its result."""
    signature = op.signature
    source = (
        f"def formula({codegen.parameters(signature, ['backend=None', '**rest'])}):\n"
        f"    return {names.COUNT}(({''.join(f'{t.name}, ' for t in signature.tensors)}), "
        f"{{{', '.join(f'{o.name!r}: {o.name}' for o in signature.options)}}})\n"
    )

    def count(tensors: tuple[Any, ...], options: dict[str, Any]) -> int:
        named = op.names(tensors)
        if callable(op.flops):
            return int(op.flops(**named, **options))
        dims = bind_dims(signature, named, options)
        return int(op.count_flops({**options, **{name: numel(dims, name) for name in dims}}) or 0)

    made: Callable[..., int] = codegen.compile_function(
        "formula", source, {names.COUNT.text: count, names.TORCH.text: torch}
    )
    made._get_raw = True  # type: ignore[attr-defined]
    return made
