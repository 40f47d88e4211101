"""A workgroup's part of dense attention: where its queries, keys and values are, in memory, LDS and registers."""

from opmux_asm.kernels.numbers import HIGH_HALVES, LOW_HALVES, Constants
from opmux_asm.kernels.operands import Operands
from opmux_asm.kernels.rope import advance
from opmux_asm.kernels.rows import raw_buffer
from opmux_asm.kernels.softmax import Softmax, signed
from opmux_asm.writer import Argument, Kernel, Register

HEAD, KEYS, ROWS, SIDE = 128, 64, 128, 32
"""Dims of a head, keys of a tile, queries of a workgroup and of a wave."""
ROW_BYTES = 2 * HEAD
VALUES_AT = KEYS * ROW_BYTES
"""Where in LDS the values begin, after the keys."""
UNMASKED = 1 << 29
"""Added to a query's number where nothing is causal: past every key."""
RING = 6
"""Fragments of keys, or of values, that are read from LDS ahead."""
TENSORS = ("q", "k", "v")
ARGUMENTS = (
    *(Argument(name, "p") for name in (*TENSORS, "out", "lse")),
    *(Argument(f"{name}_batch", "q") for name in TENSORS),
    *(Argument(f"{name}_{dim}", "I") for name in TENSORS for dim in ("token", "head")),
    Argument("seq_q", "I"), Argument("seq_k", "I"), Argument("heads", "I"), Argument("kv_share", "f"),
    Argument("shift", "i"), Argument("tiles", "I"), Argument("scale", "f"), Argument("q_keep", "I"),
    Argument("q_sign", "I"),
)  # fmt: skip
"""Strides in bytes. ``kv_share`` is kv heads over heads. Query ``i`` sees keys up to ``i + shift``. ``tiles`` is how
many tiles of queries there are. ``scale`` is positive and includes log2(e). Queries are combined bit by bit: and
``q_keep``, xor ``q_sign``. ``lse`` may be null."""


