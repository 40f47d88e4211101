"""Which backend ran each op of the model, and why."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import opmux
from opmux.demo.model import Llama
from opmux.demo.report import OpUse
from opmux.demo.scheduling import Request
from opmux.demo.serving import ServingSettings, serve
from opmux.demo.training import next_character_loss


class FirstCalls(TorchDispatchMode):
    """Keeps the arguments of the first call of each op, so that each can be explained as it was called."""

    def __init__(self) -> None:
        """Start with no calls."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.arguments: dict[str, dict[str, Any]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Keep an opmux op's arguments by name and go on."""
        kwargs = kwargs or {}
        if func.namespace == "opmux":
            name = func._schema.name.partition("::")[2]
            names = [argument.name for argument in func._schema.arguments]
            given = dict(zip(names, args, strict=False)) | kwargs
            self.arguments.setdefault(name, {key: _as_given(value) for key, value in given.items()})
        return func(*args, **kwargs)


def ops_used(model: Llama, windows: Tensor, request: Request, settings: ServingSettings) -> tuple[OpUse, ...]:
    """Trace one pass with gradients, one without and one request served; explain each op that ran.

    Args:
        model: The model.
        windows: int64[batch, seq + 1], on the model's device.
        request: What is served.
        settings: How it is served.
    """

    def work() -> None:
        torch.autograd.grad(next_character_loss(model, windows), list(model.parameters()))
        with torch.no_grad():
            model(windows[:, :-1])
        serve(model, [Request(request.number, request.prompt, request.new_tokens)], settings)

    with opmux.trace() as trace:
        work()
    # Run again: under a dispatch mode calls take another route, which is not what the trace should show.
    with FirstCalls() as calls:
        work()
    return tuple(
        OpUse(
            op=row.op,
            arch=row.arch,
            backend=row.backend,
            calls=row.calls,
            fallbacks=row.fallbacks,
            host_us=row.host_us,
            device_us=row.device_us,
            reason=_reason(row.op, row.backend, calls.arguments.get(row.op)),
        )
        for row in trace.rows
    )


def _reason(op: str, backend: str, arguments: dict[str, Any] | None) -> str:
    if arguments is None:
        return "not called on its own"
    plan = opmux.explain(getattr(opmux, op), **arguments)
    # An op may run on several backends, by its shapes; only one of its calls was kept.
    reasons = [candidate.reason for candidate in plan.candidates if candidate.name == backend]
    if not reasons:
        return "chosen for other shapes than those of the first call"
    return f"{reasons[0]}, the only candidate" if len(plan.candidates) == 1 else reasons[0]


def _as_given(value: Any) -> Any:
    """An argument as the public function takes it: torch passes tuples on as lists."""
    return tuple(value) if isinstance(value, list) else value
