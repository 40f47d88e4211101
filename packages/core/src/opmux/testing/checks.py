"""What is checked of one case: a probe for each thing to look at, each a function of a `Subject`.

A probe calls the target on guarded tensors and returns what is wrong. `values` is the usual one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opmux.errors import OpmuxError
from opmux.implementation import Implementation
from opmux.op import OPS, Op
from opmux.testing import execution
from opmux.testing.bounds import allowances, unit_roundoff
from opmux.testing.case import Case, all_options
from opmux.testing.comparison import Errors, Finding, compare
from opmux.testing.inputs import Arguments, make_arguments
from opmux.testing.memory import Guarded, bits, guarded, guarded_empty
from opmux.testing.oracle import expected_results, mutated, upcast
from opmux.testing.poison import poison_freed, poisoned
from opmux.validation import check_call


class TargetRaised(Exception):
    """The target, and not the suite, raised."""


class NotClaimed(Exception):
    """The probe needs a call that the backend does not claim; says why."""


@dataclass
class Subject:
    """A case on its way through a probe.

    Attributes:
        arguments: the tensors as they were made, contiguous: what the oracle is given.
        placed: the same in guarded memory, as the case's view says: what the target is given.
        implementation: the one that takes the call.
    """

    backend: str
    case: Case
    op: Op
    device: torch.device
    arguments: Arguments
    placed: dict[str, Guarded]
    implementation: Implementation
    findings: list[Finding] = field(default_factory=list)
    errors: Errors = field(default_factory=Errors)

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        """What the target is given."""
        return {n: self.placed[n].tensor if n in self.placed else None for n in self.arguments.tensors}

    def report(self, check: str, message: str) -> None:
        """Record that something is wrong; one finding of a check is enough."""
        if all(f.check != check for f in self.findings):
            self.findings.append(Finding(check, message))


def place(case: Case, op: Op, arguments: Arguments) -> dict[str, Guarded]:
    """Put the tensors into guarded memory. An expanded one repeats its first entry, in the arguments as well."""
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


def prepare(backend: str, case: Case, device: torch.device) -> tuple[Subject | None, execution.Claim]:
    """Make a case's arguments and ask whether the backend takes the call."""
    op = case.definition
    arguments = make_arguments(case, device)
    placed = place(case, op, arguments)
    given = {n: placed[n].tensor if n in placed else None for n in arguments.tensors}
    claim = execution.claim(op, backend, given, arguments.options)
    if claim.implementation is None:
        return None, claim
    return Subject(backend, case, op, device, arguments, placed, claim.implementation), claim


# Parts of probes.


def called(op: Op, backend: str, tensors: Any, options: Any, **extra: Any) -> tuple[Tensor, ...]:
    """`execution.call`, with whatever it raises told apart from the suite's own mistakes.

    Raises:
        TargetRaised: whatever it was.
    """
    try:
        return execution.call(op, backend, tensors, options, **extra)
    except Exception as error:
        words = str(error) if isinstance(error, OpmuxError) else f"{type(error).__name__}: {error}"
        raise TargetRaised(words) from error


def run(subject: Subject, **extra: Any) -> tuple[Tensor, ...]:
    """Call the target; of a mutating op, the mutated tensors are its results."""
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


def check_forms(subject: Subject, results: Sequence[Tensor]) -> None:
    """Number, shapes, dtypes, devices and strides of the outputs; they share no memory with anything."""
    signature, expected = subject.op.signature, forms(subject)
    if len(results) != len(expected):
        subject.report("form", f"{len(results)} outputs, expected {len(expected)}")
        return
    inputs = {t.untyped_storage().data_ptr(): n for n, t in subject.tensors.items() if t is not None and t.numel()}
    for output, got, (shape, dtype) in zip(signature.outputs, results, expected, strict=True):
        if (tuple(got.shape), got.dtype, got.device.type) != (shape, dtype, subject.device.type):
            subject.report(
                "form", f"`{output.name}` is {got.dtype} {list(got.shape)} on {got.device}, expected {dtype} {list(shape)}"
            )
        if not got.numel():
            continue
        if output.strides is None or shape == (0,):
            right, wanted = got.is_contiguous(), "contiguous"
        else:
            strides = output.strides(shape, subject.arguments.options)
            right = all(a == b or n <= 1 for a, b, n in zip(got.stride(), strides, shape, strict=True))
            wanted = f"strides {list(strides)}"
        if not right:
            subject.report("strides", f"`{output.name}` has strides {list(got.stride())}, expected {wanted}")
        memory = got.untyped_storage().data_ptr()
        if memory in inputs:
            subject.report("aliasing", f"`{output.name}` shares memory with `{inputs[memory]}`")
        inputs[memory] = output.name


