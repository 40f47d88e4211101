"""Launch parameters of the norms, per arch. Loads no Triton."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from opmux.plugin import Arch
from opmux_triton.archs import lanes_of_rows, shared_memory
from opmux_triton.arithmetic import next_power_of_two
from opmux_triton.config_checks import require_at_least, require_powers_of_two

_LARGEST_BLOCK = 32768
"""Columns that one program holds in registers; longer rows are read twice."""
_FEW_ROWS = 7
"""The bucket of at most 128 rows: a program then has a multiprocessor to itself."""
_MUCH = 24
"""Log2 of the number of elements that, with as many results, no longer fit into the caches."""
_HELD = 8192
"""Columns that a program of the backward holds of x, its gradient, the weight and the weight's gradient."""
_LARGEST_BACKWARD = 16384
"""Columns for which it holds only the gradients of weight and bias."""


@dataclass(frozen=True)
class RowsConfig:
    """Launch parameters of a norm.

    Attributes:
        block: columns that a program holds at a time; longer rows are read twice.
        rows: rows of a program.
        num_warps: warps of a program.
    """

    block: int
    rows: int
    num_warps: int

    def __post_init__(self) -> None:
        require_powers_of_two(self, "block", "rows", "num_warps")


@dataclass(frozen=True)
class BackwardConfig:
    """Launch parameters of a norm's gradients: a persistent grid over the rows, then a sum of what its programs leave.

    Attributes:
        block: columns of the first tile of a row.
        tail: columns of the second tile, 0 for none: together they hold rows of a length between two powers of two.
        rows: rows that a program computes at a time.
        stages: rows in flight to shared memory, the current one included.
        again: what is read a second time instead of being held: nothing, the weight, or the whole row.
        num_warps: warps of a program.
        programs: programs for each multiprocessor.
        sum_columns, sum_rows, sum_warps: tile and warps of the sum over the programs.
        wide: the parameters where a tensor has more than 16 bits; None if they are the same.
    """

    block: int
    tail: int
    rows: int
    stages: int
    again: Literal["", "weight", "all"]
    num_warps: int
    programs: int
    sum_columns: int
    sum_rows: int
    sum_warps: int
    wide: "BackwardConfig | None" = None

    def __post_init__(self) -> None:
        require_powers_of_two(self, "block", "rows", "num_warps", "sum_columns", "sum_rows", "sum_warps")
        require_at_least(1, self, "stages", "programs")
        if self.tail:
            require_powers_of_two(self, "tail")
        if self.tail and self.again == "all":
            raise ValueError(f"tail expected 0 where again is 'all', got {self.tail}")


