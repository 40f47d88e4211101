"""Makes packages/emulator/tests/mutants/mutants.tsv: 200 seeded mutants of correct kernels, and what caught each.

`python packages/emulator/scripts/make_mutants.py` writes it and prints the share that is caught; with `--check` it
writes nothing and exits 1 where the file is not what it would write. It takes half a minute.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from mutants.judging import judged  # noqa: E402
from mutants.table import HEADER, TABLE, caught_share, row_of  # noqa: E402

COUNT = 200


def main() -> int:
    """Draw, judge, and write or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    given = parser.parse_args()
    rows = [row_of(*judged(seed)) for seed in range(COUNT)]
    text = "\n".join([HEADER, *rows]) + "\n"
    verdicts = Counter(row.split("\t")[-1].partition(":")[0] for row in rows)
    print(", ".join(f"{n} {verdict}" for verdict, n in verdicts.most_common()))
    print(f"caught: {100 * caught_share(rows):.1f} % of those that are not equivalent")
    if given.check and TABLE.read_text() != text:
        print(f"{TABLE.name} is not what this script makes: run it without --check")
        return 1
    if not given.check:
        TABLE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