def check_memory(subject: Subject, allocated: Sequence[Guarded] = ()) -> None:
    """Nothing was written but what the op writes: inputs, what lies around them, what lies around allocations."""
    writes = set(subject.op.signature.mutates)
    for name, buffer in subject.placed.items():
        count = buffer.changed_outside()
        if count:
            subject.report("writes outside", f"{count} elements around `{name}` (not part of it) were written")
        if name not in writes and bool(buffer.changed_inside().any()):
            subject.report("inputs", f"`{name}` was written, and the op only reads it")
    for buffer in allocated:
        count = buffer.changed_outside()
        if count:
            subject.report(
                "writes outside", f"{count} elements around a tensor of shape {list(buffer.tensor.shape)} that the "
                "target allocated were written"
            )  # fmt: skip


def check_values(subject: Subject, results: Sequence[Tensor], arguments: Arguments, check: str = "") -> None:
    """Hold results to the oracle for these arguments; ``check`` renames what is found."""
    op = subject.op
    exact = expected_results(op, arguments, results)
    names = list(mutated(op)) or [o.name for o in op.signature.outputs]
    operands = {n: upcast(t) for n, t in arguments.tensors.items()}
    dtypes = {n: t.dtype for n, t in arguments.tensors.items() if t is not None}
    allowed = allowances(op, operands, dtypes, arguments.options, exact)
    unit = unit_roundoff(list(dtypes.values()))
    for name, got, right, allowance in zip(names, results, exact, allowed, strict=True):
        if tuple(got.shape) != tuple(right.shape):
            continue  # reported as the wrong form
        errors, findings = compare(name, got, right, allowance, unit)
        subject.errors.include(errors)
        for finding in findings:
            subject.report(check or finding.check, f"{finding.check}: {finding.message}" if check else finding.message)
    if op.signature.mutates and op.in_place_of is None:
        check_untouched(subject, arguments, exact)


def check_untouched(subject: Subject, arguments: Arguments, exact: Sequence[Tensor]) -> None:
    """What a mutating op does not write is bit for bit what it was."""
    for name, after in zip(mutated(subject.op), exact, strict=True):
        before = arguments.tensors[name]
        assert before is not None
        same = (after == upcast(before)) | (after.isnan() & before.isnan()) if before.dtype.is_floating_point else (
            after == before
        )  # fmt: skip
        wrong = same & subject.placed[name].changed_inside()
        count = int(wrong.sum())
        if count:
            subject.report("writes elsewhere", f"{count} elements of `{name}` that the op does not write have changed")


