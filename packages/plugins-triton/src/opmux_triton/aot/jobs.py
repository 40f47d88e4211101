"""What there is to compile for an arch: the launches that the targets make over the conformance cases.

Kernels and configs are picked by the same code as in a call: constraints, config functions and targets run on tensors
without data (torch's meta device), and a `recording` notes each launch.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from opmux.plugin import InvalidArgument, Op, registered_ops, takers
from opmux.testing import Case, all_options, cases_of, view_strides
from opmux_triton.launch import DEPENDENT, FP8, FUSION, Launch, recording

BACKEND = "triton"
OF_THE_ARCH = (*FUSION, DEPENDENT, FP8, "launch_pdl")
"""Constants and options that depend only on the arch, and so do not distinguish variants."""
PROFILES = ("model", "large")
"""The profiles whose cases are enumerated: first the shapes of real models, with edges, odd sizes and views; then
shapes too large for 32-bit indices, which add only launches that the first profile does not have."""
LONG = 131072
"""Room for tokens in a decode step of a serving stack: far more than a case can hold."""


@dataclass
class Job:
    """One kernel in one config.

    Attributes:
        config: the result of the config function.
        flags: the constants of the launch other than sizes, and the dtypes of its tensors.
        launch: the launch to compile: of all that share kernel, config and flags the one with the most elements.
        profile: the first profile that has such cases.
        cases: how many cases launch it.
        ops: the ops of these cases; ``op`` is that of the launch.
    """

    op: str
    implementation: str
    kernel: str
    config: Mapping[str, Any]
    flags: str
    launch: Launch
    profile: str = PROFILES[0]
    cases: int = 0
    ops: set[str] = field(default_factory=set)
    size: int = field(default=0, repr=False)

    @property
    def key(self) -> str:
        """Names the job in the record of expected results."""
        settings = ",".join(f"{name}={value}" for name, value in sorted(self.config.items()))
        return f"{self.kernel}|{settings}|{self.flags}"


@dataclass
class Enumeration:
    """The jobs of an arch, with the numbers of cases and launches they came from."""

    arch: str
    jobs: dict[str, Job] = field(default_factory=dict)
    cases: int = 0
    claimed: int = 0
    launches: int = 0
    failures: list[str] = field(default_factory=list)


def enumerate_jobs(arch: str, ops: Sequence[str] | None = None, profiles: Sequence[str] = PROFILES) -> Enumeration:
    """Every kernel in every config that the cases of the ops get on an arch.

    Args:
        arch: ``gfx942``, ``sm_90``, ...
        ops: names of ops; without, every op that this backend has an implementation of.
        profiles: whose cases to enumerate; a later profile adds only jobs that the earlier ones do not have.

    Raises:
        InvalidArgument: where an op does not exist.
    """
    require_ops(ops or ())
    known = registered_ops()
    found = Enumeration(arch)
    for name in ops or known:
        op = known[name].op
        if any(i.backend == BACKEND for i in op.implementations):
            seen: set[str] = set()
            for profile in profiles:
                for case in _distinct(cases_of(name, profile, gpu=True), seen):
                    _add_case(found, op, case, profile)
    return found


def require_ops(names: Iterable[str]) -> None:
    """Check names of ops.

    Raises:
        InvalidArgument: where an op does not exist.
    """
    for name in names:
        if name not in registered_ops():
            raise InvalidArgument(f"machine-code: `--op` expected the name of an op, got {name!r}; see `opmux ops`")


def _distinct(cases: Sequence[Case], seen: set[str]) -> Iterator[Case]:
    """Cases that differ in what a launch depends on; contents and probes do not matter here."""
    for case in cases:
        key = case.id.split(",@data=")[0].split(",@probe=")[0]
        if key not in seen:
            seen.add(key)
            yield case


def _add_case(found: Enumeration, op: Op, case: Case, profile: str) -> None:
    tensors = _tensors(op, case)
    for options in _options(op, case):
        found.cases += 1
        own = [
            t for t in takers(op.public, *tensors, arch=found.arch, **options) if t.implementation.backend == BACKEND
        ]
        found.claimed += bool(own)
        for taker in own:
            name = taker.implementation.full_name
            try:
                # Not the measured config of a row that is near: what is compiled must not change with the records.
                chosen = taker.heuristic()
                config, run = _settings(chosen), taker.bound(chosen)
                with recording(found.arch) as recorded, torch.no_grad():
                    run(*taker.call.tensors.values(), **taker.call.options)
            except Exception as error:  # one case's failure must not hide the others
                found.failures.append(f"{op.name} {name} {case.id}: {type(error).__name__}: {error}")
                continue
            for launch in recorded.launches:
                found.launches += 1
                _add_launch(found, op, name, config, launch, profile)


def _settings(config: Any) -> dict[str, Any]:
    """A config as plain data, without fields that are None and records that have no other fields."""
    plain = {} if config is None else asdict(config)
    return {name: kept for name, value in plain.items() if (kept := _kept(value)) is not None}


def _kept(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: kept for name, item in value.items() if (kept := _kept(item)) is not None} or None


def _add_launch(
    found: Enumeration, op: Op, implementation: str, config: Mapping[str, Any], launch: Launch, profile: str
) -> None:
    flags = [
        f"{n}={v}" for n, v in launch.meta.items() if n not in OF_THE_ARCH and (isinstance(v, (bool, str)) or v is None)
    ]
    tensors = [getattr(a, "base", a) for a in launch.arguments]
    flags += [str(a.dtype).removeprefix("torch.") for a in tensors if isinstance(a, torch.Tensor)]
    flags += [f"absent:{i}" for i, a in enumerate(tensors) if a is None]
    # The launch's own warps and stages replace those of the config.
    used = {n: launch.meta[n] for n in ("num_warps", "num_stages") if n in launch.meta}
    job = Job(op.name, implementation, launch.kernel.__name__, {**config, **used}, " ".join(flags), launch, profile)
    job.size = sum(a.numel() for a in tensors if isinstance(a, torch.Tensor) and a.is_contiguous())
    known = found.jobs.setdefault(job.key, job)
    known.cases += 1
    known.ops.add(op.name)
    if job.size > known.size and job.profile == known.profile:
        job.cases, job.ops = known.cases, known.ops
        found.jobs[job.key] = job


def _tensors(op: Op, case: Case) -> list[torch.Tensor | None]:
    made: list[torch.Tensor | None] = []
    for argument in op.signature.tensors:
        shape = case.shapes.get(argument.name)
        if shape is None:
            made.append(None)
            continue
        view = case.view if case.dtypes[argument.name].is_floating_point else "plain"
        strides = view_strides(tuple(shape), view)
        made.append(torch.empty_strided(shape, strides, dtype=case.dtypes[argument.name], device="meta"))
    return made


def _options(op: Op, case: Case) -> Iterator[dict[str, Any]]:
    """The case's options; several sets where bounds follow from index data.

    Those of a prefill, and for paged keys also those of a decode step, and of one with room for `LONG` tokens.
    """
    filled = all_options(op.signature, case)
    open_ = [o.name for o in op.signature.options if o.name not in filled]
    if not open_:
        yield filled
        return
    batch = case.dims.get("batch", 1)
    batch = max(1, math.prod(batch) if isinstance(batch, tuple) else batch)
    tokens = max(1, case.dims.get("tokens_q", case.dims.get("tokens", 1)))
    context = case.dims.get("tokens_k", case.dims.get("max_pages", 1) * case.dims.get("page_size", 1))
    bounds = {"max_seqlen_q": -(-tokens // batch), "max_seqlen_k": max(1, context)}
    bounds |= {"expected_m": case.dims.get("max_m", 1), "k_blocks": 4 * case.dims.get("words", 0)}
    steps = [bounds]
    if "block_table" in {t.name for t in op.signature.tensors}:
        steps += [bounds | {"max_seqlen_q": 1}, bounds | {"max_seqlen_q": 1, "max_seqlen_k": LONG}]
    for number, step in enumerate(steps):
        if step not in steps[:number]:
            yield filled | {name: step.get(name, 1) for name in open_}


def representatives(jobs: Iterable[Job], ops: Collection[str] = ()) -> list[Job]:
    """Two jobs for each kernel, config, data width and profile: the largest problem, and the one with most flags on.

    Masks, sinks and the like multiply the variants of a kernel; its tiles, warps and stages, and with them registers
    and LDS, are those of the config.

    Args:
        jobs: the jobs of all ops. Several ops may launch the same kernel, and which of their jobs represents it must
            not depend on the ops asked for.
        ops: return only representatives of kernels and configs that one of these ops launches; all if empty.
    """
    groups: dict[tuple[str, str, int, str], list[Job]] = {}
    for job in jobs:
        group_of = (job.kernel, str(sorted(job.config.items())), _width(job.launch), job.profile)
        groups.setdefault(group_of, []).append(job)
    picked: dict[str, Job] = {}
    stands_for: dict[str, set[str]] = {}
    for group in groups.values():
        for job in (
            max(group, key=lambda j: j.size),
            max(group, key=lambda j: sum(v is True for v in j.launch.meta.values())),
        ):
            identity = _identity(job)
            picked.setdefault(identity, job)
            stands_for.setdefault(identity, set()).update(*(j.ops for j in group))
    return [job for identity, job in picked.items() if not ops or not stands_for[identity].isdisjoint(ops)]


def samples(jobs: Iterable[Job]) -> list[Job]:
    """One job for each kernel and data width: the largest problem."""
    picked: dict[tuple[str, str, int], Job] = {}
    for job in jobs:
        of_job = (job.launch.kernel.__module__, job.kernel, _width(job.launch))
        if of_job not in picked or job.size > picked[of_job].size:
            picked[of_job] = job
    return list(picked.values())


def _width(launch: Launch) -> int:
    """Bytes of an element of the first tensor."""
    return next((a.dtype.itemsize for a in _tensors_of(launch)), 0)


def _identity(job: Job) -> str:
    """What the compiler sees: jobs of different configs that agree in this are compiled once."""
    return f"{job.kernel} {sorted(job.launch.meta.items())} {[str(a.dtype) for a in _tensors_of(job.launch)]}"


def _tensors_of(launch: Launch) -> list[torch.Tensor]:
    bases = [getattr(a, "base", a) for a in launch.arguments]
    return [b for b in bases if isinstance(b, torch.Tensor)]


def describe(found: Enumeration) -> str:
    """The counts in one line."""
    return (
        f"{found.arch}: {found.cases} cases, {found.claimed} of them claimed, {found.launches} launches, "
        f"{len(found.jobs)} different (kernel, config, flags)"
    )
