"""The command ``opmux emulate``: run one kernel of a code object and report."""

from pathlib import Path


def emulate(
    file: Path,
    kernel: str | None = None,
    arch: str | None = None,
    grid: str = "1",
    block: str = "64",
    arg: list[str] | None = None,
    lds: int = 0,
    ignore: list[str] | None = None,
    limit: int = 50_000_000,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Run a kernel of a code object on the CPU and judge it: `opmux emulate add.hsaco --grid 4 --block 256 --arg ...`.

    FILE is an ELF code object for gfx90a, gfx942 or gfx950. --kernel names one of its kernels, --arch says what it must
    be for. --grid and --block are workgroups and threads in x,y,z; --lds adds dynamic LDS in bytes (Triton's kernels:
    `metadata.shared`). Each --arg is the next argument: `i32=5`, `f32=0.5` (also i64, u32, u64, f16, f64), `null`,
    `in:f32[64,128]` for random input, `out:f32[64]` for memory that nothing has written, `zeros:i32[64]`, or
    `file:x.npy`. --ignore leaves out a rule. Exits with 1 where a rule is broken.
    """
    import typer

    from opmux_emulator import emulate as program

    try:
        result = program.run(file, kernel, arch, grid, block, arg or [], lds, ignore or [], limit, seed)
    except (program.EmulatorError, OSError) as error:
        typer.echo(f"emulate: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(program.as_json(result) if json else program.as_text(result))
    if result.judgements:
        raise typer.Exit(1)
