"""An attempt: a call that has been checked, with its plan key: what planning, running and judging failures work on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opmux.arch import Arch, arch_of
from opmux.callpath.op import Op, OpState
from opmux.callpath.plans import Forced
from opmux.declared.call import Call
from opmux.signatures.validation import check_call, describe_call

FUNCTIONAL_BACKEND, FUNCTIONAL = "opmux", "functional"
"""The backend and name of the implementation of an in-place op that calls the functional op and copies its results."""


@dataclass(frozen=True)
class Attempt:
    """One call that is being planned and run.

    Attributes:
        call: the validated call.
        key: the plan key, equal for all calls that share a plan.
        forced: the caller's ``backend=``.
        asked: the backend to look for: ``forced``, or, for an in-place op, `FUNCTIONAL_BACKEND` where only the
            functional op has that backend.
    """

    op: Op
    call: Call
    key: tuple[Any, ...]
    forced: str | None = None
    asked: str | None = None

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The tensors in order, None for an absent one."""
        return tuple(self.call.tensors.values())

    @property
    def table_key(self) -> Any:
        """The plan's key in the plan table."""
        return self.key if self.forced is None else Forced(self.forced, self.key)

    def check_data(self) -> None:
        """Check the index data of the call, where the op has some.

        Raises:
            InvalidArgument: where the data is invalid.
        """
        if self.op.check_data is not None:
            self.op.check_data(**self.call.tensors, **self.call.options)

    def __str__(self) -> str:
        return describe_call(self.op.signature, self.tensors, self.call.options)


def attempt_of(
    op: Op,
    state: OpState,
    tensors: Sequence[Any],
    options: Mapping[str, Any],
    forced: str | None = None,
    arch: Arch | None = None,
) -> Attempt:
    """Check the arguments and build the attempt.

    Args:
        op: the op.
        state: what the parts of its keys mean.
        tensors: every tensor argument in order, None for an absent one.
        options: every option.
        forced: the caller's ``backend=``.
        arch: the arch to plan for; by default that of its first tensor's device.

    Raises:
        InvalidArgument: where the call breaks the signature.
    """
    named = op.signature.named(tensors)
    dims, normal = check_call(op.signature, named, options)
    key = state.key_of(*tensors, **normal)
    features = {label: key[place] for label, place in state.layout.items()}
    where = arch if arch is not None else arch_of(tensors[0].device)
    through_functional = (
        forced is not None and op.in_place_of is not None and not any(i.is_named(forced) for i in op.implementations)
    )
    asked = FUNCTIONAL_BACKEND if through_functional else forced
    return Attempt(op, Call(op.signature, where, named, normal, dims, features), key, forced, asked)
