"""The committed list of mutants."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from mutants.mutations import Mutant

TABLE = Path(__file__).parent / "mutants.tsv"
SURVIVORS = Path(__file__).parent / "survivors.toml"
HEADER = "seed\tkernel\tline\tmutation\tbefore\tafter\tverdict"


def row_of(mutant: Mutant, verdict: str) -> str:
    """One line of the table."""
    after = mutant.after or "(dropped)"
    return f"{mutant.seed}\t{mutant.kernel}\t{mutant.line}\t{mutant.kind}\t{mutant.before}\t{after}\t{verdict}"


def rows() -> list[str]:
    """The committed rows, without the header."""
    first, *found = TABLE.read_text().splitlines()
    assert first == HEADER
    return found


def explanations() -> dict[int, str]:
    """Why each survivor survives, by seed."""
    return {int(seed): str(why) for seed, why in tomllib.loads(SURVIVORS.read_text()).items()}


def caught_share(found: Sequence[str]) -> float:
    """Of the mutants that are not equivalent, the share that is judged or gives a wrong result."""
    verdicts = [row.split("\t")[-1] for row in found]
    real = [v for v in verdicts if v != "equivalent"]
    return sum(v != "survives" for v in real) / len(real)
