"""The tiles of norms: which one a call gets, which ones the tuner tries, which ones there cannot be."""

import pytest

from opmux.plugin import parse_arch
from opmux_cutile.norms.configs import LONGEST, NormConfig, norm_config, norm_space, power_of_two

ARCH = parse_arch("sm_90")


@pytest.mark.parametrize(("hidden", "rows"), [(1, 16), (64, 16), (100, 8), (512, 2), (1000, 1), (16384, 1)])
def test_short_rows_share_a_block(hidden, rows) -> None:
    assert norm_config(ARCH, {"hidden": hidden}) == NormConfig(rows)


def test_the_space_has_the_choice_and_fits() -> None:
    for hidden in (1, 100, 4096, 16384):
        found = list(norm_space(ARCH, {"hidden": hidden}))
        assert norm_config(ARCH, {"hidden": hidden}) in found
        assert all(c.rows == 1 or c.rows * power_of_two(hidden) <= LONGEST for c in found)
        assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": 3}, "rows expected 1, 2, 4, 8 or 16, got 3"),
        ({"occupancy": 33}, "occupancy expected 0 to 32, got 33"),
    ],
)
def test_a_config_that_there_cannot_be_is_refused(given, message) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        NormConfig(**given)


def test_powers_of_two() -> None:
    assert [power_of_two(n) for n in (1, 2, 3, 4096, 4097)] == [1, 2, 4, 4096, 8192]
