"""`opmux bench`: implementations timed side by side with the installed peers."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

import opmux.bench as benchmarks
from opmux.arch import CPU
from opmux.cli import output, words

Ops = Annotated[
    list[str] | None,
    typer.Argument(metavar="[OP]...", help="Ops, as `opmux ops` lists them; all by default.", show_default=False),
]
Backends = Annotated[
    list[str] | None,
    typer.Option(
        "--backend", help="Time only this backend or implementation, and the peers; may be given several times."
    ),
]
Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda; by default a GPU if there is one.")]
Size = Annotated[
    str | None, typer.Option("--size", help="small, model or figures; by default model on a GPU, small on a CPU.")
]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="bf16, f16, f32 or f64; by default bf16 on a GPU, f32 on a CPU.")
]
Compiled = Annotated[bool, typer.Option("--compile", help="Time torch.compile of the eager formulation as a peer too.")]
Rounds = Annotated[int, typer.Option("--rounds", help="Maximum number of rounds for each case.")]
Limit = Annotated[float, typer.Option("--limit", help="Seconds after which a case starts no further round.")]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="Draw the run to this SVG file, and each op beside it (FILE.OP.svg).")
]


def bench(
    op: Ops = None,
    backend: Backends = None,
    device: Device = None,
    size: Size = None,
    dtype: Dtype = None,
    compiled: Compiled = False,
    rounds: Rounds = 20,
    limit: Limit = 5.0,
    plot: Plot = None,
    as_json: output.AsJson = False,
) -> None:
    """Time implementations side by side with PyTorch's own, in interleaved rounds of one run.

    A slow result is not a failure. Exits with 1 if an implementation raises or its result is far from the reference's,
    and if none was timed.
    """
    output.check_writable("--plot", plot)
    if plot is not None and find_spec("matplotlib") is None:
        output.complain('bench: `--plot` needs matplotlib, which is not installed: pip install "opmux[plot]"')
        raise typer.Exit(2)
    ops = [words.find_op("bench", name).name for name in op or []]
    settings = benchmarks.Settings.for_device(
        words.read_device("bench", device),
        size=size,
        dtype=None if dtype is None else words.read_dtype("bench", "--dtype", dtype, CPU),
        compiled=compiled,
        rounds=rounds,
        limit_s=limit,
    )
    console = output.console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("bench")
        report = benchmarks.run(
            ops or None,
            backend or None,
            settings,
            lambda p: bar.update(task, description=p.now, completed=p.done, total=p.total),
        )
    if plot is not None:
        _draw(report, plot)
    if as_json:
        output.emit_json(report.as_dict())
    else:
        _show(report, output.console())
    if not report.passed:
        raise typer.Exit(1)


def _draw(report: benchmarks.Report, path: Path) -> None:
    """Draw the summary into ``path``, and every contender of each op into a file for that op beside it."""
    from opmux.bench import plots  # imports matplotlib, which is an extra

    output.write("--plot", path, plots.svg_of(plots.summary(report)))
    marks = plots.marks_of(report.cases)
    for op in dict.fromkeys(case.op for case in report.cases):
        drawn = plots.contenders([case for case in report.cases if case.op == op], op, marks)
        output.write("--plot", path.with_suffix(f".{op}.svg"), plots.svg_of(drawn))


def _show(report: benchmarks.Report, console: Console) -> None:
    console.print(
        f"{report.device} ({report.arch}), {report.dtype}, {report.size} shapes, torch {report.torch}, "
        f"{report.threads} threads",
        style="bold",
    )
    console.print(
        f"ceilings of this run: copy {report.ceilings.copy_gbps:.0f} GB/s, "
        f"matmul {report.ceilings.matmul_tflops:.3g} TFLOP/s; speedup: over the best peer, within 2 % is equal\n"
    )
    rows: list[list[str | Text]] = []
    for case in report.cases:
        rows += [[f"{case.op}, {case.case}", *[""] * 7], *_rows(case)]
    numbers = ["speedup", "median us", "quartiles", "of ceiling", "GB/s", "TFLOP/s"]
    console.print(output.table("", ["", "speedup", "", *numbers[1:]], rows, numbers))
    for case in report.cases:
        for left in case.left:
            console.print(
                f"{case.op}, {case.case}: {left.name} {left.status}: {left.reason}",
                style="yellow", soft_wrap=True,
            )  # fmt: skip
    for failure in report.failures:
        output.complain(failure)


def _rows(case: benchmarks.CaseResult) -> list[list[str | Text]]:
    return [
        [
            Text(f"  {c.name}", "bold" if c.chosen else "dim" if c.kind == "peer" else ""),
            "-" if c.ratio is None else f"{c.ratio:.2f}x",
            output.state(c.verdict if c.verdict and c.kind == "implementation" else ""),
            _time(c.median_us),
            f"{_time(c.q1_us)}-{_time(c.q3_us)}",
            f"{c.fraction:.0%}",
            f"{c.gbps:.0f}" if c.gbps >= 100 else f"{c.gbps:.1f}",
            "-" if c.tflops is None else f"{c.tflops:.3g}",
        ]
        for c in case.contenders
    ]


def _time(us: float) -> str:
    return f"{us:.1f}" if us < 1000 else f"{us:.0f}"
