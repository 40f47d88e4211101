"""Makes the pages of figures and their pictures from what was measured: the files in docs/benchmarks/data.

``ops_page`` has docs/benchmarks/h200.md, the Triton backend; ``products_page`` and ``attention_page`` have products.md
and attention.md, its linear layers and its attention on shapes that tuning never saw; ``choice_page`` has choice.md,
what opmux chooses on such calls, and ``paged_page`` has paged.md, paged decode with few kv heads, each once a run was
measured; ``host_page`` has host.md, host times, likewise; ``quantised_page`` has quantised.md, 8-bit codes, groups and
losses; ``deepgemm_page`` has deepgemm.md, the products for Hopper GPUs, and ``cutile_page`` cutile.md, the CUDA Tile
backend, likewise; ``models_page`` has models.md, whole Hugging Face models. ``choice_plot`` and ``strips_plot`` draw
pictures.

`python scripts/make_benchmark_page.py` writes the pages; with `--check` it writes nothing and exits 1 where a page is
not what it would write. Both exit 1 where a miss has no reason. The pictures are the same text each time under the
matplotlib of `constraints.txt`.
"""

import argparse
import sys
from pathlib import Path

from attention_page import attention_page
from choice_page import choice_page
from choice_plot import choice_plot
from cutile_page import cutile_page, cutile_plot
from deepgemm_page import deepgemm_page
from host_page import host_page
from models_page import models_page, models_plot
from ops_page import ops_page, ops_pictures
from page_parts import NO_REASON
from paged_page import paged_page
from products_page import products_page
from quantised_page import quantised_page, quantised_plot

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"

MADE = {
    "h200.md": ops_page,
    **ops_pictures(),
    "products.md": products_page,
    "attention.md": attention_page,
    "quantised.md": quantised_page,
    "quantised.svg": quantised_plot,
    "models.md": models_page,
    "models.svg": models_plot,
}
"""Each file in the folder, and what makes it."""

if (FOLDER / "data" / "choice.json").exists():
    MADE |= {"choice.md": choice_page, "choice.svg": choice_plot}
if (FOLDER / "data" / "deepgemm.json").exists():
    MADE |= {"deepgemm.md": deepgemm_page}
if (FOLDER / "data" / "cutile.json").exists():
    MADE |= {"cutile.md": cutile_page, "cutile.svg": cutile_plot}
if (FOLDER / "data" / "paged.json").exists():
    MADE |= {"paged.md": paged_page}
if (FOLDER / "data" / "host_times.json").exists():
    MADE |= {"host.md": host_page}


def main() -> int:
    """Write or check the pages; return the exit code."""
    parser = argparse.ArgumentParser(description="Makes the pages of the H200's figures.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page is out of date")
    arguments = parser.parse_args()
    code = 0
    for name, make in MADE.items():
        target, text = FOLDER / name, make(FOLDER)
        if not arguments.check:
            target.write_text(text, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            print(f"docs/benchmarks/{name} is out of date; run: python scripts/make_benchmark_page.py", file=sys.stderr)
            code = 1
        for line in text.splitlines():
            if NO_REASON in line:
                print(f"docs/benchmarks/data/about.toml gives no reason for a miss: {line}", file=sys.stderr)
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
