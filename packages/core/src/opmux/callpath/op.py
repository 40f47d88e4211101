"""The op object: its definition, its implementations, and the plans made so far."""

import dataclasses
import functools
import inspect
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from opmux.callpath import codegen, names
from opmux.callpath.guards import Guard, make_guard, never
from opmux.callpath.plans import Front, Into, PlanTable, Recording, Writer
from opmux.declared.caveats import Caveat
from opmux.declared.features import Feature
from opmux.signatures.expressions import evaluate
from opmux.signatures.signature import Signature

if TYPE_CHECKING:
    from opmux.declared.implementation import Implementation

OPS: dict[str, "Op"] = {}
"""Every op by name: the core's and those that plugins define."""


@dataclass(frozen=True)
class OpState:
    """What the parts of a key mean; replaced as a whole when implementations are added or removed."""

    op: "Op"
    implementations: tuple["Implementation", ...]
    features: tuple[Feature, ...]
    ambient: tuple[str, ...]

    @functools.cached_property
    def key_of(self) -> Callable[..., tuple[Any, ...]]:
        """Computes the key of a validated call that does not come by the direct way."""
        source = codegen.key_source(self.op.signature, self.features, self.ambient)
        made: Callable[..., Any] = codegen.compile_function(names.KEY_OF.text, source, dict(self.op.namespace))
        return made

    @functools.cached_property
    def layout(self) -> dict[str, int]:
        """Feature label or ambient source -> its position in the key."""
        return codegen.key_layout(self.op.signature, self.features, self.ambient)


