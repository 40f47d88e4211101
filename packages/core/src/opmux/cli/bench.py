"""`opmux bench`: implementations timed side by side with the peers present."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from opmux import bench as benchmarks
from opmux.arch import CPU
from opmux.bench.plot import svg
from opmux.cli import output, words

Ops = Annotated[
    list[str] | None,
    typer.Argument(metavar="[OP]...", help="Ops, as `opmux ops` lists them; without, every one.", show_default=False),
]
Backends = Annotated[
    list[str] | None,
    typer.Option(
        "--backend", help="Time only this backend or implementation, and the peers; may be given several times."
    ),
]
Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda; by default a GPU where there is one.")]
Size = Annotated[
    str | None, typer.Option("--size", help="small, model or figures; by default model on a GPU, small on a CPU.")
]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="bf16, f16, f32 or f64; by default bf16 on a GPU, f32 on a CPU.")
]
Compiled = Annotated[bool, typer.Option("--compile", help="Take torch.compile of the eager formulation as a peer too.")]
Rounds = Annotated[int, typer.Option("--rounds", help="Rounds of each case, at most.")]
Limit = Annotated[float, typer.Option("--limit", help="Seconds after which a case begins no further round.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Write a bar plot to this SVG file.")]


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

    No time is a failure. Exits with 1 where an implementation raises or gives another result than the op's, and where
    none was timed.
    """
    output.check_writable("--plot", plot)
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
        output.write("--plot", plot, svg(report))
    if as_json:
        output.emit_json(report.as_dict())
    else:
        _show(report, output.console())
    if not report.passed:
        raise typer.Exit(1)


def _show(report: benchmarks.Report, console: Console) -> None:
    console.print(
        f"{report.device} ({report.arch}), {report.dtype}, {report.size} shapes, torch {report.torch}, "
        f"{report.threads} threads",
        style="bold",
    )
    console.print(
        f"ceilings of this run: copy {report.ceilings.copy_gbps:.0f} GB/s, "
        f"matmul {report.ceilings.matmul_tflops:.3g} TFLOP/s; within 2 % is equal\n"
    )
    rows: list[list[str | Text]] = []
    for case in report.cases:
        rows += [[f"{case.op}, {case.case}", *[""] * 7], *_rows(case)]
    numbers = ["median us", "quartiles", "to peer", "ceiling", "GB/s", "TFLOP/s"]
    console.print(output.table("", ["", *numbers[:3], "", *numbers[3:]], rows, numbers))
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
            _time(c.median_us),
            f"{_time(c.q1_us)}-{_time(c.q3_us)}",
            "-" if c.ratio is None else f"{c.ratio:.2f}x",
            output.state(c.verdict if c.verdict and c.kind == "implementation" else ""),
            f"{c.fraction:.0%}",
            f"{c.gbps:.0f}" if c.gbps >= 100 else f"{c.gbps:.1f}",
            "-" if c.tflops is None else f"{c.tflops:.3g}",
        ]
        for c in case.contenders
    ]


def _time(us: float) -> str:
    return f"{us:.1f}" if us < 1000 else f"{us:.0f}"
