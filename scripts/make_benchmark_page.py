"""Makes the pages of figures and their plots from what was measured: the files in docs/benchmarks/data.

This module has docs/benchmarks/h200.md, the Triton backend; ``models_page`` has whole Hugging Face models.

``bench.json`` is what ``opmux bench --json`` printed, ``conformance.json`` the report of ``opmux conformance``,
``model.json`` and ``host.json`` what the programs of those names in packages/plugins-triton/benchmarks wrote;
``about.toml`` has the dates, the commands, and the reasons of misses.
`python scripts/make_benchmark_page.py` writes the pages; with `--check` it writes nothing and exits 1 where a page is
not what it would write. Both exit 1 where a miss has no reason.
"""

import argparse
import json
import math
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from models_page import models_page, models_plot
from page_parts import EQUAL, NO_REASON, number, ratio, table

from opmux.bench.plot import svg

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
BACKEND = "triton"

NORMS = ("rms_norm", "add_rms_norm", "add_rms_norm_", "layer_norm", "add_layer_norm")
GATES = ("silu_and_mul", "gelu_and_mul", "silu_mul", "gelu_mul")
ROPE = ("apply_rope", "apply_rope_")
COPYLIKE = (*NORMS, *GATES, *ROPE, "write_kv_cache")
NORM_BACKWARD = tuple(f"{op}_backward" for op in NORMS if not op.endswith("_"))


class Case:
    """One case of the run: this backend's time, and the best of the peers that a figure names."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.op, self.name = data["op"], data["case"]
        mine = [c for c in data["contenders"] if c["kind"] == "implementation" and c["name"].startswith(BACKEND)]
        self.mine = min(mine, key=lambda c: c["median_us"], default=None)
        self.chosen = next((c for c in mine if c["chosen"]), self.mine)
        self.peers = {c["name"]: c for c in data["contenders"] if c["kind"] == "peer"}
        self.left = data["left"]

    def ratio(self, *names: str) -> float | None:
        """The time of the best of the peers of these names (of all, without) over the chosen implementation's."""
        times = [c["median_us"] for n, c in self.peers.items() if not names or n in names]
        return min(times) / self.chosen["median_us"] if times and self.chosen else None


Bound = tuple[str, Callable[[Case], float | None], float]
"""What is bounded, how it is read of a case, and the least that it shall be."""

CUDNN = ("cuDNN", "cuDNN, heads first")


def bounds_of(case: Case) -> list[Bound]:
    """The bounds of a case, from the figures that the backend is to reach."""

    def of_copy(c: Case) -> float | None:
        return c.chosen["fraction"] if c.chosen else None

    few_rows = case.name.split()[0] in ("1", "16", "128") and " rows of " in case.name
    if few_rows:
        return [("best peer", Case.ratio, 1 / 1.1)]
    if case.op in COPYLIKE:
        return [("copy", of_copy, 0.93), ("torch.compile", lambda c: c.ratio("torch.compile"), EQUAL)]
    if case.op in NORM_BACKWARD:
        return [("copy", of_copy, 0.85)]
    if case.op in ("linear", "linear_backward"):
        return [("cuBLAS", lambda c: c.ratio("torch eager", "cuBLASLt"), EQUAL if case.op == "linear" else 0.0)]
    if case.op == "attention" and " new of " not in case.name:
        return [("cuDNN", lambda c: c.ratio(*CUDNN), 0.95)]
    if case.op == "attention_backward":
        return [("cuDNN", lambda c: c.ratio(*CUDNN), 0.85)]
    if case.op == "paged_attention" and " new of " not in case.name:
        return [("copy", of_copy, 0.85)]
    return []


