"""The page of the choice on calls that tuning never saw: docs/benchmarks/choice.md.

Each ``choice*.json`` is what packages/plugins-triton/benchmarks/measure_choice.py wrote in one run: a section of the
page. Where choice_by_rows.py added what other rows would choose, the section says what that costs. Table ``choice`` of
``about.toml`` has the text, the commands, and for each file the reasons for misses, by group; ``choice.by_rows`` has
the reasons for misses of other rows, by file and the name of the rows.
"""

import json
import math
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from page_parts import NO_REASON, details, number, ratio, table

from opmux.bench.plots.summary import geometric_mean

LEAST = 0.95
"""No call is to be slower than the best of torch by more."""
REGRET, WORST_REGRET, REGRET_ELSEWHERE = 1.02, 1.10, 1.05
"""What the regret is to be at most: geomean and worst; geomean where the rows are another device's."""
WHOLE = 1.1
"""How much longer than torch's own a whole call may take on the smallest calls."""
WANTED = {
    "linear-prefill": 1.0, "linear-batch": 1.02, "linear-decode": 1.05, "attention": 1.05, "norms": 1.2,
    "attention_backward": 0.95, "linear_backward": 0.95,
}  # fmt: skip
"""What the geometric mean of the speedups over the best of torch is to be, by group, or by its op."""
TITLES = {
    "linear-decode": "`linear`, m 1 to 16",
    "linear-batch": "`linear`, m 17 to 512",
    "linear-prefill": "`linear`, m 513 to 16384",
    "norms": "norms",
    "linear_backward": "`linear_backward`",
    "decode-few": "paged decoding, 1 or 2 kv heads",
    "decode-8": "paged decoding, 8 kv heads",
}


class Row(NamedTuple):
    """One call; times are medians in microseconds.

    Attributes:
        point: the call as data.
        took: of the choice; None where it failed.
        best: of the best implementation.
        torch: of the best of torch's own calls; None where it has none.
        whole: a whole call over torch's own, host time included; None where it was not measured.
        times: of every implementation that was timed.
    """

    key: str
    group: str
    point: dict[str, Any]
    chosen: str
    why: str
    predicted: bool
    took: float | None
    best: float | None
    best_name: str
    torch: float | None
    torch_name: str
    whole: float | None
    times: dict[str, float]

    def choosing(self, name: str | None) -> "Row":
        """The same call with another choice; None where there was none."""
        return self._replace(chosen=name or "", took=self.times.get(name or ""))

    @property
    def speedup(self) -> float | None:
        """Time of the best of torch over that of the choice."""
        return self.torch / self.took if self.torch and self.took else None

    @property
    def regret(self) -> float | None:
        """Time of the choice over that of the best implementation."""
        return self.took / self.best if self.took and self.best else None

    @property
    def cached_bytes(self) -> float | None:
        """Bytes of keys and values that a decoding step reads; None for other ops."""
        dims, options = self.point["dims"], self.point.get("options", {})
        if self.point["op"] != "paged_attention":
            return None
        width = dims["kv_heads"] * (dims["head_dim"] + dims["value_dim"])
        return 2.0 * dims["batch"] * int(options["max_seqlen_k"]) * width


class Run(NamedTuple):
    """One file.

    Attributes:
        name: its stem, which names its reasons.
        head: everything in it but the rows.
    """

    name: str
    head: dict[str, Any]
    rows: list[Row]

    @property
    def elsewhere(self) -> bool:
        """Whether the rows that were predicted from are another device's."""
        devices = self.head["rows_of"]
        return bool(devices) and self.head["device"] not in devices


def runs(folder: Path) -> list[Run]:
    """The files of the folder of figures, ``choice.json`` first."""
    found = []
    for path in sorted((folder / "data").glob("choice*.json"), key=lambda path: path.stem):
        data = json.loads(path.read_text(encoding="utf-8"))
        found.append(Run(path.stem, {k: v for k, v in data.items() if k != "rows"}, [_row(r) for r in data["rows"]]))
    return found


def _row(data: dict[str, Any]) -> Row:
    own = {name: figures[0] for name, figures in data["opmux"].items()}
    torchs = {name: figures[0] for name, figures in data["torch"].items()}
    best, best_torch = (min(times, key=times.__getitem__, default="") for times in (own, torchs))
    whole = data.get("whole", {})
    return Row(
        data["key"], data["group"], data["point"], data["chosen"], data["why"],
        (data["source"] or "").startswith("predicted"),
        own.get(data["chosen"]), own.get(best), best, torchs.get(best_torch), best_torch,
        whole["opmux"] / whole["torch"] if "torch" in whole else None, own,
    )  # fmt: skip


def choice_page(folder: Path) -> str:
    """The page in the folder of figures."""
    about = tomllib.loads((folder / "data" / "about.toml").read_text(encoding="utf-8"))["choice"]
    return "\n".join(_lines(runs(folder), about))


