"""scripts/make_corpus.py: the same text for the same pages, and a check that sees a change."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "scripts" / "make_corpus.py"


def make(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--root", str(root), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "ops").mkdir(parents=True)
    (tmp_path / "packages/core/src/opmux/demo").mkdir(parents=True)
    (tmp_path / "README.md").write_text("# readme\n")
    (tmp_path / "docs" / "tutorial.md").write_bytes(b"first steps\r\n\r\n")
    (tmp_path / "docs" / "ops" / "norm.md").write_text("nested é\n", encoding="utf-8")
    (tmp_path / "docs" / "command-line.md").write_text("a page that only lists")
    (tmp_path / "docs" / "ops" / "picture.svg").write_text("<svg/>")
    return tmp_path


def test_pages_in_order(repository: Path) -> None:
    assert make(repository).returncode == 0
    corpus = repository / "packages/core/src/opmux/demo/corpus.txt"
    assert corpus.read_bytes() == "# readme\n\nfirst steps\n\nnested é\n".encode()


def test_check(repository: Path) -> None:
    missing = make(repository, "--check")
    assert missing.returncode == 1
    assert "corpus.txt is out of date; run: python scripts/make_corpus.py" in missing.stderr
    make(repository)
    assert make(repository, "--check").returncode == 0
    (repository / "docs" / "tutorial.md").write_text("changed")
    assert make(repository, "--check").returncode == 1


def test_the_corpus_is_current() -> None:
    assert make(SCRIPT.parent.parent, "--check").returncode == 0