def case_rows(cases: list[Case], reasons: dict[str, str]) -> tuple[list[list[str]], list[str]]:
    """A row for each case, and a line for each miss."""
    rows, misses = [], []
    for case in cases:
        if case.chosen is None:
            rows.append([case.op, case.name, *["-"] * 7])
            misses.append(f"- `{case.op}`, {case.name}: not timed: {case.left}")
            continue
        best = min(case.peers.values(), key=lambda c: c["median_us"], default=None)
        verdicts, missed = [], []
        for what, read, least in bounds_of(case):
            value = read(case)
            met = value is not None and value >= least
            verdicts.append(
                f"{ratio(value, least)} of {what}{'' if met else ' (missed)'}" if least else f"{ratio(value)} of {what}"
            )
            if not met:
                missed.append(f"{ratio(value, least)} of {what}, wanted {least:.2f}")
        rate = case.chosen["tflops"] if case.chosen["tflops"] and case.chosen["gbps"] < 3000 else None
        rows.append(
            [
                f"`{case.op}`",
                case.name,
                case.chosen["name"],
                number(case.chosen["median_us"], 4),
                f"{case.chosen['gbps'] / 1000:.2f} TB/s" if rate is None else f"{rate:.0f} TFLOPS",
                "-" if best is None else f"{best['name']} {number(best['median_us'], 4)}",
                ratio(case.ratio()),
                ratio(case.chosen["fraction"]),
                "; ".join(verdicts) or "-",
            ]
        )
        if missed:
            why = reasons.get(f"{case.op}, {case.name}") or reasons.get(case.op) or NO_REASON
            misses.append(f"- `{case.op}`, {case.name}: {'; '.join(missed)}. {why}")
    return rows, misses


