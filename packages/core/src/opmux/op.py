"""An op as the machinery holds it: its definition, what implements it, and the plans made so far."""

import functools
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from opmux import codegen
from opmux.features import Feature, stride_order
from opmux.layout import aligned, has_blocks, span
from opmux.signature import Signature

if TYPE_CHECKING:
    from opmux.implementation import Implementation

OPS: dict[str, "Op"] = {}
"""Every op by name: the core's and those that plugins define."""

DETERMINISTIC = "_deterministic()"
"""Ambient state that a key holds where some implementation is not deterministic."""


class PlanTable(dict[Any, Callable[..., Any]]):
    """Plan key -> the callable that runs the plan.

    A missing key answers with a callable that plans, runs, and stores into this very table: a thread that still
    holds a table which has been replaced finishes on it, and nothing made from an old policy reaches a new one.
    """

    LIMIT = 4096

    def __init__(self, state: "OpState", on_miss: Callable[..., Any]) -> None:
        super().__init__()
        self.state = state
        self.plans: dict[Any, Any] = {}
        self._on_miss = on_miss

    def __missing__(self, key: Any) -> Callable[..., Any]:
        return functools.partial(self._on_miss, self, key)

    def store(self, key: Any, run: Callable[..., Any], plan: Any) -> None:
        """Keep a plan; the oldest goes where the table is full."""
        while len(self) >= self.LIMIT:
            try:
                oldest = next(iter(self))
            except (StopIteration, RuntimeError):  # another thread is at the same work
                break
            self.pop(oldest, None)
            self.plans.pop(oldest, None)
        self.plans[key] = plan
        self[key] = run


@dataclass(frozen=True)
class OpState:
    """What a key means: replaced whole when implementations come or go."""

    op: "Op"
    implementations: tuple["Implementation", ...]
    features: tuple[Feature, ...]
    ambient: tuple[str, ...]
    key_of: Callable[..., tuple[Any, ...]]

    @functools.cached_property
    def layout(self) -> dict[str, int]:
        """Feature label or ambient source -> its place in the key."""
        return codegen.key_layout(self.op.signature, self.features, self.ambient)


@dataclass(eq=False)
class Op:
    """One op.

    Attributes:
        reference: the definition's own body.
        gradient: the backward op's name, ``generated`` or ``refused``.
        gradient_through: the op that is run in its place when a gradient is due.
        in_place_of: the functional op that this one is the in-place form of.
        check_data: reads index data and raises `InvalidArgument`.
        flops: expression over dims.
        capturable: the reference reads no data, so it may run in a graph capture.
        public: the function that users call.
    """

    name: str
    family: str
    signature: Signature
    reference: Callable[..., Any]
    doc: str
    gradient: str
    gradient_through: str | None = None
    in_place_of: str | None = None
    check_data: Callable[..., None] | None = None
    flops: str | None = None
    capturable: bool = True
    on_miss: Callable[..., Any] | None = field(default=None, repr=False)
    tuned_feature: Feature | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._versions = 0
        self.implementations: tuple[Implementation, ...] = ()
        # Dynamo finds a function's globals by importing its module, so the generated code needs one.
        module = ModuleType(f"opmux.generated.{self.name}", f"The generated call path of {self.name}.")
        sys.modules[module.__name__] = module
        self.namespace = module.__dict__
        self.namespace.update(_aligned=aligned, _span=span, _has_blocks=has_blocks, _stride_order=stride_order)
        self.public: FunctionType
        self.state: OpState
        self.table: PlanTable

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return self.doc.strip().partition("\n")[0]

    @property
    def is_backward(self) -> bool:
        return self.name.endswith("_backward")

    def names(self, tensors: tuple[Any, ...]) -> dict[str, Any]:
        """Tensor arguments by name."""
        return {argument.name: value for argument, value in zip(self.signature.tensors, tensors, strict=True)}

    def set_implementations(self, implementations: tuple["Implementation", ...]) -> None:
        """Replace what implements the op, rewrite its call path for the features in use, and drop its plans."""
        with self._lock:
            self.implementations = tuple(sorted(implementations, key=lambda i: (i.backend, i.name)))
            self.rebuild()

    def rebuild(self) -> None:
        """Write the call path anew for the features that are registered, and start an empty plan table.

        The table is a new global of the new code: code that is still running keeps the table its keys belong to.
        """
        with self._lock:
            declared = [f for i in self.implementations for f in i.key_features(self.signature)]
            if self.tuned_feature is not None:
                declared.append(self.tuned_feature)
            features = tuple({f.source: f for f in declared}.values())
            ambient = () if all(i.deterministic for i in self.implementations) else (DETERMINISTIC,)
            previous: OpState | None = getattr(self, "state", None)
            if previous is not None and (previous.features, previous.ambient) == (features, ambient):
                self.state = OpState(self, self.implementations, features, ambient, previous.key_of)
                self._new_table(self._table_name)
                return
            key_source = codegen.key_source(self.signature, features, ambient)
            key_of = codegen.compile_function("_key_of", key_source, self.namespace)
            self.state = OpState(self, self.implementations, features, ambient, key_of)
            self._versions += 1
            self._table_name = f"_plans_{self._versions}"
            self._new_table(self._table_name)
            source = codegen.entry_source(self.signature, features, ambient, self._table_name, self.doc)
            made = codegen.compile_function(self.name, source, self.namespace)
            if previous is None:
                self.public = made
            else:
                self.public.__code__ = made.__code__
                self.namespace.pop(f"_plans_{self._versions - 2}", None)

    def _new_table(self, name: str) -> None:
        assert self.on_miss is not None
        self.table = PlanTable(self.state, self.on_miss)
        self.namespace[name] = self.table

    def drop_plans(self) -> None:
        """Forget every plan: the policy, the quarantine or an observer changed."""
        with self._lock:
            self._new_table(self._table_name)


def drop_all_plans() -> None:
    """Forget every plan of every op."""
    for op in tuple(OPS.values()):
        op.drop_plans()


def implementations_of(ops: Mapping[str, Op]) -> list["Implementation"]:
    """Every registered implementation, in a fixed order."""
    return [i for name in sorted(ops) for i in ops[name].implementations]
