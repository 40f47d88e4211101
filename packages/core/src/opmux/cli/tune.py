"""`opmux tune`: measures implementations in every config of their spaces, and writes measured rows."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from opmux import tuner
from opmux.cli import output

Ops = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[OP]...", help="Ops, as `opmux ops` lists them; with --shapes or --from-trace all by default."
    ),
]
Shapes = Annotated[Path | None, typer.Option("--shapes", help="Measure the shapes in this file, in its order.")]
Random = Annotated[
    int | None, typer.Option("--random", help="Measure this many points for each op, drawn from real models' widths.")
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of --random.")]
FromTrace = Annotated[
    Path | None,
    typer.Option(
        "--from-trace", help="Measure the shapes that `opmux.trace(record_shapes=FILE)` wrote, heaviest first."
    ),
]
Backends = Annotated[
    list[str] | None,
    typer.Option("--backend", help="Measure only this backend or implementation; may be given several times."),
]
Limit = Annotated[float | None, typer.Option("--limit", help="Seconds after which no further point is begun.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="The file of measured rows; by default one for this device in your folder of records."),
]
Device = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda (every GPU) or cuda:1; by default GPUs if there are some.")
]
Rounds = Annotated[int, typer.Option("--rounds", help="Maximum number of rounds for each point.")]
Patience = Annotated[
    float, typer.Option("--patience", help="Seconds that one step of a config may take, its compilation included.")
]


def tune(
    op: Ops = None,
    shapes: Shapes = None,
    random: Random = None,
    seed: Seed = 0,
    from_trace: FromTrace = None,
    backend: Backends = None,
    limit: Limit = None,
    out: Out = None,
    device: Device = None,
    rounds: Rounds = 15,
    patience: Patience = 60.0,
    as_json: output.AsJson = False,
) -> None:
    """Measure implementations in every config of their spaces, and write the best of each as measured rows.

    Each config is checked against the reference and timed in a process of its own; one that is wrong, fails or hangs is
    recorded as such. The same command goes on where a run stopped. Exits with 1 if no point was measured.
    """
    console = output.console(stderr=True)
    columns = (
        TextColumn("tune"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"),
        TextColumn("{task.description}", markup=False),
    )  # fmt: skip
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", left="")
        tuned = tuner.tune(
            op or (),
            shapes=shapes,
            random=random,
            seed=seed,
            from_trace=from_trace,
            backends=backend,
            limit_s=limit,
            out=out,
            device=device,
            rounds=rounds,
            patience_s=patience,
            progress=lambda p: bar.update(
                task, completed=p.done, total=p.total, description=p.now, left=_left(p.left_s)
            ),
        )
    if as_json:
        output.emit_json(tuned.as_dict())
    else:
        output.console().print(str(tuned), soft_wrap=True)
    if tuned.problems and not tuned.skipped and len(tuned.problems) == tuned.measured:
        raise typer.Exit(1)


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} left"
