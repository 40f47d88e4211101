"""Which Triton is taken, and what is said of the others."""

import importlib.metadata

import pytest

from opmux.errors import PluginError
from opmux_triton import versions


@pytest.mark.parametrize("version", ["3.6.0", "3.6", "3.9.0", "3.10.1", "3.7.0+gitabc", "3.8.0rc1"])
def test_36_and_newer_are_taken(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    versions.check_triton()


@pytest.mark.parametrize("version", ["3.5.1", "2.1.0", "4.0.0", "unknown"])
def test_others_are_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(PluginError) as raised:
        versions.check_triton()
    assert str(raised.value) == (
        f'needs triton 3.6 or newer (and below 4), found {version}: pip install "triton>=3.6,<4"'
    )


def test_its_absence_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(PluginError) as raised:
        versions.check_triton()
    assert str(raised.value) == 'needs triton 3.6 or newer, none is installed: pip install "triton>=3.6,<4"'
