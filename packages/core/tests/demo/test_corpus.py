"""Reading a text: the split, the vocabulary, the windows, and texts that are no good."""

from pathlib import Path

import pytest
import torch

import opmux
from opmux.demo.corpus import UNKNOWN, Vocabulary, documentation, load, split
from opmux.errors import InvalidArgument


def test_first_nine_tenths_train_and_the_rest_is_held_out() -> None:
    corpus = split("ab" * 100 + "ba" * 5, "a test", seq=4)
    assert (len(corpus.train), len(corpus.held_out)) == (189, 21)
    assert corpus.vocabulary.decode(corpus.held_out) == ("ab" * 100 + "ba" * 5)[189:]


def test_vocabulary_is_that_of_the_train_part() -> None:
    corpus = split("ab" * 90 + "abcc" * 5, "a test", seq=4)
    assert corpus.vocabulary.characters == (UNKNOWN, "a", "b")
    assert corpus.vocabulary.decode(corpus.held_out) == f"ab{UNKNOWN}{UNKNOWN}" * 5


def test_rare_characters_are_unknown() -> None:
    vocabulary = Vocabulary.of("abcab\U0001f600")
    assert vocabulary.characters == (UNKNOWN, "a", "b")
    assert vocabulary.encode("acb\U0001f600z\0").tolist() == [1, 0, 2, 0, 0, 0]
    assert len(vocabulary) == 3


def test_no_character_twice() -> None:
    assert Vocabulary.of("abc").encode("ab").tolist() == [0, 0]


def test_characters_outside_the_basic_plane_round_trip() -> None:
    text = "é\U0001f600\U0001f600é\n\n"
    vocabulary = Vocabulary.of(text)
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_batches_are_windows_of_the_train_part() -> None:
    corpus = split("abcdefghij" * 30, "a test", seq=6)
    batches = list(corpus.batches(5, 3, 6, torch.Generator().manual_seed(0)))
    assert [tuple(batch.shape) for batch in batches] == [(3, 7)] * 5
    text = corpus.vocabulary.decode(corpus.train)
    assert all(corpus.vocabulary.decode(row) in text for batch in batches for row in batch)
    again = corpus.batches(5, 3, 6, torch.Generator().manual_seed(0))
    assert all(torch.equal(a, b) for a, b in zip(batches, again, strict=True))


def test_a_file_with_windows_line_ends_and_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(b"\xef\xbb\xbf" + b"one\r\ntwo\r\n" * 20)
    corpus = load(file, seq=4)
    assert corpus.vocabulary.decode(corpus.train).startswith("one\ntwo\n")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load(tmp_path / "absent.txt", seq=4)
    assert str(caught.value) == (
        f"demo: `text` expected a file that can be read, got {tmp_path / 'absent.txt'} "
        "(No such file or directory); give the path of a text file"
    )


def test_folder_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidArgument, match=r"expected a file that can be read, got .*; give the path of a text file"
    ):
        load(tmp_path, seq=4)


def test_not_utf8(tmp_path: Path) -> None:
    file = tmp_path / "latin1.txt"
    file.write_bytes(b"caf\xe9 " * 100)
    with pytest.raises(InvalidArgument) as caught:
        load(file, seq=4)
    assert str(caught.value) == (
        f"demo: `text` expected UTF-8, got byte 0xe9 at 3 of {file}; convert the file to UTF-8"
    )


@pytest.mark.parametrize("content", ["", "too short"])
def test_too_short(tmp_path: Path, content: str) -> None:
    file = tmp_path / "short.txt"
    file.write_text(content)
    with pytest.raises(InvalidArgument) as caught:
        load(file, seq=4)
    assert str(caught.value) == (
        "demo: `text` expected at least 60 characters (its last tenth must hold a window of 5), "
        f"got {len(content)} in {file}; give a longer text"
    )


def test_the_shortest_text_holds_a_window_in_each_part() -> None:
    corpus = split("ab" * 30, "a test", seq=4)
    assert min(len(corpus.train), len(corpus.held_out)) >= 5


def test_documentation_is_that_of_the_ops() -> None:
    text = documentation()
    assert text == documentation()
    for op in (opmux.rms_norm, opmux.attention, opmux.write_kv_cache, opmux.rope.yarn):
        assert str(op.__doc__).partition("\n")[0] in text
    assert "define_op" not in text  # no code
    assert text.index("Scale each row by the reciprocal") < text.index("Make the frequencies of YaRN")
    corpus = load(None, seq=128)
    assert corpus.source == "the documentation of opmux"
    assert len(corpus.train) >= 420 * 8 * 128 / 12  # enough for every step of the demo
