"""How tiles are cut: along k into shares for the programs, and in their width into powers of two. Loads no Triton."""


def shares_of(tiles: int, blocks: int, slots: int) -> tuple[int, int]:
    """How many blocks of k a program gets, and how many a tile counts as having.

    All tiles are cut at the same places if that keeps 8 of 9 programs busy: programs whose tiles have rows in common
    then read them at the same time, from the cache. Otherwise the cuts fall where they fall.
    """
    share = -(-tiles * blocks // slots)
    even, length = even_shares(tiles, blocks, slots)
    return (even, length) if tiles <= slots and even * 8 <= share * 9 else (share, blocks)


def even_shares(tiles: int, blocks: int, slots: int) -> tuple[int, int]:
    """Like `shares_of`, with all tiles cut at the same places."""
    cuts = max(1, min(blocks, slots // tiles))
    even = -(-blocks // cuts)
    return even, even * -(-blocks // even)


def rest_of(tiles: int, blocks: int, slots: int) -> int:
    """How many tiles are left after the rounds in which every program has one, if cutting them up pays; else 0."""
    rest = tiles % slots
    return rest if 0 < 2 * rest <= slots and blocks >= 2 else 0


def halves_of(block_n: int) -> tuple[int, int]:
    """The width of a tile as the largest power of two in it and the rest, another power of two or 0."""
    left = 1 << block_n.bit_length() - 1
    return left, block_n - left
