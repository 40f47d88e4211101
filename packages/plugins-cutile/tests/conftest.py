"""What every test of this backend starts from: no other backend, and a cache of the session's own."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["OPMUX_PLUGINS"] = "cutile"
sys.path.insert(0, str(Path(__file__).parent))

import opmux


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is compiled for another arch than sm_90 is left to the whole sessions: a kernel takes seconds."""
    for item in items:
        compiles = "tmp_path" in getattr(item, "fixturenames", ()) and item.path.parent == Path(__file__).parent
        if compiles and getattr(item, "callspec", None) and item.callspec.params.get("arch", "sm_90") != "sm_90":
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of machine code of the session's own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPMUX_CACHE", str(folder))
        for name in ("OPMUX_BUNDLES", "OPMUX_NO_JIT"):
            patch.delenv(name, raising=False)
        yield folder


@pytest.fixture(autouse=True)
def clean_process() -> Iterator[None]:
    """Leave nothing behind for the next test."""
    yield
    opmux.policy.reset()
    opmux.quarantine_clear()