def _lines(found: Sequence[Run], about: dict[str, Any]) -> Iterator[str]:
    yield from ("# The choice on calls that tuning never saw", "")
    yield "Generated by `scripts/make_benchmark_page.py` from the files in `docs/benchmarks/data`."
    yield from ("", about["text"].strip(), "")
    yield from (
        "```",
        *about["commands"],
        "```",
        "",
        "![speedup over the best of torch, over the size](choice.svg)",
        "",
    )
    for run in found:
        reasons, by_rows = about.get("reasons", {}).get(run.name, {}), about.get("by_rows", {}).get(run.name, {})
        yield from _section(run, reasons, by_rows, about.get("copies", {}).get(run.head["device"], {}))


def _section(
    run: Run, reasons: dict[str, str], reasons_by_rows: dict[str, str], copies: dict[str, float]
) -> Iterator[str]:
    head = run.head
    rows = ", ".join(f"{count} of {device}" for device, count in head["rows_of"].items()) or "none"
    versions = ", ".join(f"{name} {head['versions'][name]}" for name in ("torch", "triton") if name in head["versions"])
    yield from (f"## {head['title'] or head['device']}", "")
    yield f"{head['device']}, bfloat16, {versions}, {head['date']}, seed {head['seed']}."
    yield from (f"Measured rows in force: {rows}.", "")
    groups = {key: [row for row in run.rows if row.group == key] for key in dict.fromkeys(r.group for r in run.rows)}
    yield from table(
        [
            "calls", "", "speedup over the best of torch, geomean", "least", "target", "regret, geomean", "worst",
            "chosen by prediction", "whole call over torch's, worst",
        ],
        (_group(run, key, some) for key, some in groups.items()),
        left=(0, 4),
    )  # fmt: skip
    regrets = [row.regret for row in run.rows if row.regret]
    if regrets:
        yield f"Regret over all calls: geomean {geometric_mean(regrets):.3f}, worst {max(regrets):.2f}."
        yield ""
    for key, some in groups.items():
        if missed := "; ".join(misses(run, key, some)):
            yield f"- {_title(key)}: {missed}. Reason: {reasons.get(key, NO_REASON)}"
    yield ""
    for name, other in run.head.get("by_rows", {}).items():
        yield from _by_rows(run, name, other, reasons_by_rows.get(name, NO_REASON))
    yield from _decoding(run, copies)
    listed = sorted(run.rows, key=lambda row: row.speedup or 0.0)
    cells = ["speedup", "call", "chosen", "us", "best", "us", "best of torch", "us", "why"]
    yield from details("Every call", table(cells, map(_cells, listed), left=(1, 2, 4, 6, 8)))


def _by_rows(run: Run, name: str, other: dict[str, Any], reason: str) -> Iterator[str]:
    """What would have been chosen by other rows, with the times of this run."""
    counts = ", ".join(f"{count} of {device}" for device, count in other["rows_of"].items())
    yield from (f"### Chosen by {name}", "", f"The same calls and times, chosen by {name} ({counts}).", "")
    again = run._replace(
        head={**run.head, "rows_of": other["rows_of"]},
        rows=[row.choosing(other["chosen"].get(row.key)) for row in run.rows],
    )
    most, worst = (REGRET_ELSEWHERE, None) if again.elsewhere else (REGRET, WORST_REGRET)
    lines, missed = [], []
    for key in [*dict.fromkeys(row.group for row in run.rows), ""]:
        rows = [row for row in again.rows if key in ("", row.group)]
        before = [row.regret for row in run.rows if key in ("", row.group) and row.regret]
        regrets, speedups = [r.regret for r in rows if r.regret], [r.speedup for r in rows if r.speedup]
        if not regrets:
            continue
        mean = geometric_mean(regrets)
        lines.append([
            _title(key) if key else "all", str(len(regrets)), f"{mean:.3f}", ratio(max(regrets)),
            f"{geometric_mean(before):.3f}" if before else "-", ratio(max(before, default=None)),
            ratio(geometric_mean(speedups)) if speedups else "-", ratio(min(speedups, default=None)),
        ])  # fmt: skip
        if key and (mean > most or (worst and max(regrets) > worst)):
            missed.append(f"{_title(key)} {mean:.3f} ({ratio(max(regrets))} at worst)")
    head = ["calls", "", "regret, geomean", "worst", "as in the table above", "worst", "speedup, geomean", "least"]
    yield from table(head, lines, left=(0,))
    if missed:
        wanted = f"{most}" if worst is None else f"{most}, and {worst} at worst,"
        verb = "is" if worst is None else "are"
        yield from (f"- Regret where {wanted} {verb} wanted: {'; '.join(missed)}. Reason: {reason}", "")


def _title(key: str) -> str:
    op, _, head_dim = key.partition("-")
    return TITLES.get(key) or f"`{op}`, head_dim {head_dim}"


def _wanted(key: str) -> float | None:
    return WANTED.get(key, WANTED.get(key.partition("-")[0]))


