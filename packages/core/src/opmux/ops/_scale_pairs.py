"""The pairs of scales that a scaled product takes, and which of two that are no pair is refused."""

from collections.abc import Callable, Mapping
from typing import Any

Blame = Callable[[Mapping[str, Any]], tuple[str, str]]
"""The argument that breaks a relation, and what is expected of it."""


def scale_pairs(m: str, x: str, w: str) -> tuple[str, str, Blame]:
    """The relation between the scales of x and of w, as the definition of an op takes it.

    Args:
        m: The dim of the rows that scales of tokens belong to.
        x: The shape of x and of its scales in a message, with places for the last two dims.
        w: The shape of w and of its scales, likewise.
    """
    blocks = "-(-k // 128)"
    rows, columns, weight_rows = "{" + m + "}", "{" + blocks + "}", "{-(-n // 128)}"
    return (
        f"(m_blocks, k_blocks, w_rows, w_blocks) in ((1, 1, 1, 1), ({m} and 1, 1, 1, 1), ({m}, 1, n, 1), "
        f"({m}, {blocks}, -(-n // 128), {blocks}), ({m}, {blocks}, n, {blocks}))",
        f"the scales of x {x.format(rows, '{k}')} and of w {w.format('{n}', '{k}')} have the shapes {x.format(1, 1)} "
        f"and {w.format(1, 1)} for tensors, {x.format(rows, 1)} and {w.format('{n}', 1)} for tokens with channels, "
        f"{x.format(rows, columns)} and {w.format(weight_rows, columns)} for blocks of 1x128 with 128x128, or "
        f"{x.format(rows, columns)} and {w.format('{n}', columns)} for 1x128 with 1x128",
        blame(m),
    )


def blame(m: str) -> Blame:
    """Scales of x that are of no block, or else those of w, which have to go with them."""

    def wrong(dims: Mapping[str, Any]) -> tuple[str, str]:
        rows, n, k_blocks = dims[m], dims["n"], -(-dims["k"] // 128)
        of_x, of_w = (dims["m_blocks"], dims["k_blocks"]), (dims["w_rows"], dims["w_blocks"])
        by_w = {
            (1, 1): [(1, 1)],
            (n, 1): [(rows, 1)],
            (-(-n // 128), k_blocks): [(rows, k_blocks)],
            (n, k_blocks): [(rows, k_blocks)],
        }
        by_x = {
            (1, 1): [(1, 1)],
            (rows, 1): [(n, 1)],
            (rows, k_blocks): [(-(-n // 128), k_blocks), (n, k_blocks)],
        }
        if of_x in by_x:
            return "w_scale", _dims(by_x[of_x], "x_scale", of_x)
        if of_w in by_w:
            return "x_scale", _dims(by_w[of_w], "w_scale", of_w)
        return "x_scale", _dims([*by_x], None, of_w)

    return wrong


def _dims(shapes: list[tuple[int, int]], other: str | None, given: tuple[int, int]) -> str:
    """The last two dims of the scales that are expected, and of which others."""
    listed = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
    return f"last dims {listed}" + (f", beside {given} of `{other}`" if other else "")
