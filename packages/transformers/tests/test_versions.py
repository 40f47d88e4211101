"""The versions of transformers that are supported."""

import pytest
from samples import model

import opmux_transformers
from opmux.errors import UnsupportedCall
from opmux_transformers import versions


@pytest.mark.parametrize("version", ["5.17.0", "5.20.2", "5.23.0", "5.23.9"])
def test_versions_that_are_known(version: str) -> None:
    versions.check_transformers(version)


@pytest.mark.parametrize("version", ["4.57.6", "5.16.1", "5.24.0", "6.0.0", "unknown"])
def test_versions_that_are_not_known_are_refused(version: str, monkeypatch) -> None:
    monkeypatch.setattr(versions.transformers, "__version__", version)
    with pytest.raises(UnsupportedCall) as caught:
        opmux_transformers.patch(model())
    assert str(caught.value) == (
        f"opmux_transformers: `transformers` expected a version from 5.17 to 5.23, got {version};"
        ' pip install "transformers>=5.17,<5.24", or see whether a newer opmux-transformers knows it'
    )
