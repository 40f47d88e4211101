"""How many blocks a kernel is launched with."""

from opmux_deepgemm.configs import Config


def clusters(config: Config, m: int, n: int) -> int:
    """Parts of a product that a cluster computes one at a time: tiles that share rows, or one that is cut along k."""
    rows, columns = -(-m // config.block_m), -(-n // config.block_n)
    return rows * columns if config.kernel == "small" else -(-rows // config.w_share) * -(-columns // config.x_share)


def most_clusters(config: Config, m: int, n: int, layout: str, groups: int) -> int:
    """Parts of a grouped product, at most: how many rows a group has is not known before the kernel runs.

    Args:
        config: of the kernel.
        m: rows of x; of each group where they are ``masked``.
        n: rows of each group's w.
        layout: ``ragged`` or ``masked``.
        groups: how many.
    """
    if layout == "masked":
        return clusters(config, m, n) * groups
    rows, columns = config.block_m * config.w_share, config.block_n * config.x_share
    return (m // rows + min(groups, m)) * -(-n // columns)  # each group may have a tile that is not full


def grid_of(config: Config, m: int, n: int, units: int, layout: str = "", groups: int = 1) -> tuple[int, int, int]:
    """The grid of a launch.

    Args:
        config: of the kernel.
        m: rows of x, at least 1; of each group where they are ``masked``.
        n: rows of w.
        units: multiprocessors of the GPU.
        layout: of groups of rows: ``ragged``, ``masked``, or none.
        groups: how many.
    """
    if config.kernel == "small":
        return -(-n // config.block_n) * config.cluster, -(-m // config.block_m), 1
    most = most_clusters(config, m, n, layout, groups) if layout else clusters(config, m, n)
    if config.cluster > 2:  # they lie within groups of 16 or 18 multiprocessors, of which they leave some
        units -= units // 11
    return min(most, max(units // config.cluster, 1)) * config.cluster, 1, 1
