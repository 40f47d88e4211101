"""Sections of docs/benchmarks/h200.md beside its cases: peers, host time, a model, conformance."""

from collections.abc import Iterator
from typing import Any

from page_parts import EQUAL, NO_REASON, details, number, ratio, table

from opmux.bench.plots.summary import taken
from opmux.bench.results import PEER, CaseResult


def prefill(cases: list[CaseResult]) -> Iterator[str]:
    """Paged prefill beside the same attention on contiguous tensors."""
    dense = next((m for c in cases if c.op == "attention" and c.case == "4096 new of 8192" and (m := taken(c))), None)
    for case in cases:
        mine = taken(case)
        if case.op == "paged_attention" and case.case.startswith("4096 new") and dense and mine:
            value = dense.median_us / mine.median_us
            verdict = f"target 0.9: {'met' if value >= 0.9 else 'missed'}"
            yield f"- Paged prefill, {case.case}: {value:.2f} of `attention` on contiguous tensors ({verdict})."
    yield ""


def peers(cases: list[CaseResult], expected: list[dict[str, Any]]) -> Iterator[str]:
    """What the peers reached in this run, divided by what they reached in earlier runs."""
    yield "A check on the peers: what each reached in this run, divided by what it reached in earlier runs. Where it is"
    yield "more than 5 % lower, a reason is given."
    yield ""
    rows = []
    for row in expected:
        case = next((c for c in cases if c.op == row["op"] and c.case == row["case"]), None)
        found = [c for c in case.contenders if c.kind == PEER and c.name in row["peer"]] if case else []
        best = min(found, key=lambda c: c.median_us, default=None)
        read = {"TFLOPS": lambda c: c.tflops, "TB/s": lambda c: c.gbps / 1000, "us": lambda c: c.median_us}
        reached = None if best is None else read[row["unit"]](best)
        faster = row["unit"] != "us"
        part = None if reached is None else reached / row["seen"] if faster else row["seen"] / reached
        why = row.get("reason", "") if part is None or part < 0.95 else ""
        rows.append(
            [ratio(part), f"`{row['op']}`", row["case"], number(reached, 4), f"{row['seen']} {row['unit']}", why]
        )
    yield from table(["of earlier", "op", "case", "this run", "earlier", "reason"], rows, left=(1, 2, 5))


def host(data: dict[str, Any]) -> Iterator[str]:
    """Host time of calls."""
    yield (
        "Host time of a call over that of allocating its results and launching the same kernel through Triton's own "
        "`kernel[grid](...)` (target: at most 1.15)."
    )
    yield ""
    rows = []
    for name, row in data.items():
        op, _, tokens = name.rpartition(" ")
        times = [f"{row[key]:.1f}" for key in ("call_us", "bind_us", "direct_us")]
        rows.append([ratio(row["ratio"]), f"`{op}`", f"{tokens} rows of 4096", *times])
    yield from table(
        ["time over direct launch", "op", "case", "op call, us", "bound call, us", "direct launch, us"],
        rows,
        left=(1, 2),
    )


def model(data: dict[str, Any], about: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The model's phases, and a line for each miss."""
    lines = [f"The demo's model at {data['parameters'] / 1e9:.2f} billion parameters, bfloat16. {about['model']}", ""]
    rows: list[list[str]] = []
    misses = []
    for phase, measured in data["phases"].items():
        found = measured["rows"]
        mine = max((r["tokens_per_s"] for n, r in found.items() if n.startswith("opmux")), default=None)
        peer = found.get("torch.compile", {}).get("tokens_per_s")
        wanted = 1.3 if phase.startswith("decode") else 1.0
        value = mine / peer if mine and peer else None
        verdict = "-" if value is None else "met" if value >= wanted * (EQUAL if wanted == 1 else 1) else "missed"
        for name, row in found.items():
            part = row["tokens_per_s"] / peer if peer else None
            mode = measured["mode"] if name == "torch.compile" else ""
            rows.append([ratio(part), phase, name, mode, number(row["tokens_per_s"])])
        rows[-1].append(f"{ratio(value, wanted)} of {wanted}: {verdict}")
        if verdict == "missed":
            why = about["reasons"].get(f"model, {phase}", NO_REASON)
            misses.append(f"- the model, {phase}: {ratio(value, wanted)} of torch.compile, wanted {wanted}. {why}")
    head = ["speedup over torch.compile", "phase", "row", "mode", "tokens/s", "target"]
    return lines + list(table(head, [row + [""] * (6 - len(row)) for row in rows], left=(1, 2, 3, 5))), misses


DECLINED = {
    "8-bit floats of another arch": "convert it by opmux.convert_fp8",
    "float64": "float64",
    "rows whose elements are not side by side": "the last stride of ",
}
"""What the backend's records decline, by a part of the reason."""


def conformance(data: dict[str, Any]) -> Iterator[str]:
    """The report of `opmux conformance`: cases by op, the largest errors, what was not claimed and why."""
    yield (
        f"`opmux conformance {data['backend']} --profile {data['environment']['profile']}`: {data['passed']} passed, "
        f"{data['failed']} failed, {data['skipped']} not claimed. Errors are fractions of their bounds: 1 is the bound."
    )
    yield ""
    rows, others = [], []
    for op in data["ops"]:
        declined = dict.fromkeys(DECLINED, 0)
        for reason, count in op["skips"].items():
            kind = next((kind for kind, part in DECLINED.items() if part in reason), None)
            if kind is None:
                others.append(f"- `{op['op']}`: {count} not claimed: {reason}")
            else:
                declined[kind] += count
        errors = [number(op["max_error"].get(kind)) for kind in ("global", "row", "element")]
        counts = [str(op["cases"]), str(op["claimed"]), str(len({f["case"] for f in op["failures"]}))]
        rows.append([f"`{op['op']}`", *counts, *errors, *map(str, declined.values())])
    head = ["op", "cases", "run", "failed", "whole", "row", "element", *(f"declined: {kind}" for kind in DECLINED)]
    yield from details("Every op", list(table(head, rows)))
    if not data["failed"] and not others:
        others = ["Nothing else was declined: every case from the table of models' shapes ran on this backend."]
    yield from (*others, "")
