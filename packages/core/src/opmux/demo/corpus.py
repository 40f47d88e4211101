"""The text: read, split into a train part and a held-out part, and turned into ids."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from opmux.errors import invalid

HELD_OUT_SHARE = 10
"""One character in this many is held out, all of them at the end of the text."""

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""The stand-in for characters that occur fewer than two times in the train part."""


@dataclass(frozen=True)
class Vocabulary:
    """The characters that a model knows; id 0 stands for all others."""

    characters: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "Vocabulary":
        """The characters that occur at least twice in `text`.

        The others become the unknown character, so that its probability is learned too.
        """
        points, counts = torch.unique(_code_points(text), return_counts=True)
        return cls((UNKNOWN, *(chr(point) for point in points[counts > 1].tolist() if chr(point) != UNKNOWN)))

    def __len__(self) -> int:
        """Number of ids."""
        return len(self.characters)

    def encode(self, text: str) -> Tensor:
        """The ids of a text, int64[len(text)]."""
        known = torch.tensor([ord(character) for character in self.characters[1:]], dtype=torch.int64)
        if not len(known):
            return torch.zeros(len(text), dtype=torch.int64)
        points = _code_points(text)
        nearest = torch.searchsorted(known, points).clamp(max=len(known) - 1)
        return torch.where(known[nearest] == points, nearest + 1, 0)

    def decode(self, ids: Tensor | list[int]) -> str:
        """The text of ids."""
        values = ids.tolist() if isinstance(ids, Tensor) else ids
        return "".join(self.characters[value] for value in values)


@dataclass(frozen=True)
class Corpus:
    """A text as ids, in two parts: `train` (the first nine tenths) and `held_out` (the rest), both int64."""

    source: str
    vocabulary: Vocabulary
    train: Tensor
    held_out: Tensor

    def batches(self, steps: int, batch: int, seq: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Windows of the train part at random places: int64[batch, seq + 1], `steps` times.

        Args:
            steps: Number of batches.
            batch: Windows in each.
            seq: Characters that are predicted in each window; one more is read.
            generator: Gives the places.
        """
        window = torch.arange(seq + 1)
        for _ in range(steps):
            starts = torch.randint(len(self.train) - seq, (batch, 1), generator=generator)
            yield self.train[starts + window]


def documentation() -> str:
    """The docstrings of the ops and of rope's rules: file by file, with an empty line between two."""
    package = files("opmux")
    sources = [file for file in package.joinpath("ops").iterdir() if file.name.endswith(".py")]
    sources = [*sorted(sources, key=lambda file: file.name), package.joinpath("rope.py")]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for file in sources for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    texts = [ast.get_docstring(node) for node in nodes if isinstance(node, documented)]
    return "\n\n".join(text for text in texts if text) + "\n"


def load(text: Path | None, seq: int) -> Corpus:
    """Read a text and split it.

    Args:
        text: A UTF-8 file; None takes `documentation`.
        seq: Length of a training window in characters; each part must hold at least one.

    Returns:
        The corpus. Line ends are read as newlines.

    Raises:
        InvalidArgument: The file cannot be read, is not UTF-8 or is too short.
    """
    if text is None:
        return split(documentation(), "the documentation of opmux", seq)
    source = str(text)
    try:
        data = text.read_bytes()
    except OSError as error:
        got = f"{source} ({error.strerror or error})"
        raise invalid("demo", "text", "a file that can be read", got, "give the path of a text file") from None
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        got = f"byte 0x{data[error.start]:02x} at {error.start} of {source}"
        raise invalid("demo", "text", "UTF-8", got, "convert the file to UTF-8") from None
    return split(content, source, seq)


def split(content: str, source: str, seq: int) -> Corpus:
    """Split a text into its first nine tenths and its last tenth.

    The vocabulary is that of the first part alone: the held-out part is not looked at.

    Args:
        content: The text.
        source: What messages call it.
        seq: Length of a training window in characters.

    Returns:
        The corpus.

    Raises:
        InvalidArgument: The text is too short for a window in each part.
    """
    content = content.replace("\r\n", "\n")
    shortest = HELD_OUT_SHARE * (seq + 2)
    if len(content) < shortest:
        expected = f"at least {shortest} characters (its last tenth must hold a window of {seq + 1})"
        raise invalid("demo", "text", expected, f"{len(content)} in {source}", "give a longer text")
    cut = len(content) - len(content) // HELD_OUT_SHARE
    vocabulary = Vocabulary.of(content[:cut])
    return Corpus(source, vocabulary, vocabulary.encode(content[:cut]), vocabulary.encode(content[cut:]))


def _code_points(text: str) -> Tensor:
    """The code points of a text, int64[len(text)]."""
    if not text:
        return torch.zeros(0, dtype=torch.int64)
    # A lone surrogate cannot come from a UTF-8 file, but a caller of `split` may have one.
    data = bytearray(text.encode("utf-32-le", errors="surrogatepass"))
    return torch.frombuffer(data, dtype=torch.int32).to(torch.int64)