@dataclass(eq=False)
class Op:
    """One op.

    Attributes:
        reference: the body of the definition.
        gradient: the backward op's name, ``generated`` or ``refused``.
        gradient_through: the op that runs instead when a gradient is due.
        in_place_of: the functional op that this one is the in-place form of.
        check_data: reads index data and raises `InvalidArgument` where it is bad.
        flops: expression over dims and options, or a function of the arguments where the count depends on index data.
        flops_bound: expression over dims and options for the longest call, where ``flops`` is a function.
        touched: tensor -> expression for how many of its elements the longest call touches, where that is not all.
        capturable: the reference reads no data on the host, so it may run during graph capture.
        caveats: what the definition leaves unspecified: an implementation that differs there declares it.
        on_miss: makes a plan for a key that has none, and runs it.
        recorder: see `Recorder`.
        writer: how results come into the tensors given as ``out=``.
        generated: a backward op without a definition of its own: it runs its forward's reference through autograd.
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
    flops: str | Callable[..., float] | None = None
    flops_bound: str | None = None
    touched: Mapping[str, str] = field(default_factory=dict)
    capturable: bool = True
    generated: bool = False
    caveats: tuple[Caveat, ...] = ()
    on_miss: Callable[..., Any] | None = field(default=None, repr=False)
    recorder: "Recorder | None" = field(default=None, repr=False)
    writer: Writer | None = field(default=None, repr=False)
    tuned_features: tuple[Feature, ...] = field(default=(), repr=False)

    FRONTS: ClassVar[int] = 16
    """Guards kept at a time; a process rarely needs more than two for one op."""

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._versions = 0
        self._codes: list[weakref.ref[CodeType]] = []
        self.implementations: tuple[Implementation, ...] = ()
        # Dynamo finds a function's globals by importing its module, so the generated code needs one.
        module = ModuleType(f"opmux.generated.{self.name}", f"The generated call path of {self.name}.")
        sys.modules[module.__name__] = module
        self.namespace = module.__dict__
        # Guards get these for absent optional tensors; each is an object of its own, since a guard refuses repeats.
        self.absent = {
            t.name: torch.empty(0, dtype=torch.float32, device="cpu") for t in self.signature.tensors if t.optional
        }
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
        return self.signature.named(tensors)

    def count_flops(self, sizes: Mapping[str, Any]) -> float | None:
        """Floating-point operations of a call with these dims (the product of a star dim) and the default options.

        Returns:
            None where the op counts none, or where the dims alone do not determine the count.
        """
        if not isinstance(self.flops, str):
            return None
        return float(evaluate(self.flops, {**{o.name: o.default for o in self.signature.options}, **sizes}))

    def bind_arguments(
        self, tensors: Sequence[Any], options: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The tensors in order and the options with defaults filled in, as the public function would bind them.

        Raises:
            TypeError: for missing or unknown arguments, as Python says it, with the op's name in front.
        """
        try:
            bound = inspect.signature(self.public).bind(*tensors, **options)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        bound.apply_defaults()
        values = bound.arguments
        return (
            tuple(values[t.name] for t in self.signature.tensors),
            {o.name: values[o.name] for o in self.signature.options},
        )

    def set_implementations(self, implementations: tuple["Implementation", ...]) -> None:
        """Replace the implementations, rewrite the call path for the features in use, and drop the plans."""
        with self._lock:
            self.implementations = tuple(sorted(implementations, key=lambda i: (i.backend, i.name)))
            self.rebuild()

    def rebuild(self) -> None:
        """Rewrite the call path for the registered features, and start an empty plan table.

        The new code reads the new table under a new global name: code still running keeps the table its keys belong to.
        """
        with self._lock:
            declared = [f for i in self.implementations for f in i.key_features(self.signature)]
            declared += self.tuned_features
            features = tuple({f.source: f for f in declared}.values())
            ambient = () if all(i.deterministic for i in self.implementations) else (names.DETERMINISTIC,)
            previous: OpState | None = getattr(self, "state", None)
            if previous is not None and (previous.features, previous.ambient) == (features, ambient):
                self.state = dataclasses.replace(previous, implementations=self.implementations)
                self._new_table()
                return
            self.state = OpState(self, self.implementations, features, ambient)
            self._versions += 1
            self._new_table()
            source = codegen.entry_source(self.signature, features, ambient, self._versions, self.doc)
            made = codegen.compile_function(self.name, source, self.namespace)
            self._codes.append(weakref.ref(made.__code__))
            if self.signature.takes_out:
                into = functools.partial(self._first_into, self._versions, self.state)
                self.namespace[names.into_name(self._versions)] = into
            if previous is None:
                self.public = made
            else:
                self.public.__code__ = made.__code__
                # Old code may still be running: it finds no plans, and leaves through `_slow`.
                for calls in self._guarded(self._versions - 1):
                    self.namespace[calls.front] = (never, None, None)
                    self.namespace[calls.other] = _no_front
                if self.signature.takes_out:
                    self.namespace[names.into_name(self._versions - 1)] = self.namespace[names.SLOW.text]

    def _guarded(self, version: int) -> list["Guarded"]:
        """What this version's guards are of: all calls, those without scales, those with ``out=``."""
        signature = self.signature
        found = [Guarded(names.front_name(version), names.other_front_name(version), signature)]
        if signature.scales:
            front, other = names.brief_front_name(version), names.other_brief_front_name(version)
            found.append(Guarded(front, other, codegen.without_scales(signature)))
        if signature.takes_out:
            front, other = names.into_front_name(version), names.other_into_front_name(version)
            found.append(Guarded(front, other, signature, len(signature.outputs)))
        return found

    def _first_into(self, version: int, state: OpState, /, *tensors: Any, **options: Any) -> Any:
        """Write the code of calls with ``out=``, which few ops get, and run it."""
        name = names.into_name(version)
        with self._lock:
            if self._versions == version and isinstance(self.namespace[name], functools.partial):
                source = codegen.into_source(self.signature, state.features, state.ambient, version)
                made = codegen.compile_function(name, source, self.namespace)
                self._codes.append(weakref.ref(made.__code__))
        return self.namespace[name](*tensors, **options)

    def names_in_use(self) -> frozenset[str]:
        """The globals that the call path reads, and those of replaced code that a thread may still be running."""
        with self._lock:
            codes = [code for code in (known() for known in self._codes) if code is not None]
            self._codes = [weakref.ref(code) for code in codes]
        return frozenset(name for code in codes for name in _names_of(code))

    def _new_table(self) -> None:
        """Start an empty plan table, with no guards."""
        assert self.on_miss is not None
        self.table = PlanTable(self.state, self.on_miss)
        self._fronts: list[list[FrontEntry]] = []
        for calls in self._guarded(self._versions):
            fronts: list[FrontEntry] = []
            self._fronts.append(fronts)
            self.namespace[calls.other] = functools.partial(self._other_front, calls, self.table, fronts)
            self.namespace[calls.front] = (never, None, None)

    def _other_front(
        self, calls: "Guarded", table: PlanTable, fronts: list["FrontEntry"], /, *tensors: Any
    ) -> "Front | Recording | None":
        """The plans for tensors that the first guard does not match: those behind another guard, or behind a new one.

        Returns:
            None where the call is not plain: a subclass, a functorch level, a wrong argument, or a gradient due that is
            not recorded the short way.
        """
        enabled = torch.is_grad_enabled()
        entry = next((e for e in tuple(fronts) if e[0](*tensors) and e[1] in (None, enabled)), None)
        if entry is None:
            given = tuple(t for t in tensors if not any(t is absent for absent in self.absent.values()))
            last = len(tensors) - calls.written
            arguments, into = tensors[:last], tensors[last:]
            if not is_plain(given) or not self._ranks_fit(calls.signature, arguments):
                return None
            if any(one is argument for one in into for argument in arguments):
                return None  # a guard knows no tensor twice, and the result has to be copied anyway
            tracked = any(t.requires_grad for t in given)
            runs: Front | Recording = Front(table)
            if calls.written:
                if self.writer is None or (tracked and enabled):
                    return None
                runs = Into(table, self.writer)
            elif tracked and enabled:
                by_name = {**self.absent, **{t.name: x for t, x in zip(calls.signature.tensors, tensors, strict=True)}}
                every = tuple(by_name[t.name] for t in self.signature.tensors)
                recorded = None if self.recorder is None else self.recorder(self, every)
                if recorded is None:
                    return None
                runs = Recording(table, *recorded)
            entry = (make_guard(tensors), enabled if tracked else None, runs)
        with self._lock:
            if entry not in fronts:
                fronts[:] = [*fronts[-self.FRONTS + 1 :], entry]
            if self.table is table:
                self.namespace[calls.front] = entry
        return entry[2]

    def _ranks_fit(self, signature: Signature, tensors: tuple[Any, ...]) -> bool:
        """Whether each tensor has the rank that its shape demands; behind a guard, ranks are not checked again."""
        for argument, tensor in zip(signature.tensors, tensors, strict=True):
            least, absent = len(argument.shape.dims), any(tensor is a for a in self.absent.values())
            if not absent and (tensor.dim() < least or (argument.shape.star is None and tensor.dim() != least)):
                return False
        return True

    @property
    def front(self) -> "FrontEntry":
        """The guard that the call path checks first, and the plans behind it."""
        entry: FrontEntry = self.namespace[names.front_name(self._versions)]
        return entry

    def forget_plan(self, key: Any) -> None:
        """Drop the plan of one key of the table, so that the next call makes a new one."""
        with self._lock:
            self.table.pop(key, None)
            self.table.plans.pop(key, None)
            for _, _, front in itertools.chain.from_iterable(self._fronts):
                if front is not None:
                    front.forget(key)

    def drop_plans(self) -> None:
        """Forget every plan: the policy or the quarantine changed."""
        with self._lock:
            self._new_table()

    def rerun_plans(self, run_of: "Callable[[Op, Any], Callable[..., Any] | None]") -> None:
        """Keep the plans, each with the callable that ``run_of`` returns for it; forget those for which it is None."""
        with self._lock:
            kept = tuple(self.table.plans.items())
            self._new_table()
            for key, plan in kept:
                run = run_of(self, plan)
                if run is not None:
                    self.table.store(key, run, plan)


