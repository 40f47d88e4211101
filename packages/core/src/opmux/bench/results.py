"""The results of a run of the benchmarks, as plain data."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

EQUAL = 0.02
"""Times within this fraction of each other count as equal."""

AGREES = 0.1
"""How far a result may be from the reference's, as a fraction of its largest magnitude, to be worth timing.

This guards against timing wrong results, and is wide enough for one step of an 8-bit float; correctness is checked by
`opmux conformance`.
"""

PEER, IMPLEMENTATION = "peer", "implementation"


@dataclass(frozen=True)
class Ceilings:
    """The rates that the device reached in this run; everything else is measured against them.

    Attributes:
        copy_gbps: the rate of a large copy on the device, gigabytes read and written per second.
        matmul_tflops: the rate of a large matrix product in the run's dtype, 10**12 operations per second.
    """

    copy_gbps: float
    matmul_tflops: float


@dataclass(frozen=True)
class Contender:
    """One implementation or peer, timed.

    Attributes:
        kind: ``implementation`` or ``peer``.
        package: distribution and version.
        chosen: whether opmux chooses it when the call names none.
        median_us, min_us, max_us: microseconds per call, over the rounds.
        q1_us, q3_us: the quartiles; half of the rounds lie between them.
        ratio: time of the best peer over its own: above 1 is faster than that peer; None without a peer.
        verdict: ``faster``, ``equal`` or ``slower`` than the best peer, equal being within 2 %.
        fraction: the least time that the ceilings allow over its own.
        difference: the difference from the reference's result, as a fraction of the reference's largest magnitude.
    """

    name: str
    kind: str
    package: str
    chosen: bool
    rounds: int
    median_us: float
    min_us: float
    max_us: float
    q1_us: float
    q3_us: float
    ratio: float | None
    verdict: str | None
    tflops: float | None
    gbps: float
    fraction: float
    difference: float

    @property
    def agrees(self) -> bool:
        """Whether its result is close to the reference's; NaN is not."""
        return self.difference <= AGREES


@dataclass(frozen=True)
class Left:
    """A contender that was not timed, and why.

    Attributes:
        status: as in an explanation (``rejected``, ``disabled``, ...), or ``failed`` if it raised.
    """

    name: str
    kind: str
    status: str
    reason: str


@dataclass(frozen=True)
class CaseResult:
    """One call, and all contenders that computed it.

    Attributes:
        call: the call in words.
        flops: floating-point operations, None if unknown.
        moved: bytes that must be read and written.
        bound: ``memory`` or ``compute``: which ceiling sets the least time.
        least_us: the least time that the ceilings allow.
    """

    op: str
    case: str
    call: str
    flops: float | None
    moved: int
    bound: str
    least_us: float
    contenders: tuple[Contender, ...]
    left: tuple[Left, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """Implementations that raised or gave a wrong result."""
        raised = [f"{x.name}: {x.reason}" for x in self.left if x.kind == IMPLEMENTATION and x.status == "failed"]
        wrong = [
            f"{c.name}: its result differs from the reference's by {c.difference:.3g} of the largest magnitude"
            for c in self.contenders
            if c.kind == IMPLEMENTATION and not c.agrees
        ]
        return tuple(f"{self.op}, {self.case}: {reason}" for reason in raised + wrong)


@dataclass(frozen=True)
class Report:
    """A whole run."""

    device: str
    arch: str
    size: str
    dtype: str
    torch: str
    threads: int
    ceilings: Ceilings
    cases: tuple[CaseResult, ...]
    without_cases: tuple[str, ...]
    """Ops without cases."""

    @property
    def failures(self) -> tuple[str, ...]:
        """The reasons why the run failed; a slow time is never one."""
        found = tuple(failure for case in self.cases for failure in case.failures)
        timed = any(c.kind == IMPLEMENTATION for case in self.cases for c in case.contenders)
        return found if timed or found else (f"no implementation was timed{self._without()}",)

    def _without(self) -> str:
        """The ops that nothing which was asked for implements."""
        kinds: dict[str, set[str]] = {}
        for case in self.cases:
            kinds.setdefault(case.op, set()).update(x.kind for x in case.contenders)
            kinds[case.op].update(x.kind for x in case.left)
        without = [op for op, found in kinds.items() if IMPLEMENTATION not in found]
        return f": nothing that was asked for implements {', '.join(without)}" if without else ""

    @property
    def passed(self) -> bool:
        """Whether everything that was requested ran and gave the right result."""
        return not self.failures

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"passed": self.passed, "failures": list(self.failures)} | asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Report":
        """The report that `as_dict` gave, as `opmux bench --json` prints it."""
        cases = [
            CaseResult(
                **case
                | {
                    "contenders": tuple(Contender(**c) for c in case["contenders"]),
                    "left": tuple(Left(**left) for left in case["left"]),
                }
            )
            for case in data["cases"]
        ]
        rest = {name: data[name] for name in ("device", "arch", "size", "dtype", "torch", "threads")}
        ceilings, without = Ceilings(**data["ceilings"]), tuple(data["without_cases"])
        return cls(**rest, ceilings=ceilings, cases=tuple(cases), without_cases=without)


def spread(samples: Sequence[float]) -> tuple[float, float, float, float, float]:
    """Median, least, largest, and the quartiles."""
    q1, _, q3 = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else [samples[0]] * 3
    return statistics.median(samples), min(samples), max(samples), q1, q3


def verdict(ratio: float) -> str:
    """A ratio of times in one word."""
    if round(abs(ratio - 1), 9) <= EQUAL:
        return "equal"
    return "faster" if ratio > 1 else "slower"
