"""Checks that `.ci/run` and `.ci/whole` together run everything that the sessions of the noxfile do.

A session is covered if one of the two scripts names it, or a covered session does its work: `ci` runs `types` and
`docs`, for instance. `python scripts/check_ci.py SESSION ...`, with the names of all sessions, exits 1 and names
what neither runs, and what they name that is no session. Session `lint` runs it.
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK_OF = {
    "ci": ("types", "docs", "ci-ck"),
    "ci-core": ("bench", "demo"),
}
"""Session -> the sessions whose work it does. CI runs parts of tests, test-interpreter, test-gfx942 and test-sm90."""

PARTS = {"test-kernels": ("test-interpreter", "test-gfx942", "test-gfx90a", "test-gfx950", "test-sm90")}
"""Session -> the sessions that it runs one after the other: covered once all of these are."""

CHECKS_NOTHING = ("generate",)
"""Sessions that write files. The pages are compared with their sources by `docs`, the stub by `types`."""


BY_HAND = ("test-foreign", "test-ck", "test-ck-oldest")
"""Sessions that fetch programs or sources of others from the network."""


def named(script: str) -> list[str]:
    """The sessions in the loop of a script."""
    loop = re.search(r"^for session in (.+); do$", (ROOT / ".ci" / script).read_text(), re.MULTILINE)
    if loop is None:
        raise SystemExit(f".ci/{script} has no line `for session in ...; do`")
    return loop[1].split()


def problems(known: set[str], run: list[str]) -> list[str]:
    """What is wrong with these sessions as the only ones that are run."""
    covered = {*run, *CHECKS_NOTHING, *BY_HAND, *(part for session in run for part in WORK_OF.get(session, ()))}
    covered |= {session for session, parts in PARTS.items() if covered >= set(parts)}
    found = [f"{session}: run by neither .ci/run nor .ci/whole" for session in sorted(known - covered)]
    stated = {*covered, *WORK_OF, *PARTS, *(part for parts in (*WORK_OF.values(), *PARTS.values()) for part in parts)}
    return found + [f"{session}: no such session in noxfile.py" for session in sorted(stated - known)]


def main() -> int:
    """Check the scripts beside this one's folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("session", nargs="+", help="the sessions of noxfile.py, all of them")
    found = problems(set(parser.parse_args().session), [*named("run"), *named("whole")])
    for problem in found:
        sys.stdout.write(f"{problem}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
