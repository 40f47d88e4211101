"""How tiles are cut along k."""

from opmux_triton.gemm.cuts import even_shares, rest_of, shares_of


def test_tiles_are_cut_alike_where_that_keeps_programs_busy() -> None:
    assert shares_of(64, 128, 132) == (64, 128)
    assert shares_of(56, 256, 132) == (109, 256)
    assert shares_of(1056, 8, 264) == (32, 8)
    assert even_shares(60, 385, 132) == (193, 386)
    assert even_shares(3, 4, 132) == (1, 4)


def test_the_rest_is_cut_where_it_fills_half_a_round_at_most() -> None:
    assert rest_of(192, 384, 132) == 60
    assert rest_of(64, 128, 132) == 64
    assert rest_of(264, 384, 132) == 0
    assert rest_of(200, 384, 132) == 0