def rms_config(arch: Arch, features: Mapping[str, Any]) -> RowsConfig:
    """For large inputs, read long rows twice: without holding them, a multiprocessor has room for more programs."""
    hidden = max(1, features["hidden"])
    if _read_twice(arch, features):
        # Four columns per thread; 1024 threads would wait too long for one another.
        block = 1024 if hidden < 8192 else 2048
        return RowsConfig(block=block, rows=1, num_warps=block // 128)
    return _rows(arch, features, 16)


def centred_config(arch: Arch, features: Mapping[str, Any]) -> RowsConfig:
    """For two sums in a row: fewer warps wait less for one another. Rows that are read twice have one sum."""
    hidden = max(1, features["hidden"])
    if _read_twice(arch, features):
        # More columns per thread than in `rms_config`: fewer warps wait for one another when the means are joined. On
        # an H200 at 256 MB: 131 us instead of 137 in rows of 4096, 134 of 145 in 8192, 138 of 219, and 154 of 227.
        return RowsConfig(block=min(4096, hidden // 2), rows=1, num_warps=min(16, hidden // 1024))
    return _rows(arch, features, 32 if arch.vendor == "nvidia" else 16)


def _read_twice(arch: Arch, features: Mapping[str, Any]) -> bool:
    """Whether reading rows twice pays off. Rows that leave part of a block empty are as fast when held."""
    hidden = max(1, features["hidden"])
    much = features["bucket(tokens)"] - 1 + (hidden - 1).bit_length() >= _MUCH
    return arch.vendor == "nvidia" and much and hidden >= 4096 and hidden == next_power_of_two(hidden)


def added_config(arch: Arch, features: Mapping[str, Any]) -> RowsConfig:
    """For norms with a residual added first."""
    return _rows(arch, features, 16)


def _rows(arch: Arch, features: Mapping[str, Any], whole: int) -> RowsConfig:
    """Several short rows in one program; for long rows ``whole`` columns per thread, fewer where there are few rows."""
    hidden = max(1, features["hidden"])
    block = min(_LARGEST_BLOCK, max(64, next_power_of_two(hidden)))
    if block <= 512:
        return RowsConfig(block=block, rows=1024 // block, num_warps=1)
    # Where part of the block is empty, more columns per thread.
    each = 8 if features["bucket(tokens)"] <= _FEW_ROWS else 16 if block <= 2048 else whole if block == hidden else 32
    lanes = lanes_of_rows(arch)
    warps = max(1, min(1024 // lanes, block // (lanes * each)))
    return RowsConfig(block=block, rows=1, num_warps=warps)


def backward_config(arch: Arch, features: Mapping[str, Any]) -> BackwardConfig:
    """A persistent grid; two rows are prefetched to shared memory where there is enough of it."""
    return _with_long(arch, max(1, features["hidden"]), centred=False)


def centred_backward_config(arch: Arch, features: Mapping[str, Any]) -> BackwardConfig:
    """The same for rows with two sums, one after the other."""
    return _with_long(arch, max(1, features["hidden"]), centred=True)


def _with_long(arch: Arch, hidden: int, centred: bool) -> BackwardConfig:
    """Long rows of 16-bit tensors have their own config: a prefetched row fits into shared memory."""
    config = _backward(arch, hidden, centred)
    if not (
        _HELD < hidden <= _LARGEST_BACKWARD and arch.vendor == "nvidia" and shared_memory(arch.name) >= _LONG_SHARED
    ):
        return config
    return replace(config, **_LONG[centred, hidden <= _HELD + _HELD // 2], wide=config)


def _backward(arch: Arch, hidden: int, centred: bool) -> BackwardConfig:
    block, tail = _parts(hidden)
    # On NVIDIA a few spilled registers cost far less than passes over partial sums in memory.
    if hidden > (_HELD if centred and arch.vendor == "amd" else _LARGEST_BACKWARD):
        block, tail = _HELD, 0
    lanes = lanes_of_rows(arch)
    rows = max(1, min(16 if lanes == 32 else 8, 1024 // block))
    width = rows * (block + tail)
    if block > _HELD:
        warps, programs, stages = 512 // lanes, 1, 1
    elif arch.vendor == "nvidia" and 3 * _FLOAT * 2 * width <= shared_memory(arch.name):
        # At most 40 columns per thread: with eight warps, each thread has 255 registers.
        warps = 2 if width <= 2048 else 4 if width <= 5120 else 8
        # A second program on the multiprocessor pays off, even where float32 leaves no shared memory for it.
        programs = max(1, min(8 // warps, shared_memory(arch.name) // (4 * _FLOAT * width)))
        stages = 3
    else:
        warps = max(1, min(512 // lanes, rows * block // (lanes * 16)))
        programs, stages = max(1, 512 // (warps * lanes)), 1
    return BackwardConfig(
        block=block,
        tail=tail,
        rows=rows,
        stages=stages,
        again="all" if block > _HELD else "",
        num_warps=warps,
        programs=programs,
        sum_columns=32,
        sum_rows=32,
        sum_warps=4,
    )


_LONG: dict[tuple[bool, bool], dict[str, Any]] = {
    (False, True): {"block": 8192, "tail": 4096, "stages": 3, "again": "", "num_warps": 8},
    (False, False): {"stages": 2, "again": "weight"},
    (True, True): {"block": 8192, "tail": 4096, "stages": 3, "again": "weight", "num_warps": 16},
    (True, False): {},
}
"""What fits into registers for rows of more than 8192 columns, by whether they are centred and have up to 12288."""
_LONG_SHARED = 160 * 1024
"""Bytes of shared memory that they take with a residual's gradient."""
_LEAST_TAIL = 1024
"""Columns of a second tile: as many as four warps read at a time, so that it takes no reductions of its own."""
_FLOAT = 4
"""Bytes; a plan serves all dtypes, so what is kept in shared memory is counted in float32."""


def _parts(hidden: int) -> tuple[int, int]:
    """Two powers of two that hold ``hidden`` columns; the second is 0 where one is as good."""
    block = max(64, next_power_of_two(hidden))
    half, rest = block // 2, max(_LEAST_TAIL, next_power_of_two(hidden - block // 2)) if hidden > block // 2 else 0
    return (half, rest) if 4096 <= block <= _HELD and half + rest < block else (block, 0)
