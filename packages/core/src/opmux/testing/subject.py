"""A case while the suite runs it: its arguments in guarded memory, and the call of the target."""

import itertools
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import opmux
from opmux.callpath.op import Op
from opmux.errors import OpmuxError
from opmux.signatures.validation import check_call
from opmux.testing import execution
from opmux.testing.case import Case
from opmux.testing.comparison import Errors, Finding
from opmux.testing.inputs import make_arguments
from opmux.testing.magnitudes import doublings_of
from opmux.testing.making import Arguments
from opmux.testing.memory import Guarded, guarded
from opmux.testing.oracle import mutated


class TargetRaised(Exception):
    """The target raised, not the suite."""


def traceback_of(raised: TargetRaised) -> str:
    """The traceback of the target's first exception, starting at its own code."""
    error: BaseException = raised
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    ours = (str(Path(opmux.__file__).parent), "<opmux")
    own = list(itertools.dropwhile(lambda frame: frame.filename.startswith(ours), frames))
    lines = traceback.format_list(own or frames[-1:]) + traceback.format_exception_only(error)
    return "Traceback (most recent call last):\n" + "".join(lines).rstrip()


class NotClaimed(Exception):
    """The probe needs a call that the backend does not claim; the message is the reason."""


@dataclass
class Subject:
    """A case while a probe runs it.

    Attributes:
        arguments: the tensors as they were made, contiguous; these go to the oracle.
        placed: the same in guarded memory, laid out as the case's view; these go to the target.
        claim: whether the backend claims the call.
    """

    backend: str
    case: Case
    op: Op
    device: torch.device
    arguments: Arguments
    placed: dict[str, Guarded]
    claim: execution.Claim = field(default_factory=execution.unasked)
    findings: list[Finding] = field(default_factory=list)
    errors: Errors = field(default_factory=Errors)

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        """The tensors that are passed to the target."""
        return {n: self.placed[n].tensor if n in self.placed else None for n in self.arguments.tensors}

    def report(self, check: str, message: str, traceback: str = "") -> None:
        """Record a finding; only the first one of each check is kept."""
        if all(f.check != check for f in self.findings):
            self.findings.append(Finding(check, message, traceback))


def place(case: Case, op: Op, arguments: Arguments) -> dict[str, Guarded]:
    """Put the tensors into guarded memory. An expanded one repeats its first entry, in the arguments too."""
    placed = {}
    for name, tensor in arguments.tensors.items():
        if tensor is None:
            continue
        view = case.view
        if view == "expanded":
            reads_only = name not in op.signature.mutates and tensor.dtype.is_floating_point
            whole = tensor.dim() > 1 and tensor.numel() > 0 and not name.endswith("_cache")
            view = view if reads_only and whole else "plain"
        placed[name] = guarded(tensor, view)
        if view == "expanded":
            arguments.tensors[name] = placed[name].tensor.contiguous()
        placed[name].remember()
    return placed


def prepare(backend: str, case: Case, device: torch.device) -> Subject:
    """Make a case's arguments and ask whether the backend claims the call."""
    op = case.definition
    arguments = make_arguments(case, device, doublings=doublings_of(case, device))
    subject = Subject(backend, case, op, device, arguments, place(case, op, arguments))
    subject.claim = execution.claim(op, backend, subject.tensors, arguments.options)
    return subject


def called(op: Op, backend: str, tensors: Any, options: Any, **extra: Any) -> tuple[Tensor, ...]:
    """`execution.call`, with its errors distinguished from those of the suite.

    Raises:
        TargetRaised: If the call raised.
    """
    try:
        return execution.call(op, backend, tensors, options, **extra)
    except Exception as error:
        words = str(error) if isinstance(error, OpmuxError) else f"{type(error).__name__}: {error}"
        raise TargetRaised(words) from error


def run(subject: Subject, **extra: Any) -> tuple[Tensor, ...]:
    """Call the target; for a mutating op, returns the mutated tensors."""
    found = called(subject.op, subject.backend, subject.tensors, subject.arguments.options, **extra)
    if subject.op.signature.mutates:
        return tuple(subject.placed[n].tensor for n in mutated(subject.op))
    return found


def forms(subject: Subject) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and dtypes of the op's outputs for this call."""
    signature, options = subject.op.signature, subject.arguments.options
    dims, normal = check_call(signature, subject.arguments.tensors, options)
    dtypes = signature.output_dtypes(subject.arguments.tensors, normal)
    return list(zip(signature.output_shapes(dims, normal), dtypes, strict=True))


def refill(subject: Subject, arguments: Arguments) -> None:
    """Write other contents into the same tensors that were passed to the target."""
    for name, value in arguments.tensors.items():
        if value is not None:
            subject.placed[name].tensor.copy_(value)
            subject.placed[name].remember()