def same_bits(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Whether two results are equal bit for bit."""
    return len(a) == len(b) and all(
        x.shape == y.shape and x.dtype == y.dtype and torch.equal(bits(x.contiguous()), bits(y.contiguous()))
        for x, y in zip(a, b, strict=True)
    )


def refill(subject: Subject, arguments: Arguments) -> None:
    """Write other contents into the very tensors that the target was given."""
    for name, value in arguments.tensors.items():
        if value is not None:
            subject.placed[name].tensor.copy_(value)
            subject.placed[name].remember()


# Probes.


def values(subject: Subject) -> None:
    """One call in poisoned memory, held to the oracle and to its buffers; one in ordinary memory, likewise."""
    if not subject.op.signature.mutates:
        poison_freed(forms(subject), subject.device)
    with poisoned() as allocated:
        results = run(subject)
    if not subject.op.signature.mutates:
        check_forms(subject, results)
    check_memory(subject, allocated)
    check_values(subject, results, subject.arguments)
    if subject.op.signature.mutates:
        return
    again = run(subject)
    if not same_bits(results, again):
        check_values(subject, again, subject.arguments)


def nonfinite(subject: Subject) -> None:
    """One NaN, or one infinity, in one tensor: it reaches what it reaches in the oracle, and nothing else."""
    name, value = subject.case.data, float(subject.case.probe)
    tensor = subject.arguments.tensors[name]
    if tensor is None or not tensor.numel():
        return
    plant(subject, name, value)
    results = run(subject)
    check_memory(subject)
    check_values(subject, results, subject.arguments)


def plant(subject: Subject, name: str, value: float) -> None:
    """Put a value into the middle of a tensor; of a paged cache, where a token lies."""
    tensor = subject.arguments.tensors[name]
    assert tensor is not None
    index = [size // 2 for size in tensor.shape]
    table, lengths = subject.arguments.tensors.get("block_table"), subject.arguments.tensors.get("seq_lens")
    if name.endswith("_cache") and table is not None and lengths is not None:
        row = int(lengths.argmax())
        token = int(lengths[row]) // 2
        index[:2] = [int(table[row, token // tensor.shape[1]]), token % tensor.shape[1]]
    for one in (tensor, subject.placed[name].tensor):
        one[tuple(index)] = value
    subject.placed[name].remember()


def out(subject: Subject) -> None:
    """``out=`` writes into the given tensors, which lie in guarded memory, and returns them."""
    run(subject)  # a plan is made, or out= is a copy
    given = [guarded_empty(shape, dtype, subject.device, subject.case.view) for shape, dtype in forms(subject)]
    for buffer in given:
        buffer.remember()
    targets = tuple(buffer.tensor for buffer in given)
    results = run(subject, out=targets if len(targets) > 1 else targets[0])
    if len(results) != len(targets) or any(a is not b for a, b in zip(results, targets, strict=True)):
        subject.report("out=", "the call does not return the tensors that were given as out=")
    for output, buffer in zip(subject.op.signature.outputs, given, strict=True):
        count = buffer.changed_outside()
        if count:
            subject.report("writes outside", f"{count} elements around out= `{output.name}` were written")
    check_memory(subject)
    check_values(subject, targets, subject.arguments)


def repeat(subject: Subject) -> None:
    """Equal bits for equal inputs, whatever the memory held before."""
    results = [t.clone() for t in run(subject)]
    for _ in range(3):
        if subject.op.signature.mutates:
            refill(subject, subject.arguments)
        else:
            poison_freed(forms(subject), subject.device)
        again = run(subject)
        if not same_bits(results, again):
            subject.report("determinism", "equal inputs gave different bits, and deterministic=True is declared")
            return


def stale(subject: Subject) -> None:
    """The same tensors with other contents: nothing of the first call is left in the second."""
    other = _other_contents(subject)
    run(subject)
    refill(subject, other)
    results = run(subject)
    check_values(subject, results, other, check="stale contents")


def _other_contents(subject: Subject) -> Arguments:
    """Other contents of the same shapes; bounds that follow from the contents become the larger of both."""
    other = make_arguments(subject.case, subject.device, round_=1)
    fixed = all_options(subject.op.signature, subject.case)
    for name, value in other.options.items():
        if name not in fixed:
            other.options[name] = max(value, subject.arguments.options[name])
    subject.arguments.options = other.options
    return other


def capture(subject: Subject) -> None:
    """Captured in a CUDA/HIP graph and replayed on other contents."""
    other = _other_contents(subject)
    stream = torch.cuda.Stream(subject.device)
    stream.wait_stream(torch.cuda.current_stream(subject.device))
    with torch.cuda.stream(stream):
        run(subject)
        run(subject)
    torch.cuda.current_stream(subject.device).wait_stream(stream)
    if subject.op.signature.mutates:
        refill(subject, subject.arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = run(subject)
    refill(subject, other)
    graph.replay()
    torch.cuda.synchronize(subject.device)
    check_values(subject, results, other, check="graph capture")


def gradient(subject: Subject) -> None:
    """The gradients that autograd gives, held to the oracle of the backward op on what the forward returned."""
    op, options = subject.op, subject.arguments.options
    backward = OPS[op.gradient]
    wanted = [o.name.removeprefix("grad_") for o in backward.signature.outputs]
    saved = run_forward(subject, OPS[op.gradient_through] if op.gradient_through else op)
    generator = torch.Generator(subject.device).manual_seed(1)
    given = [_drawn_like(saved[o.name], generator) for o in op.signature.outputs]
    named: dict[str, Any] = {**subject.arguments.tensors, **saved}
    named |= {f"grad_{o.name}": g for o, g in zip(op.signature.outputs, given, strict=True)}
    mask = tuple(subject.arguments.tensors[n] is not None for n in wanted)
    arguments = Arguments(
        {t.name: named.get(t.name) for t in backward.signature.tensors},
        {o.name: options.get(o.name) for o in backward.signature.options} | {"output_mask": mask},
    )
    if execution.implementations(backward, subject.backend):
        must_claim(backward, subject.backend, arguments.tensors, arguments.options)
    leaves: dict[str, Tensor | None] = {
        n: t.detach().requires_grad_(n in wanted) if t is not None else None for n, t in subject.tensors.items()
    }
    with torch.enable_grad():
        results = called(op, subject.backend, leaves, options)
        asked = [t for n in wanted if (t := leaves[n]) is not None]
        found = iter(differentiated(results, asked, given))
    exact = expected_results(backward, arguments, ())
    operands = {n: upcast(t) for n, t in arguments.tensors.items()}
    dtypes = {n: t.dtype for n, t in arguments.tensors.items() if t is not None}
    allowed = allowances(backward, operands, dtypes, arguments.options, exact)
    unit = unit_roundoff(list(dtypes.values()))
    for output, there, right, allowance in zip(backward.signature.outputs, mask, exact, allowed, strict=True):
        if there:
            errors, findings = compare(output.name, next(found), right, allowance, unit)
            subject.errors.include(errors)
            for finding in findings:
                subject.report("gradient", f"{finding.check}: {finding.message}")
    check_memory(subject)


def _drawn_like(result: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(result.shape, generator=generator, device=result.device, dtype=torch.float32)
    return drawn.to(result.dtype)


def differentiated(results: Sequence[Tensor], asked: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
    """`torch.autograd.grad`, with whatever the target's backward raises told apart from the suite's own mistakes."""
    try:
        return torch.autograd.grad(results, asked, given)
    except Exception as error:
        raise TargetRaised(f"in the backward: {error}") from error


def must_claim(op: Op, backend: str, tensors: Any, options: Any) -> None:
    """Go on only where the backend takes another op's call too, which the probe makes.

    Raises:
        NotClaimed: with the declared reason.
    """
    claim = execution.claim(op, backend, tensors, options)
    if claim.implementation is None:
        raise NotClaimed(f"{op.name}: {claim.reason}")


def run_forward(subject: Subject, variant: Op) -> dict[str, Tensor]:
    """What the forward (the variant that runs when a gradient is due) returns, by name."""
    must_claim(variant, subject.backend, subject.tensors, subject.arguments.options)
    with torch.no_grad():
        results = called(variant, subject.backend, subject.tensors, subject.arguments.options)
    return {o.name: r for o, r in zip(variant.signature.outputs, results, strict=True)}


Probe = Callable[[Subject], None]

PROBES: dict[str, Probe] = {
    "values": values,
    "nan": nonfinite,
    "inf": nonfinite,
    "out": out,
    "repeat": repeat,
    "stale": stale,
    "gradient": gradient,
    "capture": capture,
}
"""What can be looked at."""

ABILITIES: dict[str, tuple[str, str]] = {
    "repeat": ("deterministic", "not deterministic (deterministic=False)"),
    "capture": ("capturable", "not for graph capture (capturable=False)"),
}
"""Probes of what an implementation need not claim: the field of its record, and the reason of the skip."""
