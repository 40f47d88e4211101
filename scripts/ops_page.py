"""The page of the Triton backend's figures and its pictures: docs/benchmarks/h200.md and h200*.svg.

``bench.json`` is what ``opmux bench --json`` printed, ``conformance.json`` the report of ``opmux conformance``,
``model.json`` and ``host.json`` what the programs of those names in packages/plugins-triton/benchmarks wrote;
``about.toml`` has the dates, the commands, and the reasons of misses.
"""

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ops_sections import conformance, host, model, peers, prefill
from page_parts import EQUAL, NO_REASON, details, number, ratio, table

from opmux.bench import plots
from opmux.bench.plots.summary import geometric_mean, taken
from opmux.bench.results import PEER, CaseResult, Contender, Report

NORMS = ("rms_norm", "add_rms_norm", "add_rms_norm_", "layer_norm", "add_layer_norm")
GATES = ("silu_and_mul", "gelu_and_mul", "silu_mul", "gelu_mul")
ROPE = ("apply_rope", "apply_rope_")
COPYLIKE = (*NORMS, *GATES, *ROPE, "write_kv_cache")
NORM_BACKWARD = tuple(f"{op}_backward" for op in NORMS if not op.endswith("_"))
GATE_BACKWARD = tuple(f"{op}_backward" for op in GATES)

FAMILIES = {
    "norm": ("Norm", (*NORMS, *NORM_BACKWARD)),
    "activation": ("Activation", (*GATES, *GATE_BACKWARD)),
    "rope": ("Rope", (*ROPE, "apply_rope_backward")),
    "gemm": ("Gemm", ("linear", "linear_backward")),
    "attention": ("Attention", ("attention", "attention_varlen", "attention_backward")),
    "paged": ("Paged KV cache", ("paged_attention", "write_kv_cache")),
}
"""The word in a picture's file name -> its heading, and its ops in the order of the page."""


def case_ratio(case: CaseResult, *names: str) -> float | None:
    """The time of the best of the peers of these names (of all, without names) over the choice's."""
    mine = taken(case)
    times = [c.median_us for c in case.contenders if c.kind == PEER and (not names or c.name in names)]
    return min(times) / mine.median_us if times and mine else None


Bound = tuple[str, Callable[[CaseResult], float | None], float]
"""What is bounded, how it is read of a case, and the least that it must be."""

CUDNN = ("cuDNN", "cuDNN, heads first")


def bounds_of(case: CaseResult) -> list[Bound]:
    """The targets that the backend is held to on a case."""

    def of_copy(c: CaseResult) -> float | None:
        mine = taken(c)
        return mine.fraction if mine else None

    few_rows = case.case.split()[0] in ("1", "16", "128") and " rows of " in case.case
    if few_rows:
        return [("best peer", case_ratio, 1 / 1.1)]
    if case.op in COPYLIKE:
        return [("copy", of_copy, 0.93), ("torch.compile", lambda c: case_ratio(c, "torch.compile"), EQUAL)]
    if case.op in NORM_BACKWARD:
        return [("copy", of_copy, 0.85)]
    if case.op in ("linear", "linear_backward"):
        return [("cuBLAS", lambda c: case_ratio(c, "torch eager", "cuBLASLt"), EQUAL if case.op == "linear" else 0.0)]
    if case.op == "attention" and " new of " not in case.case:
        return [("cuDNN", lambda c: case_ratio(c, *CUDNN), 0.95)]
    if case.op == "attention_backward":
        return [("cuDNN", lambda c: case_ratio(c, *CUDNN), 0.85)]
    if case.op == "paged_attention" and " new of " not in case.case:
        return [("copy", of_copy, 0.85)]
    return []


def verdicts(case: CaseResult) -> Iterator[tuple[str, str | None]]:
    """Each target of a case: the value in words, and where it was missed what was wanted."""
    for what, read, least in bounds_of(case):
        value = read(case)
        met = value is not None and value >= least
        words = f"{ratio(value, least)} of {what}"
        yield f"{words}{'' if met else ' (missed)'}", None if met else f"{words}, wanted {least:.2f}"


def case_row(case: CaseResult) -> list[str]:
    """A case's row; the speedup comes first."""
    mine = taken(case)
    if mine is None:
        return ["-", f"`{case.op}`", case.case, *["-"] * 6]
    best = min((c for c in case.contenders if c.kind == PEER), key=lambda c: c.median_us, default=None)
    return [
        ratio(case_ratio(case)),
        f"`{case.op}`",
        case.case,
        number(mine.median_us, 4),
        "-" if best is None else number(best.median_us, 4),
        "-" if best is None else best.name,
        f"{mine.fraction:.0%}",
        rate_of(mine),
        "; ".join(words for words, _ in verdicts(case)) or "-",
    ]


def rate_of(contender: Contender) -> str:
    """The rate that says most: operations where they are counted and memory is not what bounds them, else bytes."""
    if contender.tflops and contender.gbps < 3000:
        return f"{contender.tflops:.0f} TFLOPS"
    return f"{contender.gbps / 1000:.2f} TB/s"


