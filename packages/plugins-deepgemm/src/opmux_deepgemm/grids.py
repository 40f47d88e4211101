"""How many blocks a kernel is launched with."""

from opmux_deepgemm.configs import Config


def clusters(config: Config, m: int, n: int) -> int:
    """Parts of a product that a cluster computes one at a time: pairs of tiles, or tiles cut along k."""
    rows, columns = -(-m // config.block_m), -(-n // config.block_n)
    return rows * columns if config.kernel == "small" else -(-rows // config.cluster) * columns


def grid_of(config: Config, m: int, n: int, units: int) -> tuple[int, int, int]:
    """The grid of a launch.

    Args:
        config: of the kernel.
        m: rows of x, at least 1.
        n: rows of w.
        units: multiprocessors of the GPU.
    """
    if config.kernel == "small":
        return -(-n // config.block_n) * config.cluster, -(-m // config.block_m), 1
    return min(clusters(config, m, n), max(units // config.cluster, 1)) * config.cluster, 1, 1