class Places:
    """Buffers, addresses and registers of a workgroup of four waves."""

    given: dict[str, Register]
    """The arguments."""

    def __init__(self, name: str, arch: str, dtype: str) -> None:
        self.op = Operands(arch, dtype, dtype)
        self.dtype = dtype
        about = (
            f"Attention of {ROWS} {dtype} queries to tiles of {KEYS} keys, heads of {HEAD}.\n"
            "Grid: tiles of queries, the last one first; heads; batch."
        )
        self.k = Kernel(name, arch, 256, ARGUMENTS, about, dims=3)
        self.k.allocate_lds(2 * VALUES_AT)

    def begin(self) -> None:
        """Everything before the first load of keys."""
        k, given = self.k, self.given
        self.constants = Constants(k)
        self.constants.scalar("low_halves", LOW_HALVES)
        self.constants.scalar("high_halves", HIGH_HALVES)
        k.comment("The wave, its queries, and how far they see")
        self.wave, self.first, self.wave_first = k.s("wave"), k.s("first"), k.s("wave_first")
        with k.temporary("wave_of") as wave:
            k.v_lshrrev_b32(wave, 6, k.thread)
            k.v_readfirstlane_b32(self.wave, wave)
        k.s_sub_u32(self.first, given["tiles"], k.group[0])
        k.s_sub_u32(self.first, self.first, 1)
        k.s_lshl_b32(self.first, self.first, ROWS.bit_length() - 1)
        k.s_lshl_b32(self.wave_first, self.wave, SIDE.bit_length() - 1)
        self.place_lane()
        last_key = k.s("last_key")
        k.s_sub_u32(last_key, given["seq_k"], 1)
        self.wave_sees, self.sees = k.s("wave_sees"), k.v("sees")
        k.s_add_i32(self.wave_sees, self.first, self.wave_first)
        k.s_add_i32(self.wave_sees, self.wave_sees, given["shift"])
        k.v_add_u32(self.sees, self.wave_sees, self.lane)
        k.v_min_i32(self.sees, last_key, self.sees)
        k.s_min_i32(self.wave_sees, self.wave_sees, last_key)
        with k.temporary("four") as four:
            k.v_lshlrev_b32(four, 2, self.upper)
            k.v_sub_u32(self.sees, self.sees, four)
        self._count_tiles(last_key)
        self._kv_head()
        self._queries()
        self._keys()
        self._values()
        k.free(last_key, self.lane, self.upper, self.row)
        k.comment("Nothing is summed yet")
        self.softmax = Softmax(k, self.dtype, given["scale"], self.constants)
        self.other_half = k.v("other_half")
        k.v_and_b32(self.other_half, 63, k.thread)
        k.v_xor_b32(self.other_half, 32, self.other_half)
        k.v_lshlrev_b32(self.other_half, 2, self.other_half)
        self.sums = k.v("sums", HEAD // 2)
        for one in self.sums:
            k.v_mov_b32(one, 0)
        self.ring = [k.v(f"fragment{i}", 4) for i in range(RING)]
        self.scores = [k.v(f"scores{i}", KEYS // 2) for i in range(2)]

    def place_lane(self) -> None:
        """Of a lane its query, its number in half a wave, and which half that is; not kept throughout the loop."""
        k = self.k
        self.lane, self.upper, self.row = k.v("lane"), k.v("upper"), k.v("row")
        k.v_and_b32(self.lane, SIDE - 1, k.thread)
        k.v_bfe_u32(self.upper, k.thread, 5, 1)
        k.v_add_u32(self.row, self.wave_first, self.lane)

    def _count_tiles(self, last_key: Register) -> None:
        """Pairs of tiles up to the last key that any query of the workgroup sees, at least one."""
        k = self.k
        self.pairs_of_tiles, self.key = k.s("pairs_of_tiles"), k.s("key")
        k.s_add_i32(self.pairs_of_tiles, self.first, self.given["shift"])
        k.s_add_i32(self.pairs_of_tiles, self.pairs_of_tiles, ROWS - 1)
        k.s_min_i32(self.pairs_of_tiles, self.pairs_of_tiles, last_key)
        k.s_max_i32(self.pairs_of_tiles, self.pairs_of_tiles, 0)
        k.s_lshr_b32(self.pairs_of_tiles, self.pairs_of_tiles, (2 * KEYS).bit_length() - 1)
        k.s_add_u32(self.pairs_of_tiles, self.pairs_of_tiles, 1)
        k.s_mov_b32(self.key, 0)

    def _kv_head(self) -> None:
        """The kv head of this head."""
        k = self.k
        self.kv_head = k.s("kv_head")
        with k.temporary("head") as head:
            k.v_cvt_f32_u32(head, k.group[1])
            k.v_add_f32(head, 0.5, head)
            k.v_mul_f32(head, self.given["kv_share"], head)
            k.v_cvt_u32_f32(head, head)
            k.v_readfirstlane_b32(self.kv_head, head)

    def _head_of(self, name: str, head: Register) -> Register:
        """The address of a head's first token."""
        k, given = self.k, self.given
        place, batch, stride = k.s(f"{name}_place", 2), k.group[2], given[f"{name}_batch"]
        with k.temporary("batch_place", 2, "s") as start, k.temporary("high", 1, "s") as high:
            k.s_mul_i32(high, batch, stride[1])
            k.s_mul_hi_u32(start[1], batch, stride[0])
            k.s_add_u32(start[1], start[1], high)
            k.s_mul_i32(start[0], batch, stride[0])
            k.s_add_u32(start[0], start[0], given[name][0])
            k.s_addc_u32(start[1], start[1], given[name][1])
            advance(k, place, start, head, given[f"{name}_head"])
        return place

    def rows_of(self, name: str, place: Register, stride: Register, row_bytes: Register | int) -> Register:
        """A buffer of this workgroup's rows of queries or results."""
        k, rows = self.k, self.k.s(f"{name}_rows", 4)
        advance(k, rows, place, self.first, stride)
        k.s_sub_u32(rows[2], self.given["seq_q"], self.first)
        k.s_min_u32(rows[2], rows[2], ROWS)
        k.s_sub_u32(rows[2], rows[2], 1)
        k.s_mul_i32(rows[2], rows[2], stride)
        k.s_add_u32(rows[2], rows[2], row_bytes)
        raw_buffer(k, rows)
        return rows

    def _queries(self) -> None:
        """The fragments of this wave's queries."""
        k, given = self.k, self.given
        k.comment("The queries")
        place = self._head_of("q", k.group[1])
        rows = self.rows_of("q", place, given["q_token"], ROW_BYTES)
        self.queries = k.v("queries", 32)
        with k.temporary("q_at") as at:
            k.v_mul_lo_u32(at, self.row, given["q_token"])
            k.v_lshl_add_u32(at, self.upper, 4, at)
            for i in range(8):
                k.emit_buffer("load", self.queries[4 * i : 4 * i + 4], at, rows, 32 * i)
            k.wait_for(self.queries)
        signed(k, self.queries, given["q_keep"], given["q_sign"])
        k.free(rows, place)

    def _tiles_of(self, name: str) -> None:
        """A buffer of a tile's rows, and what changes from one tile to the next; it begins before the first one."""
        k = self.k
        place = self._head_of(name, self.kv_head)
        rows, left, step = k.s(f"{name}_rows", 4), k.s(f"{name}_left"), k.s(f"{name}_step")
        k.s_lshl_b32(step, self.given[f"{name}_token"], KEYS.bit_length() - 1)
        k.s_sub_u32(rows[0], place[0], step)
        k.s_subb_u32(rows[1], place[1], 0)
        raw_buffer(k, rows)
        k.s_add_i32(left, self.given["seq_k"], KEYS)
        k.free(place)
        self.tiles[name] = rows, left, step

    tiles: dict[str, tuple[Register, Register, Register]]
    """For keys and values: the buffer of a tile's rows, how many rows are left, bytes from a tile to the next."""

    def _keys(self) -> None:
        """A thread loads a chunk of every 16th key; a row's chunks are swizzled by its number."""
        k, given = self.k, self.given
        k.comment("Keys: places in memory, and in LDS to write and to read")
        self.tiles = {}
        self._tiles_of("k")
        self.key_at, self.write_key = k.v("key_at"), k.v("write_key")
        self.key_steps = [k.s(f"k_step{i}") for i in range(1, 4)]
        k.s_lshl_b32(self.key_steps[0], given["k_token"], 4)
        k.s_lshl_b32(self.key_steps[1], given["k_token"], 5)
        k.s_add_u32(self.key_steps[2], self.key_steps[0], self.key_steps[1])
        with k.temporary("chunk") as chunk, k.temporary("key_row") as row:
            k.v_and_b32(chunk, 15, k.thread)
            k.v_lshrrev_b32(row, 4, k.thread)
            k.v_mul_lo_u32(self.key_at, row, given["k_token"])
            k.v_lshl_add_u32(self.key_at, chunk, 4, self.key_at)
            k.v_xor_b32(chunk, row, chunk)
            k.v_lshlrev_b32(chunk, 4, chunk)
            k.v_lshl_add_u32(self.write_key, row, 8, chunk)
        self.read_key = k.v("read_key", 8)
        with k.temporary("chunk") as chunk:
            for i, one in enumerate(self.read_key):
                k.v_add_u32(chunk, 2 * i, self.upper)
                k.v_xor_b32(chunk, self.lane, chunk)
                k.v_and_b32(chunk, 15, chunk)
                k.v_lshlrev_b32(chunk, 4, chunk)
                k.v_lshl_add_u32(one, self.lane, 8, chunk)
        self.staged_keys = k.v("staged_keys", 16)

    def _values(self) -> None:
        """A thread loads eight dims of four keys, and writes four keys of eight dims.

        In LDS a row is a dim, of which a chunk has the keys ``16 * i + 4 * upper`` to 3 further, and those 8 further:
        what a lane gives to matrix instructions. Chunks are swizzled so that neither the lanes that write nor those
        that read meet a bank twice.
        """
        k, given = self.k, self.given
        k.comment("Values: places in memory, and in LDS to write and to read")
        self._tiles_of("v")
        self.value_at, self.write_value = k.v("value_at"), k.v("write_value")
        self.value_steps = [k.s(f"v_step{i}") for i in range(1, 4)]
        k.s_mov_b32(self.value_steps[0], given["v_token"])
        k.s_lshl_b32(self.value_steps[1], given["v_token"], 1)
        k.s_add_u32(self.value_steps[2], self.value_steps[0], self.value_steps[1])
        with k.temporary("dims") as dims, k.temporary("group") as group, k.temporary("chunk") as chunk:
            # bits of a thread's number: dims 0-2, upper four keys of eight, dims 3, half, group
            k.v_bfe_u32(dims, k.thread, 4, 1)
            k.v_lshlrev_b32(dims, 3, dims)
            k.v_and_b32(chunk, 7, k.thread)
            k.v_or_b32(dims, chunk, dims)
            k.v_bfe_u32(group, k.thread, 3, 1)
            k.v_lshlrev_b32(self.write_value, 3, group)
            k.v_lshl_add_u32(group, group, 1, self.upper)  # 4 * group is the first key, without the wave
            k.v_lshlrev_b32(group, 2, group)
            with k.temporary("wave_keys", 1, "s") as keys:
                k.s_lshl_b32(keys, self.wave, 4)
                k.v_add_u32(group, keys, group)
            k.v_mul_lo_u32(self.value_at, group, given["v_token"])
            k.v_lshl_add_u32(self.value_at, dims, 4, self.value_at)
            if k.arch != "gfx942":
                k.v_and_b32(group, 1, dims)
                k.v_lshlrev_b32(group, 2, group)
                k.v_xor_b32(chunk, group, chunk)
            with k.temporary("wave_chunk", 1, "s") as first:
                k.s_lshl_b32(first, self.wave, 1)
                k.v_add_u32(group, first, self.upper)
            k.v_xor_b32(chunk, group, chunk)
            k.v_lshl_add_u32(self.write_value, chunk, 4, self.write_value)
            k.v_lshl_add_u32(self.write_value, dims, 10, self.write_value)
        self.read_value = k.v("read_value", 4)
        with k.temporary("chunk") as chunk, k.temporary("turn") as turn:
            k.v_lshrrev_b32(turn, 3, self.lane)
            k.v_lshrrev_b32(chunk, 0 if k.arch == "gfx942" else 1, self.lane)
            k.v_xor_b32(turn, chunk, turn)
            k.v_and_b32(turn, 7, turn)
            for i, one in enumerate(self.read_value):
                k.v_add_u32(chunk, 2 * i, self.upper)
                k.v_xor_b32(chunk, turn, chunk)
                k.v_lshlrev_b32(chunk, 4, chunk)
                k.v_lshl_add_u32(one, self.lane, 7, chunk)
        self.staged_values = k.v("staged_values", 16)