def _names_of(code: CodeType) -> Iterator[str]:
    """The globals and attributes that code and the code within it read."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)


class Guarded(NamedTuple):
    """Calls of an op that have guards of their own.

    Attributes:
        front: the global with the first guard.
        other: the global with what finds another one, or makes it.
        signature: with the tensors of these calls.
        written: how many of the guard's tensors, the last ones, are those given as ``out=``.
    """

    front: str
    other: str
    signature: Signature
    written: int = 0


FrontEntry = tuple[Guard, bool | None, Front | Recording | None]
"""A guard, whether gradients must be on or off for it to hold (None where no tensor requires one), and its plans."""

Recorder = Callable[["Op", Sequence[Any]], tuple[Callable[..., Any], Callable[..., Any] | None] | None]
"""Returns what runs and records calls with tensors like these, called with the plans, the plan's callable, and the
call's arguments; and the function of another op that is to run instead. None where such calls take the long way."""


def _no_front(*tensors: Any) -> None:
    """Replaced code finds this instead of plans."""


PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""The tensor classes that the direct way accepts."""


def is_plain(tensors: tuple[Any, ...]) -> bool:
    """Whether the direct way accepts these: plain strided tensors on one device, no transform."""
    return (
        all(t.__class__ in PLAIN and t.layout is torch.strided and not t.is_nested and not t.is_neg() for t in tensors)
        and not any(torch._C._functorch.is_legacy_batchedtensor(t) for t in tensors)
        and not tensors[0].is_meta
        and all(t.device == tensors[0].device for t in tensors[1:])
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def drop_all_plans() -> None:
    """Forget every plan of every op."""
    for op in tuple(OPS.values()):
        op.drop_plans()


def implementations_of(ops: Mapping[str, Op]) -> list["Implementation"]:
    """Every registered implementation, in a fixed order."""
    return [i for name in sorted(ops) for i in ops[name].implementations]
