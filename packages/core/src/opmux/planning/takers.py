"""Which implementations would take a call on an arch, for tools that inspect kernels without a device, and the tuner.

`opmux.explain` reports to people; this returns the implementations themselves, each with its configs and its target.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from opmux import policy
from opmux.arch import Arch, known_arch
from opmux.callpath.op import OPS, Op
from opmux.declared.call import Call
from opmux.declared.configs import make_config
from opmux.declared.implementation import Implementation
from opmux.errors import InvalidArgument
from opmux.planning import resolver
from opmux.planning.plan import known_config, resolve
from opmux.plugins import loading
from opmux.running import background
from opmux.running.attempt import Attempt, attempt_of
from opmux.running.targets import answer_of, config_of, load_target, make_run


@dataclass(frozen=True)
class Taker:
    """An implementation that takes a call.

    Attributes:
        implementation: its record.
    """

    implementation: Implementation
    _attempt: Attempt
    _resolution: resolver.Resolution

    @property
    def call(self) -> Call:
        """The call that was judged; ``call.options`` has the defaults filled in."""
        return self._attempt.call

    def config(self) -> Any:
        """The config that the target would get, tuned or from the record's own function; None where it takes none.

        Raises:
            Exception: whatever the config function raises.
        """
        known = known_config(self.implementation.full_name, self._resolution)
        return config_of(self._attempt, self.implementation, known)[0]

    def heuristic(self) -> Any:
        """The config from the record's own function, whatever tuned records say; None where it takes none.

        Raises:
            Exception: whatever the config function raises.
        """
        return config_of(self._attempt, self.implementation, None)[0]

    def space(self) -> Iterator[Any]:
        """The configs of the record's ``space`` as it yields them; none where it declares no space.

        Raises:
            Exception: whatever the function raises.
        """
        declared = self.implementation.space
        if declared is None:
            return
        yield from answer_of(self._attempt, self.implementation, declared)

    def bound(self, config: Any) -> Callable[..., Any]:
        """The target with a config, as a plan of this call would run it: it takes the call's tensors and options.

        Args:
            config: an instance of the record's schema, the parameters by name, or None where the target takes none.

        Raises:
            ValueError: where the config does not fit the schema.
            Exception: whatever the import raises.
        """
        fitted = None if self.implementation.config is None else make_config(self.implementation, config)
        check = policy.current().check
        return make_run(self._attempt.op, self.call.arch, self.implementation, self.target(), fitted, check)

    def target(self) -> Callable[..., Any]:
        """The target, imported now.

        Raises:
            Exception: whatever the import raises.
        """
        return load_target(self._attempt.op, self.implementation)

    def run(self) -> Any:
        """Call the target on the call's own tensors, as a planned call would: its options and config, no gradient.

        Raises:
            Exception: whatever the config function, the import or the target raises.
        """
        run = self.bound(self.config())
        with torch.no_grad(), background.building_here():
            return run(*self.call.tensors.values(), **self.call.options)


def takers(op: Any, *tensors: Any, arch: str | Arch, backend: str | None = None, **options: Any) -> tuple[Taker, ...]:
    """Every implementation that takes a call on an arch, the one that would be chosen first.

    Policy, quarantine and tuned records apply, as they do in a call.

    Args:
        op: the op, as ``opmux.rms_norm``.
        *tensors: its tensors; meta tensors suffice, so no device is needed.
        arch: ``gfx942``, ``sm_90``, ``cpu``, or an `Arch`.
        backend: only implementations of this name, those that are chosen by name alone included; None takes all.
        **options: the op's options, and tensors given by name.

    Raises:
        InvalidArgument: where ``op`` is no op, the call breaks its signature, or ``arch`` names none.
    """
    definition = getattr(op, "op", None)
    if not isinstance(definition, Op):
        raise InvalidArgument(f"takers: `op` expected an op, as opmux.rms_norm, got {op!r}; see `opmux ops`")
    loading.ensure_loaded()
    arguments, filled = definition.bind_arguments(tensors, options)
    where = arch if isinstance(arch, Arch) else known_arch(arch)
    attempt = attempt_of(definition, definition.state, arguments, filled, backend, where)
    resolution = resolve(attempt, awaits=False)
    return tuple(Taker(v.implementation, attempt, resolution) for v in resolution.accepted)


def registered_ops() -> Mapping[str, Any]:
    """Every op by name, the core's and those of the installed plugins: the functions that users call.

    ``function.op.signature`` is the op's signature as data, ``function.op.implementations`` what is registered for it.
    """
    loading.ensure_loaded()
    return {name: op.public for name, op in OPS.items()}