def geometric(values: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def page(folder: Path) -> str:
    """The page's text."""

    def read(name: str) -> Any:
        return json.loads((folder / "data" / name).read_text(encoding="utf-8"))

    about = tomllib.loads((folder / "data" / "about.toml").read_text(encoding="utf-8"))
    bench, reasons = read("bench.json"), about["reasons"]
    cases = [Case(c) for c in bench["cases"]]
    rows, misses = case_rows(cases, reasons)
    lines = [
        "# The Triton backend on an H200",
        "",
        f"{bench['device']} ({bench['arch']}), torch {bench['torch']}, Triton {about['triton']}, CUDA {about['cuda']}, "
        f"{about['date']}. Generated by `scripts/make_benchmark_page.py` from the files in `docs/benchmarks/data`.",
        "",
        f"Ceilings of the run: copy {bench['ceilings']['copy_gbps'] / 1000:.2f} TB/s, a large bfloat16 product "
        f"{bench['ceilings']['matmul_tflops']:.0f} TFLOPS. All data is random, bfloat16. Times are medians of "
        "interleaved rounds between device events on a cold L2; every result is compared with the reference's first. "
        "*To peer* is the best peer's time over this backend's: above 1 is faster. *Ceiling* is the least time that "
        "copy bandwidth or the product's rate allow, over the time taken. Within 2 % is equal.",
        "",
        "```",
        *about["commands"],
        "```",
        "",
        "## Each op",
        "",
        *table(["op", "case", "implementation", "us", "rate", "best peer, us", "to peer", "ceiling", "bounds"], rows),
    ]
    forward = [
        r for c in cases if c.op == "attention" and " new of " not in c.name and (r := c.ratio(*CUDNN)) is not None
    ]
    if forward:
        lines += [
            f"Geometric mean of `attention` to cuDNN over its {len(forward)} cases with that peer: "
            f"{geometric(forward):.2f} (at least 1.0 was wanted).",
            "",
        ]
    lines += list(prefill(cases))
    lines += ["![times of every contender](h200.svg)", "", "## Peers", "", *peers(cases, about["peers"])]
    in_a_model, more = model(read("model.json"), about)
    misses += more
    lines += ["## Host time", "", *host(read("host.json")), "## A model", "", *in_a_model]
    lines += ["## Conformance", "", *conformance(read("conformance.json")), about["conformance"], ""]
    lines += ["## What was missed, and why", "", *(misses or ["Nothing."]), "", *about["notes"]]
    return "\n".join(lines).rstrip() + "\n"


def prefill(cases: list[Case]) -> Iterator[str]:
    """Paged prefill beside the same attention on contiguous tensors."""
    dense = next((c for c in cases if c.op == "attention" and c.name == "4096 new of 8192"), None)
    for case in cases:
        if case.op == "paged_attention" and case.name.startswith("4096 new") and dense and dense.chosen and case.chosen:
            value = dense.chosen["median_us"] / case.chosen["median_us"]
            verdict = "met" if value >= 0.9 else "missed"
            yield f"- Paged prefill, {case.name}: {value:.2f} of `attention` on contiguous tensors (0.9: {verdict})."
    yield ""


def peers(cases: list[Case], expected: list[dict[str, Any]]) -> Iterator[str]:
    """What the peers reached here beside what they were seen to reach elsewhere."""
    yield "What a peer reached in this run beside what it was seen to reach before; more than 5 % below has its reason."
    yield ""
    rows = []
    for row in expected:
        case = next((c for c in cases if c.op == row["op"] and c.name == row["case"]), None)
        found = [c for n, c in case.peers.items() if n in row["peer"]] if case else []
        best = min(found, key=lambda c: c["median_us"], default=None)
        read = {"TFLOPS": lambda c: c["tflops"], "TB/s": lambda c: c["gbps"] / 1000, "us": lambda c: c["median_us"]}
        reached = None if best is None else read[row["unit"]](best)
        faster = row["unit"] != "us"
        part = None if reached is None else reached / row["seen"] if faster else row["seen"] / reached
        why = row.get("reason", "") if part is None or part < 0.95 else ""
        rows.append(
            [f"`{row['op']}`", row["case"], number(reached, 4), f"{row['seen']} {row['unit']}", ratio(part), why]
        )
    yield from table(["op", "case", "here", "seen before", "part", "reason"], rows)


def host(data: dict[str, Any]) -> Iterator[str]:
    """Host time of calls."""
    yield (
        "Host time of a call beside allocating its results and launching its kernel through Triton's own "
        "`kernel[grid](...)`; at most 1.15 was wanted."
    )
    yield ""
    rows = []
    for name, row in data.items():
        op, _, tokens = name.rpartition(" ")
        times = [f"{row[key]:.1f}" for key in ("call_us", "bind_us", "direct_us")]
        rows.append([f"`{op}`", f"{tokens} rows of 4096", *times, ratio(row["ratio"])])
    yield from table(["op", "call", "op, us", "bound, us", "direct, us", "ratio"], rows)


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
            rows.append([phase, name, mode, number(row["tokens_per_s"]), ratio(part)])
        rows[-1].append(f"{ratio(value, wanted)} of {wanted}: {verdict}")
        if verdict == "missed":
            why = about["reasons"].get(f"model, {phase}", NO_REASON)
            misses.append(f"- the model, {phase}: {ratio(value, wanted)} of torch.compile, wanted {wanted}. {why}")
    head = ["phase", "row", "mode", "tokens/s", "to torch.compile", "wanted"]
    return lines + list(table(head, [row + [""] * (6 - len(row)) for row in rows])), misses


DECLINED = {"float64": "float64", "rows whose elements are not side by side": "the last stride of "}
"""What the backend's records decline, by a part of the reason."""


def conformance(data: dict[str, Any]) -> Iterator[str]:
    """The report of `opmux conformance`: cases by op, the largest errors, what was not claimed and why."""
    yield (
        f"`opmux conformance {data['backend']} --profile {data['environment']['profile']}`: {data['passed']} passed, "
        f"{data['failed']} failed, {data['skipped']} not claimed. Errors are over their bounds: 1 is the bound."
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
    yield from table(head, rows)
    if not data["failed"] and not others:
        others = ["Nothing else was declined: every case from the table of models' shapes ran on this backend."]
    yield from (*others, "")


def plot(folder: Path) -> str:
    """The plot that `opmux bench --plot` draws of the same run."""

    def as_object(data: dict[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(**data)

    text = (folder / "data" / "bench.json").read_text(encoding="utf-8")
    report: Any = json.loads(text, object_hook=as_object)
    return svg(report)


MADE = {"h200.md": page, "h200.svg": plot, "models.md": models_page, "models.svg": models_plot}
"""Each file in the folder, and what makes it."""


def main() -> int:
    """Write or check the pages; return the exit code."""
    parser = argparse.ArgumentParser(description="Makes the pages of the H200's figures.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page is out of date")
    arguments = parser.parse_args()
    code = 0
    for name, make in MADE.items():
        target, text = FOLDER / name, make(FOLDER)
        if not arguments.check:
            target.write_text(text, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            print(f"docs/benchmarks/{name} is out of date; run: python scripts/make_benchmark_page.py", file=sys.stderr)
            code = 1
        for line in text.splitlines():
            if NO_REASON in line:
                print(f"docs/benchmarks/data/about.toml gives no reason for a miss: {line}", file=sys.stderr)
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
