"""The contenders of a case: each is prepared, run once, and compared with the reference before it is timed."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opmux.arch import arch_of
from opmux.bench.clocks import Clock, Timed
from opmux.bench.data import Arguments
from opmux.bench.libraries import package_of
from opmux.bench.results import IMPLEMENTATION, PEER, Left
from opmux.bench.work import all_options, difference
from opmux.callpath.op import Op
from opmux.planning import explanation, resolver

Run = Callable[[], Any]

_TAKERS = (resolver.CHOSEN, resolver.ACCEPTED)


@dataclass(frozen=True)
class Entry:
    """A contender, warmed up.

    Attributes:
        difference: the difference of its result from the reference's.
    """

    name: str
    kind: str
    package: str
    chosen: bool
    timed: Timed
    difference: float


class Contest:
    """One case: its arguments, the reference's results, and the contenders."""

    def __init__(self, op: Op, arguments: Arguments, clock: Clock) -> None:
        self.op, self.arguments, self._clock = op, arguments, clock
        self._mutated = [op.names(arguments.tensors)[name] for name in op.signature.mutates]
        self._originals = [tensor.clone() for tensor in self._mutated]
        options = all_options(op, arguments)
        self._expected = self._results(lambda: op.reference(*arguments.tensors, **options))
        self.entries: list[Entry] = []
        self.left: list[Left] = []

    def enter_implementations(self, backends: Sequence[str] | None) -> None:
        """Prepare every implementation that claims this call, or only those that ``backends`` names."""
        for candidate in self._plan(None).candidates:
            name, chosen = candidate.name, candidate.status == resolver.CHOSEN
            if backends is not None:
                if not {name, name.partition(":")[0]} & set(backends):
                    continue
                # An implementation requested by name may run although it is not a candidate otherwise.
                candidate = next(c for c in self._plan(name).candidates if c.name == name)
            if candidate.status in _TAKERS:
                package = f"{candidate.distribution} {candidate.version}"
                self._enter(name, IMPLEMENTATION, package, chosen, functools.partial(self._bound, name))
            else:
                self.left.append(Left(name, IMPLEMENTATION, candidate.status, candidate.reason))

    def enter_peers(self, peers: dict[str, Callable[[], Run]]) -> None:
        """Prepare the peers."""
        for name, make in peers.items():
            self._enter(name, PEER, package_of(name) or f"torch {torch.__version__}", False, make)

    def _plan(self, backend: str | None) -> explanation.Explanation:
        device = self._first.device
        return explanation.explain(
            self.op.public,
            *self.arguments.tensors,
            arch=arch_of(device).name,
            backend=backend,
            **self.arguments.options,
        )

    @property
    def _first(self) -> Tensor:
        first = self.arguments.tensors[0]
        assert first is not None  # an op's first tensor is required
        return first

    def _bound(self, name: str) -> Run:
        public: Any = self.op.public
        tensors = self.arguments.tensors
        target = public.bind(*tensors, backend=name, **self.arguments.options)
        return lambda: target(*tensors)

    def _enter(self, name: str, kind: str, package: str, chosen: bool, make: Callable[[], Run]) -> None:
        """Prepare, check and warm up one contender; if it raises, only this one is left out."""
        try:
            run = make()
            apart = difference(self._results(run), self._expected)
            timed = Timed(run, self._restore if self._mutated else None)
            self._clock.warm_up(name, timed)
        except Exception as error:  # kernels, compilers and plugins may raise anything; the others continue
            self.left.append(Left(name, kind, "failed", f"{type(error).__name__}: {error}"))
        else:
            self.entries.append(Entry(name, kind, package, chosen, timed, apart))

    def _results(self, run: Run) -> list[Tensor]:
        """The results of a call: its outputs without unwanted gradients, or its mutated arguments."""
        self._restore()
        results = run()
        if self._mutated:
            return [tensor.clone() for tensor in self._mutated]
        return [r for r in (results if isinstance(results, tuple) else (results,)) if r.numel()]

    def _restore(self) -> None:
        for tensor, original in zip(self._mutated, self._originals, strict=True):
            tensor.copy_(original)
