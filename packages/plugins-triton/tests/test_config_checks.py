"""What configs check of their values, whoever gives them."""

from types import SimpleNamespace

import pytest

from opmux_triton.config_checks import require_at_least, require_parts, require_powers_of_two


@pytest.mark.parametrize("value", [0, -4, 3, 96])
def test_what_is_no_power_of_two_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=f"^rows expected a power of two, got {value}$"):
        require_powers_of_two(SimpleNamespace(block=1, rows=value), "block", "rows")


def test_powers_of_two_pass() -> None:
    for power in range(12):
        require_powers_of_two(SimpleNamespace(rows=1 << power), "rows")


def test_parts_must_leave_nothing_out() -> None:
    require_parts(SimpleNamespace(block=192, rows=64), "block", "rows")
    with pytest.raises(ValueError, match=r"^rows expected a divisor of block = 192, got 128$"):
        require_parts(SimpleNamespace(block=192, rows=128), "block", "rows")


def test_the_least_value_passes_and_one_less_does_not() -> None:
    require_at_least(2, SimpleNamespace(stages=2, slots=3), "stages", "slots")
    with pytest.raises(ValueError, match=r"^slots expected at least 2, got 1$"):
        require_at_least(2, SimpleNamespace(stages=2, slots=1), "stages", "slots")
