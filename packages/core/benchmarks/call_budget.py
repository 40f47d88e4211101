"""What a call costs beside the kernel, as ratios to `torch.empty_like` of a small CPU tensor in the same process.

The setting is the design's: 50 registered implementations of each op, three features in use, a policy set, no
gradient, a target that returns a ready tensor. Rounds are interleaved, the ratio of each round is taken, and the median
of the rounds is printed. With ``--measured`` the ops also have measured rows, whose steps and dims are in the key. Run:
``python packages/core/benchmarks/call_budget.py [--measured] [--json]``.
"""

import argparse
import json
import os
import statistics
import sys
import timeit
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

# The setting is fixed: what happens to be installed beside the core would add its features to the key.
os.environ["OPMUX_PLUGINS"] = ""

sys.path.insert(0, str(Path(__file__).parent))
from measured_rows import measured_rows

import opmux
from opmux.callpath.op import OPS
from opmux.plugin import AtMost, Bucket, Implementation, MultipleOf, Priority, hookimpl, temporary_plugin
from opmux.signatures.validation import check_call

ROUNDS, CALLS = 41, 4000
LIMITS = {
    "key and lookup": 0.6,
    "call, two tensors": 1.2,
    "call, four tensors": 2.2,
    "call, two tensors, backend named": 1.4,
    "call, two tensors, out given": 3.5,
    "bind, added to the target": 0.1,
}


def ready_target(ready: torch.Tensor | tuple[torch.Tensor, ...]) -> Any:
    """A target that does nothing."""

    def target(*tensors: Any, **options: Any) -> Any:
        return ready

    return target


def plain_target_rms_norm(ready: torch.Tensor) -> Any:
    """A target with the op's own parameters, as plugins write them."""

    def target(x: Any, weight: Any, *, eps: float, weight_offset: float, out: Any = None) -> Any:
        return ready

    return target


def plain_target_add_layer_norm(ready: tuple[torch.Tensor, ...]) -> Any:
    """The same for four tensors and two outputs."""

    def target(x: Any, residual: Any, weight: Any, bias: Any, *, eps: float) -> Any:
        return ready

    return target


def implementations(op: str, target: Any) -> list[Implementation]:
    """Fifty of one op: one that accepts, forty-nine that refuse, with three features among them."""
    chosen = Implementation(
        op=op,
        target=target,
        name="i00",
        priority=Priority.SPECIALISED,
        when=(MultipleOf("hidden", 8), AtMost("hidden", 4096)),
        features=(Bucket("hidden"),),
        capturable=True,
        deterministic=True,
        takes_out=op == "rms_norm",
    )
    others = [
        Implementation(
            op=op,
            target=target,
            name=f"i{n:02}",
            archs=("sm_90",) if n % 2 else ("cpu",),
            when=(MultipleOf("hidden", 8), AtMost("hidden", 4096)),
            features=(Bucket("hidden"),),
            deterministic=True,
        )
        for n in range(1, 50)
    ]
    return [chosen, *others]


def per_call(statement: str, names: dict[str, Any]) -> float:
    """Seconds per run of a statement."""
    return timeit.timeit(statement, globals=names, number=CALLS) / CALLS


def measure(measured: bool = False) -> dict[str, float]:
    """Every ratio, as the median over interleaved rounds; ``measured``: with measured rows of both ops."""
    x, residual, weight, bias = torch.randn(4, 64), torch.randn(4, 64), torch.randn(64), torch.randn(64)
    ready = torch.empty(4, 64)
    two, four = plain_target_rms_norm(ready), plain_target_add_layer_norm((ready, ready.clone()))
    records = implementations("rms_norm", two) + implementations("add_layer_norm", four)
    plugin = SimpleNamespace(
        OPMUX_API_VERSION=1,
        opmux_implementations=opmux_hook(records),
    )
    rows = measured_rows(2, 100, ("rms_norm", "add_layer_norm")) if measured else nullcontext()
    with temporary_plugin(plugin, "budget"), rows, opmux.policy.override(prefer=["budget"]), torch.no_grad():
        bound = opmux.rms_norm.bind(x, weight)
        names = {
            "x": x, "residual": residual, "weight": weight, "bias": bias, "bound": bound, "target": two,
            "rms_norm": opmux.rms_norm, "add_layer_norm": opmux.add_layer_norm, "empty_like": torch.empty_like,
            "out": torch.empty(4, 64),
        }  # fmt: skip
        (
            opmux.rms_norm(x, weight),
            opmux.rms_norm(x, weight, out=names["out"]),
            opmux.add_layer_norm(x, residual, weight, bias),
        )
        assert opmux.explain(opmux.rms_norm, x, weight).chosen.name == "budget:i00"
        key_names = key_statement(x, weight)
        statements = {
            "empty": ("empty_like(x)", names),
            "target": ("target(x, weight, eps=1e-6, weight_offset=0.0)", names),
            "two": ("rms_norm(x, weight)", names),
            "named": ("rms_norm(x, weight, backend='budget')", names),
            "into": ("rms_norm(x, weight, out=out)", names),
            "four": ("add_layer_norm(x, residual, weight, bias)", names),
            "bound": ("bound(x, weight)", names),
            "key": ("same(x, weight) and runs[" + key_names.pop("key") + "]", key_names),
        }
        rounds: list[dict[str, float]] = []
        for statement, scope in statements.values():
            per_call(statement, scope)
        for _ in range(ROUNDS):
            rounds.append({name: per_call(statement, scope) for name, (statement, scope) in statements.items()})

    def ratio(value: Any) -> float:
        return statistics.median(value(r) / r["empty"] for r in rounds)

    return {
        "key and lookup": ratio(lambda r: r["key"]),
        "call, two tensors": ratio(lambda r: r["two"]),
        "call, four tensors": ratio(lambda r: r["four"]),
        "call, two tensors, backend named": ratio(lambda r: r["named"]),
        "call, two tensors, out given": ratio(lambda r: r["into"]),
        "bind, added to the target": ratio(lambda r: r["bound"] - r["target"]),
        "empty_like, microseconds": statistics.median(r["empty"] for r in rounds) * 1e6,
    }


def key_statement(x: torch.Tensor, weight: torch.Tensor) -> dict[str, Any]:
    """The guard, key and lookup of rms_norm's generated code, with the names that they read."""
    from opmux.callpath import codegen

    op = OPS["rms_norm"]
    key = codegen._front_key(op.signature, op.state.features, op.state.ambient)
    same, _, runs = op.front
    tensors, options = op.bind_arguments((x, weight), {})
    dims, _ = check_call(op.signature, op.names(tensors), options)
    shapes = {codegen.names.shape_name(name): tensor.shape for name, tensor in op.names(tensors).items()}
    return {
        **op.namespace,
        **dims,
        **shapes,
        **options,
        "key": key,
        "same": same,
        "runs": runs,
        "x": x,
        "weight": weight,
    }


def opmux_hook(yielded: list[Implementation]) -> Any:
    """A hook that yields these implementations."""

    @hookimpl
    def opmux_implementations() -> list[Implementation]:
        return yielded

    return opmux_implementations


def main() -> int:
    """Print the ratios beside the limits; 1 where one is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measured", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.measured)
    if arguments.json:
        print(json.dumps(found))
        return 0
    for name, value in found.items():
        limit = LIMITS.get(name)
        verdict = "" if limit is None else f"limit {limit:.1f}  {'ok' if value <= limit else 'over'}"
        print(f"{name:<28} {value:6.3f}  {verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
