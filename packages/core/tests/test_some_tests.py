"""Option ``--some``, by which CI runs part of the tests of some files."""

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def shared() -> ModuleType:
    """conftest.py of the repository."""
    spec = importlib.util.spec_from_file_location("opmux_shared_conftest", ROOT / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Item:
    """A test."""

    def __init__(self, file: str, name: str) -> None:
        self.path, self.nodeid, self.name = ROOT / file, f"{file}::{name}", name


def kept(shared: ModuleType, some: list[str], items: list[Item]) -> list[str]:
    """The names of the tests that are left; those that are not are told to pytest."""
    told: list[Item] = []

    def pytest_deselected(items: list[Item]) -> None:
        told.extend(items)

    hook = SimpleNamespace(pytest_deselected=pytest_deselected)
    config: Any = SimpleNamespace(rootpath=ROOT, getoption=lambda name: {"some": some}[name], hook=hook)
    left = [*items]
    shared.leave_some(config, left)
    assert sorted(left + told, key=id) == sorted(items, key=id)
    return [item.name for item in left]


def test_sets_of_parameters_at_even_distances_are_kept(shared: ModuleType) -> None:
    first, second = "packages/core/tests/test_arch.py", "packages/core/tests/test_policy.py"
    items = [Item(first, f"test_a[{place}]") for place in range(9)]
    items += [Item(first, "test_b"), Item(first, "test_c[0]"), Item(first, "test_c[1]"), Item(second, "test_a[0]")]
    rest = ["test_b", "test_c[0]", "test_c[1]", "test_a[0]"]
    assert kept(shared, [f"{first}=3"], items) == ["test_a[0]", "test_a[4]", "test_a[8]", *rest]
    assert kept(shared, [f"{first}=20"], items) == [item.name for item in items]
    assert kept(shared, [f"{first}=1", f"{second}=1"], items) == ["test_a[0]", "test_b", "test_c[0]", "test_a[0]"]
    assert kept(shared, ["packages/core/tests=1"], items) == ["test_a[0]", "test_b", "test_c[0]", "test_a[0]"]
    assert kept(shared, [], items) == [item.name for item in items]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("packages/core/tests/test_arch.py", "--some expected PATH=N with a number of at least 1, got packages/"),
        ("packages/core/tests/test_arch.py=0", "--some expected PATH=N with a number of at least 1, got packages/"),
        ("test_nowhere.py=2", "--some expected a file or folder of tests below "),
    ],
)
def test_what_names_no_part_is_refused(shared: ModuleType, given: str, said: str) -> None:
    with pytest.raises(pytest.UsageError, match="some expected") as caught:
        kept(shared, [given], [])
    assert str(caught.value).startswith(said)
