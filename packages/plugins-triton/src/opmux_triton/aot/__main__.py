"""``python -m opmux_triton.aot ARCH``: the command ``opmux machine-code`` on its own."""

import typer

from opmux_triton.aot.command import machine_code

if __name__ == "__main__":
    typer.run(machine_code)
