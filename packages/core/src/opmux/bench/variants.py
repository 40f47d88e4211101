"""What a sweep times: implementations with configs of their own, and callables, bound to a case's tensors."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opmux import policy
from opmux.arch import arch_of
from opmux.bench.cases import MAKERS
from opmux.bench.clocks import Run, Timed
from opmux.bench.data import Data, Maker
from opmux.bench.shapes import Shape
from opmux.bench.work import all_options, difference
from opmux.callpath.op import OPS, Op
from opmux.declared.configs import make_config
from opmux.errors import InvalidArgument
from opmux.plugins import loading
from opmux.running.targets import load_target, make_run

AGREES = 0.03
"""The default of `Case.agrees`: allows for sums and probabilities that were rounded to 16 bits on the way."""


@dataclass(frozen=True)
class Configured:
    """An implementation with a config chosen by the sweep instead of by heuristics.

    Attributes:
        implementation: its full name, such as ``triton:hopper``.
        config: an instance of its ``config_schema``, or the parameters by name.
    """

    implementation: str
    config: Any

    def bound(self, op: Op, device: torch.device) -> Callable[..., Any]:
        """The target with its config, as a plan calls it.

        Raises:
            InvalidArgument: If the op has no such implementation.
            ValueError: If the config does not fit its schema.
        """
        found = next((i for i in op.implementations if i.full_name == self.implementation), None)
        if found is None:
            names = ", ".join(i.full_name for i in op.implementations)
            raise InvalidArgument(
                f"sweep: `implementation` expected one of {op.name}'s, {names}, got {self.implementation!r}; "
                "install its backend or correct the name"
            )
        config = make_config(found, self.config)
        return make_run(op, arch_of(device), found, load_target(op, found), config, policy.current().check)


Variant = Configured | Callable[..., Any]
"""What a sweep times: an implementation with a config, or a callable that takes the case's tensors and options."""


@dataclass(frozen=True)
class Case:
    """One computation on one shape, with its variants. It is pickled, so its functions must be defined in a module.

    Attributes:
        of: the name of an op, or a callable; variants are compared with it.
        shape: the shape that is timed.
        variants: the variants by name.
        make: the arguments of a shape; None takes those of `opmux.bench` for the op.
        peers: callables that are timed as peers, in addition to those that `opmux.bench` has for the op.
        checked: the shape on which variants are compared with the reference; None takes ``shape``.
        dtype: the dtype of the tensors.
        agrees: how far a variant may be from the reference, as a fraction of the reference's largest magnitude.
    """

    of: str | Callable[..., Any]
    shape: Shape
    variants: Mapping[str, Variant]
    make: Maker | None = None
    peers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    checked: Shape | None = None
    dtype: torch.dtype = torch.bfloat16
    agrees: float = AGREES

    @property
    def op(self) -> Op | None:
        """The op, or None for a callable."""
        return OPS[self.of] if isinstance(self.of, str) else None

    @property
    def title(self) -> str:
        """The op or callable and the shape."""
        return f"{self.of if isinstance(self.of, str) else self.of.__name__}, {self.shape.name}"


class BoundCase:
    """A case on a device: its tensors, and how to run variants on them."""

    def __init__(self, case: Case, shape: Shape, device: torch.device) -> None:
        loading.ensure_loaded()
        self.case, self.op, self.device = case, case.op, device
        make = case.make or MAKERS[case.of]  # type: ignore[index]  # a callable's case has make
        self.arguments = make(Data.seeded(device, case.dtype), shape)
        self.options = self.arguments.options if self.op is None else all_options(self.op, self.arguments)
        mutates = () if self.op is None else self.op.signature.mutates
        self._mutated = [self.op.names(self.arguments.tensors)[name] for name in mutates] if self.op else []
        self._originals = [tensor.clone() for tensor in self._mutated]

    def timed(self, run: Run) -> Timed:
        """A run in the form that a clock takes."""
        return Timed(run, self._restore if self._mutated else None)

    def call(self, variant: Variant) -> Run:
        """The call of a variant on the tensors."""
        if isinstance(variant, Configured):
            if self.op is None:
                raise InvalidArgument(
                    f"sweep: `variants` of {self.case.title} expected callables, got {variant}; only an op has configs"
                )
            variant = variant.bound(self.op, self.device)
        return functools.partial(variant, *self.arguments.tensors, **self.options)

    def reference(self) -> Run:
        """The call that variants are compared with."""
        return self.call(self.op.reference if self.op else self.case.of)  # type: ignore[arg-type]

    def results(self, run: Run) -> list[Tensor]:
        """A call's outputs, or the arguments that it mutates."""
        self._restore()
        found = run()
        if self._mutated:
            return [tensor.clone() for tensor in self._mutated]
        return [r for r in (found if isinstance(found, tuple) else (found,)) if r.numel()]

    def _restore(self) -> None:
        for tensor, original in zip(self._mutated, self._originals, strict=True):
            tensor.copy_(original)


def complaint(case: Case, name: str, device: torch.device) -> str:
    """Describe what is wrong with a variant's results; empty if they agree with the reference's."""
    with torch.no_grad():
        bound = BoundCase(case, case.checked or case.shape, device)
        apart = difference(bound.results(bound.call(case.variants[name])), bound.results(bound.reference()))
    return "" if apart <= case.agrees else f"differs from the reference by {apart:.3g} of the largest magnitude"
