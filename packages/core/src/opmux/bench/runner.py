"""A run: for each op and shape, every contender is checked once, then all are timed in interleaved rounds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from opmux.arch import arch_of
from opmux.bench.cases import MAKERS
from opmux.bench.clocks import Clock, clock_for, interleave
from opmux.bench.contest import Contest, Entry
from opmux.bench.data import Arguments, Data
from opmux.bench.peers import peers_of
from opmux.bench.results import PEER, CaseResult, Ceilings, Contender, Report, spread, verdict
from opmux.bench.shapes import SIZE_NAMES, Shape, shapes_of
from opmux.bench.work import flops_of, least_time, measure_ceilings, moved_of
from opmux.callpath.op import OPS, Op
from opmux.dtypes import name_of
from opmux.errors import InvalidArgument, UnknownBackend
from opmux.near import backend_remedy
from opmux.plugins import loading
from opmux.signatures.validation import describe

_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Settings:
    """How to run.

    Attributes:
        device: the device to run on.
        size: ``small``, ``model`` or ``figures``.
        dtype: the dtype of the model's tensors.
        compiled: whether torch.compile of the eager formulation is a peer too.
        rounds: the maximum number of rounds for each case.
        limit_s: seconds after which a case starts no further round.
    """

    device: torch.device
    size: str
    dtype: torch.dtype
    compiled: bool = False
    rounds: int = 20
    limit_s: float = 5.0

    @classmethod
    def for_device(
        cls,
        device: torch.device | None = None,
        *,
        size: str | None = None,
        dtype: torch.dtype | None = None,
        compiled: bool = False,
        rounds: int = 20,
        limit_s: float = 5.0,
    ) -> "Settings":
        """Settings that suit a device: real models in bfloat16 on a GPU, small ones in float32 on a CPU.

        Args:
            device: None takes a GPU if there is one.
            size, dtype: None takes the one that suits the device.
            compiled, rounds, limit_s: as the attributes.

        Raises:
            InvalidArgument: If a setting is out of range or unknown.
        """
        device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        size = size or ("model" if device.type == "cuda" else "small")
        dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
        if size not in SIZE_NAMES:
            raise InvalidArgument(f"bench: `size` expected one of {', '.join(SIZE_NAMES)}, got {size!r}; omit it")
        if dtype not in _DTYPES:
            raise InvalidArgument(f"bench: `dtype` expected bf16, f16, f32 or f64, got {name_of(dtype)}; omit it")
        if rounds < 1:
            raise InvalidArgument(f"bench: `rounds` expected 1 or more, got {rounds}; omit it for the default of 20")
        if not limit_s >= 0:  # NaN too
            raise InvalidArgument(
                f"bench: `limit` expected 0 seconds or more, got {limit_s:g}; omit it for the default of 5"
            )
        return cls(device, size, dtype, compiled, rounds, limit_s)


@dataclass(frozen=True)
class Progress:
    """The progress of a run: cases done, all cases, and the current one."""

    done: int
    total: int
    now: str


def run(
    ops: Sequence[str] | None = None,
    backends: Sequence[str] | None = None,
    settings: Settings | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Report:
    """Time implementations side by side with the available peers.

    Args:
        ops: their names; None takes every op that has cases.
        backends: time only these backends or implementations (and the peers); None takes all.
        settings: how to run; None takes `Settings.for_device`.
        progress: called before each case and at the end.

    Raises:
        InvalidArgument: If an op does not exist or has no case.
        UnknownBackend: If a backend is not registered.
    """
    loading.ensure_loaded()
    names = _checked_ops(ops)
    _check_backends(backends)
    settings = settings or Settings.for_device()
    device = settings.device
    plan = [(OPS[name], shape) for name in names for shape in shapes_of(settings.size, name)]
    cases = []
    with torch.no_grad():
        progress(Progress(0, len(plan), "ceilings"))
        ceilings = measure_ceilings(device, settings.dtype)
        clock = clock_for(device)
        for done, (op, shape) in enumerate(plan):
            progress(Progress(done, len(plan), f"{op.name}, {shape.name}"))
            cases.append(_run_case(op, shape, backends, settings, clock, ceilings))
    progress(Progress(len(plan), len(plan), "done"))
    return Report(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        arch=arch_of(device).name,
        size=settings.size,
        dtype=name_of(settings.dtype),
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        ceilings=ceilings,
        cases=tuple(cases),
        without_cases=tuple(sorted(set(OPS) - set(MAKERS))),
    )


def _checked_ops(ops: Sequence[str] | None) -> list[str]:
    if ops is None:
        return sorted(MAKERS)
    for name in ops:
        if name not in OPS:
            raise InvalidArgument(f"bench: `op` expected the name of an op, got {name!r}; see `opmux ops`")
        if name not in MAKERS:
            cases = ", ".join(sorted(MAKERS))
            raise InvalidArgument(f"bench: `op` expected one that has cases, got {name!r}; those are {cases}")
    return list(dict.fromkeys(ops))


def _check_backends(backends: Sequence[str] | None) -> None:
    known = set(loading.known_names())
    for name in backends or ():
        if name not in known:
            raise UnknownBackend(
                f"bench: `backend` expected one of {', '.join(sorted(known))}, got {name!r}; "
                f"{backend_remedy(name, sorted(known))} and, for plugins that failed to load, `opmux doctor`"
            )


def _run_case(
    op: Op, shape: Shape, backends: Sequence[str] | None, settings: Settings, clock: Clock, ceilings: Ceilings
) -> CaseResult:
    arguments = MAKERS[op.name](Data.seeded(settings.device, settings.dtype), shape)
    contest = Contest(op, arguments, clock)
    contest.enter_implementations(backends)
    contest.enter_peers(peers_of(op, arguments, settings.device, settings.compiled))
    samples = interleave(clock, {e.name: e.timed for e in contest.entries}, settings.rounds, settings.limit_s)
    flops, moved = flops_of(op, arguments), moved_of(op, arguments)
    least_us, bound = least_time(flops, moved, ceilings)
    best_peer = min((spread(samples[e.name])[0] for e in contest.entries if e.kind == PEER), default=None)
    contenders = [_contender(e, samples[e.name], best_peer, flops, moved, least_us) for e in contest.entries]
    return CaseResult(
        op=op.name,
        case=shape.name,
        call=_in_words(op, arguments),
        flops=flops,
        moved=moved,
        bound=bound,
        least_us=least_us,
        contenders=tuple(sorted(contenders, key=lambda c: c.median_us)),
        left=tuple(contest.left),
    )


def _contender(
    entry: Entry, samples: Sequence[float], best_peer: float | None, flops: float | None, moved: int, least_us: float
) -> Contender:
    median, least, largest, q1, q3 = spread(samples)
    ratio = None if best_peer is None else best_peer / median
    return Contender(
        name=entry.name,
        kind=entry.kind,
        package=entry.package,
        chosen=entry.chosen,
        rounds=len(samples),
        median_us=median,
        min_us=least,
        max_us=largest,
        q1_us=q1,
        q3_us=q3,
        ratio=ratio,
        verdict=None if ratio is None else verdict(ratio),
        tflops=None if flops is None else flops / median / 1e6,
        gbps=moved / median / 1e3,
        fraction=least_us / median,
        difference=entry.difference,
    )


def _in_words(op: Op, arguments: Arguments) -> str:
    given = op.names(arguments.tensors)
    words = [f"{name} {describe(tensor)}" for name, tensor in given.items() if tensor is not None]
    return ", ".join([*words, *(f"{name}={value}" for name, value in arguments.options.items())])
