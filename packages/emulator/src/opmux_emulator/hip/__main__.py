"""Run a command on the emulator: ``python -m opmux_emulator.hip --arch gfx950 ./program argument``."""

import argparse
import os
import shlex
import sys

from opmux_emulator.errors import EmulatorError
from opmux_emulator.hip.library import environment
from opmux_emulator.isa.opcodes import ARCHS
from opmux_emulator.native.build import BuildError


def main() -> int:
    """Replace this process by the command, with the emulator as its HIP library; without one, print what to set."""
    parser = argparse.ArgumentParser(prog="python -m opmux_emulator.hip", description=main.__doc__)
    parser.add_argument("--arch", choices=ARCHS, default="gfx942", help="what the device plays")
    parser.add_argument("--report", help="a file to which each launch appends its report as a line of JSON")
    parser.add_argument("--ignore", action="append", default=[], help="a rule that is not applied")
    parser.add_argument("--limit", type=int, help="instructions that a wave may execute")
    parser.add_argument("--pageable", action="store_true", help="kernels may use any memory of the process")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a program and its arguments")
    given = vars(parser.parse_args())
    command = [word for k, word in enumerate(given.pop("command")) if k or word != "--"]
    try:
        variables = environment(**given)
    except (EmulatorError, BuildError) as error:
        sys.stderr.write(f"hip: {error}\n")
        return 2
    if not command:
        for name, value in variables.items():
            sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
        return 0
    try:
        os.execvpe(command[0], command, {**os.environ, **variables})
    except OSError as error:
        sys.stderr.write(f"hip: {command[0]}: {error.strerror}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