def case_misses(cases: list[CaseResult], reasons: dict[str, str]) -> Iterator[str]:
    """A line for each case that missed a target, with the reason."""
    for case in cases:
        if taken(case) is None:
            why = "; ".join(f"{left.name} {left.status}: {left.reason}" for left in case.left)
            yield f"- `{case.op}`, {case.case}: not timed: {why}"
            continue
        missed = [miss for _, miss in verdicts(case) if miss]
        if missed:
            why = reasons.get(f"{case.op}, {case.case}") or reasons.get(case.op) or NO_REASON
            yield f"- `{case.op}`, {case.case}: {'; '.join(missed)}. {why}"


def family_cases(report: Report) -> dict[str, list[CaseResult]]:
    """The cases of each family, in the page's order; every op of the run has one."""
    unknown = {case.op for case in report.cases} - {op for _, ops in FAMILIES.values() for op in ops}
    if unknown:
        raise SystemExit(f"ops_page.py: FAMILIES has no place for {', '.join(sorted(unknown))}")
    return {name: [c for op in ops for c in report.cases if c.op == op] for name, (_, ops) in FAMILIES.items()}


HEAD = ["speedup", "op", "case", "us", "best peer, us", "best peer", "of ceiling", "rate", "targets"]


def family(name: str, cases: list[CaseResult]) -> Iterator[str]:
    """A family's heading, one line of summary, and behind it the picture and the table."""
    gains = [r for case in cases if (r := case_ratio(case)) is not None]
    mean = f"geometric mean {geometric_mean(gains):.2f}x, from {min(gains):.2f}x to {max(gains):.2f}x" if gains else "-"
    yield from (f"### {FAMILIES[name][0]}", "")
    picture = f"![speed of every contender, {FAMILIES[name][0].lower()}](h200-{name}.svg)"
    yield from details(
        f"{len(cases)} cases: {mean}", [picture, "", *table(HEAD, map(case_row, cases), left=(1, 2, 5, 8))]
    )


def read_report(folder: Path) -> Report:
    """What `opmux bench --json` printed."""
    return Report.from_dict(json.loads((folder / "data" / "bench.json").read_text(encoding="utf-8")))


def ops_page(folder: Path) -> str:
    """The page's text."""

    def read(name: str) -> Any:
        return json.loads((folder / "data" / name).read_text(encoding="utf-8"))

    about = tomllib.loads((folder / "data" / "about.toml").read_text(encoding="utf-8"))
    report = read_report(folder)
    cases = [*report.cases]
    lines = [
        "# The Triton backend on an H200",
        "",
        "![speedup over the best peer for every op, and the fraction of the roofline](h200.svg)",
        "",
        "Left: a row for each op, a mark for each case, the geometric mean at the right. A speedup is the time of the "
        "best peer over the time of the implementation that opmux chooses. Right: the least time that the device "
        "allows (bytes over copy bandwidth, or operations over the rate of a large product) over the measured time. "
        "The only peer of `paged_attention` is PyTorch's gather of the pages followed by its own attention.",
        "",
        f"{report.device} ({report.arch}), torch {report.torch}, Triton {about['triton']}, CUDA {about['cuda']}, "
        f"{about['date']}. Generated by `scripts/make_benchmark_page.py` from the files in `docs/benchmarks/data`.",
        "",
        "## How it was measured",
        "",
        f"Ceilings of the run: copy {report.ceilings.copy_gbps / 1000:.2f} TB/s, a large bfloat16 product "
        f"{report.ceilings.matmul_tflops:.0f} TFLOPS. All data is random, bfloat16. Times are medians of "
        "interleaved rounds between device events on a cold L2; every result is first compared with the reference's. "
        "Times within 2 % of each other count as equal.",
        "",
        "```",
        *about["commands"],
        "```",
        "",
        "## Every case",
        "",
        "Each family has a picture of all contenders, and a table. *speedup* is over the best peer, *of ceiling* the "
        "fraction of the roofline, *targets* what the backend is held to. [What was missed](#what-was-missed-and-why) "
        "has the reasons.",
        "",
    ]
    for name, members in family_cases(report).items():
        lines += family(name, members)
    forward = [r for c in cases if c.op == "attention" and " new of " not in c.case and (r := case_ratio(c, *CUDNN))]
    if forward:
        mean = geometric_mean(forward)
        lines += [f"Geometric mean of `attention` over cuDNN, {len(forward)} cases: {mean:.2f} (target: 1.0).", ""]
    lines += list(prefill(cases))
    misses = list(case_misses(cases, about["reasons"]))
    in_a_model, more = model(read("model.json"), about)
    misses += more
    lines += ["## Peers", "", *peers(cases, about["peers"])]
    lines += ["## Host time", "", *host(read("host.json")), "## A model", "", *in_a_model]
    lines += ["## Conformance", "", *conformance(read("conformance.json")), about["conformance"], ""]
    lines += ["## What was missed, and why", "", *(misses or ["Nothing."]), "", *about["notes"]]
    return "\n".join(lines).rstrip() + "\n"


def ops_pictures() -> dict[str, Callable[[Path], str]]:
    """The summary, and the contenders of each family: file name -> what draws it."""

    def of_family(name: str) -> Callable[[Path], str]:
        def draw(folder: Path) -> str:
            report = read_report(folder)
            marks = plots.marks_of(report.cases)
            return plots.svg_of(plots.contenders(family_cases(report)[name], FAMILIES[name][0], marks))

        return draw

    def whole(folder: Path) -> str:
        return plots.svg_of(plots.summary(read_report(folder)))

    return {"h200.svg": whole} | {f"h200-{name}.svg": of_family(name) for name in FAMILIES}
