"""The command ``opmux machine-code``: compiles the kernels for an arch and checks them, without a GPU."""

from pathlib import Path
from typing import Any

_EXTRA = ("pytest", "hypothesis", "numpy")
"""Packages of the core's extra ``testing``, which provides the cases to enumerate."""


def machine_code(
    arch: str,
    op: list[str] = [],  # noqa: B006  (typer reads the default as "may be given several times")
    expected: Path | None = None,
    write: bool = False,
    known: Path | None = None,
    every: bool = False,
    sample: bool = False,
    json: bool = False,
) -> None:
    """Compile the Triton kernels of every op for ARCH, in every config that its heuristics pick, and check the code.

    Needs no GPU. Prints each kernel with its config, matrix instructions, registers, LDS or shared memory and
    occupancy. Each config is compiled with the flags (masks, sinks, absent arguments) of its largest case and with the
    largest set of flags; --every compiles all combinations, --sample one config only of each kernel. Exits with 1 if a
    kernel does not compile, spills, exceeds the arch's limits, has a dot without matrix instructions, has no 16-byte
    loads where it could, or is worse than recorded in --expected FILE for the installed version of Triton; --write
    records the results there instead. The complaints that --known FILE lists, each with a reason, are printed and do
    not count as failures; a listed complaint that no longer occurs does.
    """
    import triton
    import typer
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from opmux.cli import output

    try:
        from opmux_triton.aot import checks, jobs
        from opmux_triton.aot import expected as records
        from opmux_triton.aot import known as exceptions
        from opmux_triton.aot.run import check_arch
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        output.complain(f'machine-code needs {error.name}, which is not installed: pip install "opmux[testing]"')
        raise typer.Exit(2) from None

    stderr = output.console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        console=stderr, transient=True, disable=not stderr.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task(arch)
        result = check_arch(
            arch, op, every, sample, tick=lambda done, total: bar.update(task, completed=done, total=total)
        )
    some = bool(op) or sample
    wrong = result.complaints
    excused: list[str] = []
    if known is not None:
        wrong, excused, stale = exceptions.sort_out(wrong, exceptions.read(known, arch, triton.__version__))
        wrong += [] if some or every else stale  # only a whole run shows which exceptions are needed
    if expected is not None and write:
        records.write(expected, triton.__version__, result.facts, some=some)
    elif expected is not None:
        wrong = [*wrong, *_compare(records.read(expected, triton.__version__), result, checks, some)]
    if json:
        output.emit_json(
            {
                "arch": arch,
                "triton": triton.__version__,
                "counts": jobs.describe(result.enumeration),
                "rows": [
                    {
                        "op": r.job.op,
                        "implementation": r.job.implementation,
                        "kernel": r.job.kernel,
                        "config": r.job.config,
                        "flags": r.job.flags,
                        "cases": r.job.cases,
                        "facts": r.facts.as_dict() if r.facts else None,
                        "complaints": r.complaints,
                    }
                    for r in result.rows
                ],
                "complaints": wrong,
                "known": excused,
            }
        )
    else:
        _show(result, output, triton.__version__)
    for line in excused:
        stderr.print(line, style="yellow", soft_wrap=True)
    for line in wrong:
        output.complain(line)
    if wrong or not result.rows:
        raise typer.Exit(1)


def _compare(recorded: dict[str, Any] | None, result: Any, checks: Any, some: bool) -> list[str]:
    import triton

    if recorded is None:
        return [f"nothing is recorded under triton {triton.__version__}: record it with --write"]
    found = []
    for key, facts in result.facts.items():
        if key not in recorded:
            found.append(f"{key}: not recorded yet: record it with --write")
        else:
            found += [f"{key}: {text}" for text in checks.worse(recorded[key], facts)]
    gone = [] if some else sorted(set(recorded) - set(result.facts))
    return [*found, *(f"{key}: recorded, but no longer launched: update the record with --write" for key in gone)]


def _show(result: Any, output: Any, version: str) -> None:
    from opmux_triton.aot.jobs import describe

    rows = []
    for row in result.rows:
        facts, settings = row.facts, " ".join(f"{k}={v}" for k, v in row.job.config.items())
        if facts is None:
            rows.append([row.job.op, row.job.kernel, settings, row.job.flags, *["-"] * 6])
            continue
        registers = " ".join(f"{n} {v}" for n, v in facts.registers.items())
        matrix = " ".join(f"{n} x{v}" for n, v in facts.matrix.items())
        wide = f"{facts.wide_loads}/{facts.loads}"
        rows.append(
            [row.job.op, row.job.kernel, settings, row.job.flags, matrix, registers, facts.spills, facts.shared, wide,
             facts.occupancy]
        )  # fmt: skip
    columns = ["op", "kernel", "config", "flags", "matrix instructions", "registers", "spills", "LDS", "wide", "occ."]
    console = output.console()
    console.print(output.table("", columns, rows, ["spills", "LDS", "wide", "occ."]))
    counts = f"{len(result.rows)} compiled; {len(result.complaints)} complaints"
    console.print(f"triton {version}; {describe(result.enumeration)}; {counts}", soft_wrap=True)
