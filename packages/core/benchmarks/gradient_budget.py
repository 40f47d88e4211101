"""What the core costs the host per call with a gradient due: forward and backward, with targets that return at once.

Each op gets a backend whose targets return tensors that are there already, so what is timed is opmux's own way through
autograd. Beside it: a plain ``torch.autograd.Function`` that saves and returns the same tensors, the least that
a Python op can cost, and an allocation, ``torch.empty_like``, as the unit.

``python packages/core/benchmarks/gradient_budget.py [--rounds N] [--calls N] [--json] [--profile OP]``
"""

import argparse
import cProfile
import json
import os
import pstats
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPMUX_PLUGINS", "")

import torch
from torch import Tensor

import opmux
from opmux.plugin import Implementation, Priority, hookimpl, temporary_plugin

CALLS = 400


def leaves() -> dict[str, tuple[tuple[Tensor, ...], dict[str, Any]]]:
    """Op -> its tensors, all of which require gradients, and its options."""

    def leaf(*sizes: int) -> Tensor:
        return torch.randn(sizes).requires_grad_()

    return {
        "attention": ((leaf(1, 8, 4, 16), leaf(1, 8, 2, 16), leaf(1, 8, 2, 16)), {"causal": True}),
        "linear": ((leaf(4, 16), leaf(16, 16)), {}),
        "rms_norm": ((leaf(4, 16), leaf(16)), {}),
        "silu_mul": ((leaf(4, 16), leaf(4, 16)), {}),
    }


def ready(name: str) -> Implementation:
    """An implementation that returns the results of its first call of each kind again."""
    op = getattr(opmux, name).op
    kept: dict[Any, Any] = {}

    def target(*tensors: Any, **options: Any) -> Any:
        key = tuple(None if t is None else t.shape for t in tensors)
        found = kept.get(key)
        if found is None:
            found = op.reference(*tensors, **options)
            found = kept[key] = found if isinstance(found, tuple) else (found,)
        made = tuple(t.detach() for t in found)  # autograd writes into the object that it is given
        return made if len(made) > 1 else made[0]

    return Implementation(op=name, target=target, priority=Priority.SPECIALISED, deterministic=True, capturable=True)


class Ready:
    """The backend of all ops that take part."""

    OPMUX_API_VERSION = 1

    @staticmethod
    @hookimpl
    def opmux_implementations() -> list[Implementation]:
        """Forward, variant and backward of each op."""
        names = []
        for name in leaves():
            op = getattr(opmux, name).op
            names += [name, op.gradient] + ([op.gradient_through] if op.gradient_through else [])
        return [ready(name) for name in dict.fromkeys(names)]


class Plain(torch.autograd.Function):
    """The least: saves its tensors and returns ready gradients."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors, out)
        return out.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        *tensors, _ = ctx.saved_tensors
        return None, *tensors


def passes(forward: Callable[[], Tensor], grad: Tensor, calls: int) -> tuple[float, float]:
    """Microseconds of a forward call and of its backward pass."""
    outs: list[Tensor] = []
    started = time.perf_counter_ns()
    for _ in range(calls):
        outs.append(forward())
    ahead = time.perf_counter_ns() - started
    started = time.perf_counter_ns()
    for out in outs:
        torch.autograd.backward((out,), (grad,))
    back = time.perf_counter_ns() - started
    return ahead / calls / 1e3, back / calls / 1e3


def measure(rounds: int, calls: int) -> dict[str, dict[str, float]]:
    """Op -> the fastest round of each, in microseconds: what else runs on the machine only adds."""
    samples: dict[str, dict[str, list[float]]] = {}
    with temporary_plugin(Ready(), "ready", "opmux-ready", "0"):
        for number in range(rounds + 1):
            for name, (tensors, options) in leaves().items():
                op, each = getattr(opmux, name), samples.setdefault(name, {})
                out = op(*tensors, **options)
                ready_out, grad = out.detach(), torch.ones_like(out)
                with torch.no_grad():
                    op(*tensors, **options)
                    started = time.perf_counter_ns()
                    for _ in range(calls):
                        op(*tensors, **options)
                    without = (time.perf_counter_ns() - started) / calls / 1e3
                    started = time.perf_counter_ns()
                    for _ in range(calls):
                        torch.empty_like(ready_out)
                    unit = (time.perf_counter_ns() - started) / calls / 1e3
                ahead, back = passes(lambda op=op, t=tensors, o=options: op(*t, **o), grad, calls)
                least, least_back = passes(lambda t=tensors, r=ready_out: Plain.apply(r, *t), grad, calls)
                found = {
                    "forward": ahead, "backward": back, "least forward": least, "least backward": least_back,
                    "no gradient": without, "empty_like": unit,
                }  # fmt: skip
                for key, value in found.items():
                    if number:
                        each.setdefault(key, []).append(value)
    return {name: {k: round(min(v), 2) for k, v in each.items()} for name, each in samples.items()}


def profile(name: str) -> None:
    """Print where the time of one op goes."""
    with temporary_plugin(Ready(), "ready", "opmux-ready", "0"):
        tensors, options = leaves()[name]
        op = getattr(opmux, name)
        out = op(*tensors, **options)
        grad = torch.ones_like(out)
        for what in ("forward", "backward"):
            outs = [op(*tensors, **options) for _ in range(2000)]
            profiler = cProfile.Profile()
            profiler.enable()
            for out in outs:
                if what == "forward":
                    op(*tensors, **options)
                else:
                    torch.autograd.backward((out,), (grad,))
            profiler.disable()
            print(what)
            pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.profile:
        profile(arguments.profile)
        return
    found = measure(arguments.rounds, arguments.calls)
    if arguments.json:
        print(json.dumps(found))
        return
    for name, us in found.items():
        print(f"{name:10} " + "  ".join(f"{key} {value:.1f}" for key, value in us.items()))


if __name__ == "__main__":
    main()
