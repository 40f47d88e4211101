"""The tiles of norms: which one a call gets, which ones the tuner tries, which ones there cannot be."""

import pytest

from opmux.plugin import parse_arch
from opmux_cutile.gates.configs import GatedConfig, gated_config, gated_space
from opmux_cutile.norms.configs import LONGEST, NormConfig, norm_config, norm_space
from opmux_cutile.products.configs import LinearConfig, linear_config, linear_space
from opmux_cutile.tiles import power_of_two

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
    ("kind", "given", "message"),
    [
        (NormConfig, (3,), "rows expected 1, 2, 4, 8 or 16, got 3"),
        (NormConfig, (1, 33), "occupancy expected 0 to 32, got 33"),
        (GatedConfig, (3, 64), "rows expected a power of two up to 64, got 3"),
        (GatedConfig, (2, 8192), r"rows \* columns expected 8192 or less, got 16384"),
        (GatedConfig, (1, 64, -1), "occupancy expected 0 to 32, got -1"),
        (LinearConfig, (100, 64, 64), "block_m expected one of 16, 32, 64, 128, 256, got 100"),
        (LinearConfig, (256, 256, 64), r"block_m \* block_n expected 32768 or less for 1 ctas"),
    ],
)
def test_a_config_that_there_cannot_be_is_refused(kind, given, message) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        kind(*given)


@pytest.mark.parametrize("n", [1, 77, 2048, 11008])
def test_the_space_of_gates_has_the_choice(n) -> None:
    found = list(gated_space(ARCH, {"n": n}))
    assert gated_config(ARCH, {"n": n}) in found or n == 1
    assert all(config.columns <= power_of_two(n) for config in found)


@pytest.mark.parametrize(
    ("arch", "rows", "block"),
    [("sm_90", 1, (16, 64)), ("sm_90", 30, (32, 128)), ("sm_90", 64, (64, 64)), ("sm_90", 512, (128, 128)),
     ("sm_90", 8192, (128, 256)), ("sm_100", 8192, (128, 256)), ("sm_120", 8192, (128, 128))],
)  # fmt: skip
def test_products_get_the_largest_tile_of_which_there_are_enough(arch, rows, block) -> None:
    features = {"bucket(tokens, 8)": rows, "n": 4096, "k": 512}
    found = linear_config(parse_arch(arch), features)
    assert (found.block_m, found.block_n) == block
    assert found in list(linear_space(parse_arch(arch), features))


def test_powers_of_two() -> None:
    assert [power_of_two(n) for n in (1, 2, 3, 4096, 4097)] == [1, 2, 4, 4096, 8192]
