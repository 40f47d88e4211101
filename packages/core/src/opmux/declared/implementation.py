"""Implementations: what a backend registers, one record for each way to compute an op."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from opmux.declared.caveats import Caveat
from opmux.declared.constraints import Constraint
from opmux.declared.features import Feature, FeatureRule
from opmux.signatures.signature import Signature


class Priority(IntEnum):
    """Bands of preference; within a band the name decides."""

    EXPERIMENTAL = -1
    """Chosen only when asked for by name."""
    REFERENCE = 0
    PORTABLE = 10
    VENDOR = 20
    SPECIALISED = 30


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One way to compute one op.

    Attributes:
        op: the op's name.
        target: ``"package.module:function"``, imported when first chosen, or the callable itself. It takes the
            op's own arguments: tensors positional, options by keyword; ``config=`` if ``config`` is given;
            ``out=`` (a tensor, or a tuple for several outputs) if ``takes_out``. Tensors may require grad, with
            gradients off: detach them for DLPack.
        name: tells apart several implementations of one backend; empty for the only one.
        archs: patterns, as ``gfx942``, ``sm_80+``, ``gfx9*``, ``cpu``, ``*``.
        priority: the band.
        when: constraints, all of which must hold.
        features: what ``config`` reads of a call.
        config: maps ``(arch, {feature label: value})`` to the config that the target then gets as ``config=``.
        config_schema: a dataclass, or ``"package.module:Name"`` of one in a module that imports no toolchain: the
            parameters of ``config`` with their types, and in ``__post_init__`` what must hold of them (`ValueError`
            with the reason). The target then gets an instance of it, and tuned records that do not fit are refused.
        space: maps ``(arch, {feature label: value})``, as ``config`` does, to every config that is legal for the call:
            what `opmux.tune` measures beside the answer of ``config``. ``"package.module:function"`` or a callable.
        kernels: maps ``(op's name, call, config)`` to the names of what the target launches, which explain and the log
            show. ``"package.module:function"`` or a callable.
        scores: maps ``(arch, {feature label: value})``, as ``config`` does, to pairs of microseconds and a config, the
            fastest first: what the cost model behind ``config`` predicts. Explain shows those that come next to the
            config in use. ``"package.module:function"`` or a callable.
        tiles: how a call is cut into parts of equal work, one to a multiprocessor at a time: pairs of a dim and a
            parameter of the config (or a number), as ``(("tokens", "block_m"), ("n", "block_n"))``. Predicted times are
            then rounded up to whole tiles and whole waves of them; leave it out where work is shared evenly (stream-k).
        requires: importable module names without which it cannot run; looked up, not imported.
        capturable: may run in a CUDA/HIP graph capture once it has run outside of one.
        deterministic: gives equal bits for equal inputs; others are no candidates in torch's deterministic mode.
        takes_out: the target takes ``out=``.
        numerics: says how its numerics differ from the op's own; it is then chosen only when asked for by name.
        caveats: what the op leaves unspecified and this implementation does not compute as the reference does; shown
            to users, and chosen all the same.
        backend, distribution, version: filled in from the plugin that registers it.
    """

    op: str
    target: str | Callable[..., Any]
    name: str = ""
    archs: tuple[str, ...] = ("*",)
    priority: int = Priority.PORTABLE
    when: tuple[Constraint, ...] = ()
    features: tuple[FeatureRule, ...] = ()
    config: str | Callable[..., Any] | None = None
    config_schema: str | type | None = None
    space: str | Callable[..., Any] | None = None
    kernels: str | Callable[..., Any] | None = None
    scores: str | Callable[..., Any] | None = None
    tiles: tuple[tuple[str, str | int], ...] = ()
    requires: tuple[str, ...] = ()
    capturable: bool = False
    deterministic: bool = False
    takes_out: bool = False
    numerics: str | None = None
    caveats: tuple[Caveat, ...] = ()
    backend: str = ""
    distribution: str = ""
    version: str = ""

    @property
    def full_name(self) -> str:
        """``backend`` or ``backend:name``."""
        return f"{self.backend}:{self.name}" if self.name else self.backend

    @property
    def title(self) -> str:
        """The full name with the package that brings it, for messages."""
        return f"{self.full_name} ({self.distribution} {self.version})"

    def is_named(self, name: str) -> bool:
        """Whether ``name`` means this implementation: its backend, or its full name."""
        return name in (self.backend, self.full_name)

    def key_features(self, signature: Signature) -> tuple[Feature, ...]:
        """Every feature it adds to the op's key, from its constraints and its config.

        Raises:
            PluginError: where a constraint or feature names an argument that the op does not have.
        """
        declared = [f for constraint in self.when for f in constraint.features(signature)]
        return (*declared, *(rule.feature(signature) for rule in self.features))
