"""The compiler of CUDA Tile: what it runs, what it is not told, what it says. The programs are played by scripts."""

import os
import stat
import sys
from pathlib import Path

import pytest
from kernels import add

from opmux_jit import CompileFailed, CompilerMissing, Source, choose
from opmux_jit.cache.keys import source_key
from opmux_jit.compilers import choice, tile
from opmux_jit.compilers.compiler import identity

SAME = {
    "cuda-tile": "1.7.0",
    "nvidia-cuda-tileiras": "13.4.92",
    "nvidia-cuda-nvcc": "13.4.80",
    "nvidia-nvvm": "13.4.92",
}


def source() -> Source:
    return Source("norm", "# a kernel", "sm_90", ("--kernel=norm",), backend="cutile", op="rms_norm", language="cutile")


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tile.Tile:
    """A compiler whose two programs note their arguments and variables in the result, or fail where that is asked."""
    script = tmp_path / "program"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\nNAMES = {tile.NOT_INHERITED!r}\n"
        "arguments = [a for a in sys.argv[1:] if a != '-o']\n"
        "if os.environ.get('PLAYED_FAILS'): sys.exit('tile too wide')\n"
        "said = ' '.join([*arguments[2:], *(n for n in os.environ if n in NAMES)])\n"
        "open(arguments[1], 'w').write(said)\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(tile.tile_translation, "__file__", str(script))
    return tile.Tile(script, "1.7.0-tileiras-13.4.92")


def test_both_steps_get_what_they_need_and_no_toolkit(played, tmp_path, monkeypatch) -> None:
    assert {"CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"} <= set(tile.NOT_INHERITED)  # where tileiras looks for a toolkit
    for name in tile.NOT_INHERITED:
        monkeypatch.setenv(name, "/usr/local/cuda-11")
    code = played.compile(source(), tmp_path).decode()
    assert code == "--gpu-name sm_90 -O3"
    assert (tmp_path / "out.tileirbc").read_text() == "--arch=sm_90 --bytecode=13.4 --kernel=norm"
    assert (tmp_path / "norm.py").read_text() == "# a kernel"
    assert os.environ["CUDA_HOME"] == "/usr/local/cuda-11"


def test_a_failure_has_everything_that_was_said(played, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PLAYED_FAILS", "1")
    with pytest.raises(CompileFailed) as caught:
        played.compile(source(), tmp_path)
    said = str(caught.value).splitlines()
    assert said[0].startswith("norm: cutile 1.7.0-tileiras-13.4.92 (")
    assert said[0].endswith("could not compile it for sm_90")
    assert said[-2:] == ["exit status 1", "tile too wide"]


def test_parts_of_different_releases_are_refused(monkeypatch) -> None:
    assert tile.mixture(SAME) == ""
    found = tile.Tile(Path("tileiras"), "1.7.0", tile.mixture({**SAME, "nvidia-nvvm": "13.5.27"}))
    monkeypatch.setattr(choice, "find", {"cutile": found}.get)
    with pytest.raises(CompilerMissing) as caught:
        choose(source())
    assert str(caught.value).splitlines()[1] == (
        "  cutile: its parts are of different releases (nvidia-cuda-tileiras 13.4.92, nvidia-cuda-nvcc 13.4.80, "
        'nvidia-nvvm 13.5.27); install one release of all: pip install "opmux-cutile[compiler]"'
    )


def test_every_part_and_the_translation_are_in_the_identity(monkeypatch) -> None:
    class Program:
        name = "tileiras"

        def locate(self) -> Path:
            return Path("/parts/tileiras")

    def identified(**changed: str) -> str:
        monkeypatch.setattr(tile, "versions", lambda: SAME | {k.replace("_", "-"): v for k, v in changed.items()})
        found = tile.find.__wrapped__()
        assert found is not None
        return identity(found)

    monkeypatch.setattr(tile.importlib.metadata, "files", lambda name: [Program()])
    assert identified() == ("cutile 1.7.0-tileiras-13.4.92 with nvcc 13.4.80, nvvm 13.4.92, translation 1")
    assert "nvcc 13.4.99," in identified(nvidia_cuda_nvcc="13.4.99")
    assert "nvvm 13.4.99," in identified(nvidia_nvvm="13.4.99")
    monkeypatch.setattr(tile, "TRANSLATION", 2)
    assert identified().endswith("translation 2")


def test_a_missing_part_is_no_compiler(monkeypatch) -> None:
    monkeypatch.setattr(tile, "versions", lambda: None)
    assert tile.find.__wrapped__() is None


def test_a_language_has_its_own_compilers(monkeypatch, played) -> None:
    monkeypatch.setattr(choice, "find", {"cutile": played}.get)
    assert choose(source()).name == "cutile"
    with pytest.raises(CompilerMissing, match="nvrtc: it does not compile cutile"):
        choose(source(), "nvrtc")
    with pytest.raises(CompilerMissing, match=r"cutile: it does not compile c\+\+"):
        choose(add(), "cutile")
    assert played.refusal(add()) == "it compiles cuda.tile Python, not c++"


def test_the_language_is_part_of_the_key() -> None:
    given = source()
    same = Source(given.name, given.text, given.arch, given.flags)
    assert (given.suffix, same.suffix) == (".py", ".cu")
    assert source_key(given) != source_key(same)