def _group(run: Run, key: str, rows: Sequence[Row]) -> list[str]:
    speedups, regrets = [r.speedup for r in rows if r.speedup], [r.regret for r in rows if r.regret]
    wholes = [r.whole for r in rows if r.whole]
    wanted = _wanted(key)
    target = "" if wanted is None else f"geomean {wanted:g}, least {LEAST}"
    return [
        _title(key), str(len(rows)),
        ratio(geometric_mean(speedups)) if speedups else "-", ratio(min(speedups, default=None)),
        target + (" (missed)" if any(what.startswith("speedup") for what in misses(run, key, rows)) else ""),
        f"{geometric_mean(regrets):.3f}" if regrets else "-", ratio(max(regrets, default=None)),
        f"{sum(r.predicted for r in rows)} of {len(rows)}", ratio(max(wholes, default=None)),
    ]  # fmt: skip


def misses(run: Run, key: str, rows: Sequence[Row]) -> Iterator[str]:
    """Which targets a group misses, each as a few words."""
    speedups, regrets = [r.speedup for r in rows if r.speedup], [r.regret for r in rows if r.regret]
    wholes, wanted = [r.whole for r in rows if r.whole], _wanted(key)
    if wanted is not None and speedups:
        if geometric_mean(speedups) < wanted:
            yield f"speedup {ratio(geometric_mean(speedups), 0)} where {wanted:g} is wanted"
        slow = sum(s < LEAST for s in speedups)
        if slow:
            yield f"speedup below {LEAST} in {slow} of {len(speedups)}, {ratio(min(speedups))} at worst"
    if regrets:
        most = REGRET_ELSEWHERE if run.elsewhere else REGRET
        if geometric_mean(regrets) > most:
            yield f"regret {geometric_mean(regrets):.3f} where {most} is wanted"
        if max(regrets) > WORST_REGRET and not run.elsewhere:
            yield f"regret {max(regrets):.2f} at worst where {WORST_REGRET} is wanted"
    if wholes and max(wholes) > WHOLE:
        yield f"a whole call takes {max(wholes):.2f} of torch's where {WHOLE} is wanted"
    failed = sum(r.took is None and r.best is not None for r in rows)
    if failed:
        yield f"the choice failed in {failed} of {len(rows)}"


def _copied(copies: dict[str, float], moved: float) -> float:
    """The microseconds of a copy that moves so many bytes in all, between those that were timed, by megabytes."""
    known = sorted((1e6 * float(size), us) for size, us in copies.items())
    place = next((n for n in range(1, len(known) - 1) if moved <= known[n][0]), len(known) - 1)
    (less, before), (more, after) = known[place - 1 : place + 1]
    return before + (after - before) * (moved - less) / (more - less)


def _decoding(run: Run, copies: dict[str, float]) -> Iterator[str]:
    """Paged decoding compared with a copy: what it reads a second, and how long a copy of as many bytes takes."""
    found = []
    for row in run.rows:
        size = row.cached_bytes
        if size and row.took:
            few = "1 or 2" if row.group == "decode-few" else "8"
            like = _copied(copies, size) / row.took if copies else math.nan
            found.append((few, "from 200 MB" if size >= 2e8 else "50 to 200 MB", size / row.took / 1e3, like))
    if not found:
        return
    copy = run.head["copy_gbps"]
    lines = []
    for few, size in dict.fromkeys((few, size) for few, size, *_ in sorted(found)):
        rates = [rate / copy for heads, bucket, rate, _ in found if (heads, bucket) == (few, size)]
        likes = [like for heads, bucket, _, like in found if (heads, bucket) == (few, size)]
        more = [ratio(geometric_mean(likes)), ratio(min(likes))] if copies else []
        lines.append([few, size, str(len(rates)), ratio(geometric_mean(rates)), ratio(min(rates)), *more])
    yield f"Paged decoding reads keys and values, as a fraction of what a large copy moves ({number(copy)} GB/s)" + (
        ", and of what a copy of as many bytes in all does, which is cold too:" if copies else ":"
    )
    yield ""
    head = ["kv heads", "keys and values", "calls", "geomean", "least"]
    yield from table([*head, *(["of a copy as large, geomean", "least"] if copies else [])], lines, left=(0, 1))
    if copies:
        rates = {size: float(size) / us * 1e3 / copy for size, us in copies.items()}
        said = ", ".join(f"{size} MB {number(us, 4)} us ({rates[size]:.2f})" for size, us in copies.items())
        yield f"Copies, by what they read and write in all, and their rate over the large copy's: {said}."
        yield ""


def _cells(row: Row) -> list[str]:
    dims = {**row.point["dims"], **{k: v for k, v in row.point.get("options", {}).items() if k != "output_mask"}}
    call = f"{row.point['op']} {' '.join(f'{name}={_word(value)}' for name, value in dims.items())}"
    return [
        ratio(row.speedup), call, row.chosen, number(row.took, 4), row.best_name, number(row.best, 4), row.torch_name,
        number(row.torch, 4), row.why.replace("|", "/"),
    ]  # fmt: skip


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
