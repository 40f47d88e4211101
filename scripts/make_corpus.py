"""Makes the text that `opmux demo` trains on: README.md and the pages that explain, one after the other.

The pages that only list (commands, the table of ops, file formats) stay out, for they read less like text; so does
the longest of the others: the wheel that carries the result is to stay under 0.3 MB.

`python scripts/make_corpus.py` writes packages/core/src/opmux/demo/corpus.txt; with `--check` it writes nothing
and exits 1 where that file is not what it would write.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = Path("packages/core/src/opmux/demo/corpus.txt")


EXPLAINING = ("docs/index.md", "docs/tutorial.md", "docs/ops/*.md")


def pages(root: Path) -> list[Path]:
    """README.md, then the Markdown pages that explain; those of a folder in the order of their names."""
    return [root / "README.md", *(page for pattern in EXPLAINING for page in sorted(root.glob(pattern)))]


def corpus(root: Path) -> str:
    """The pages as one text: newlines as line ends, one empty line between pages."""
    # read_text turns every line end into a newline, so that a Windows checkout gives the same text.
    return "\n\n".join(page.read_text(encoding="utf-8").strip() for page in pages(root)) + "\n"


def main() -> int:
    """Write or check the file; return the exit code."""
    parser = argparse.ArgumentParser(description="Makes the text that opmux demo trains on.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the file is out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository (default: that of this script)")
    arguments = parser.parse_args()
    text, target = corpus(arguments.root), arguments.root / CORPUS
    if not arguments.check:
        target.write_text(text, encoding="utf-8", newline="\n")
        print(f"{CORPUS}: {len(text)} characters from {len(pages(arguments.root))} pages")
        return 0
    if not target.exists() or target.read_bytes() != text.encode():
        print(f"{CORPUS} is out of date; run: python scripts/make_corpus.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
