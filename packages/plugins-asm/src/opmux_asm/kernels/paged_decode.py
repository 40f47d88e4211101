"""`paged_attention` of few new tokens a sequence: a workgroup has the queries of a token that share a kv head.

Each of its four waves takes every fourth block of 16 keys, for all queries at once: the keys are the rows of a matrix
instruction, the queries, up to 16, its columns. The lanes then hold scores in the order in which the second product
takes shares, and each lane loads eight dims of the values of four keys: tile ``j`` of the result is made of the dims
``8 * row + j``.
"""

from opmux_asm.kernels.numbers import LOW_HALVES, Constants
from opmux_asm.kernels.paged_blocks import Blocks
from opmux_asm.kernels.paged_results import HEAD, LDS_BYTES, WAVES
from opmux_asm.kernels.rope import advance
from opmux_asm.kernels.rows import raw_buffer
from opmux_asm.kernels.softmax import Softmax, signed
from opmux_asm.writer import Argument, Kernel, Register

FAMILY = "paged_attention"
QUERIES = ("bf16", "f16")
CACHES = ("", "fp8")
"""What caches hold: the dtype of the queries, or e4m3 in the arch's flavour."""
MOST_GROUP = 16
"""The most queries that share a kv head."""
ARGUMENTS = (
    Argument("q", "p"), Argument("k_cache", "p"), Argument("v_cache", "p"), Argument("out", "p"), Argument("lse", "p"),
    Argument("starts", "p"), Argument("lengths", "p"), Argument("table", "p"), Argument("k_scale", "p"),
    Argument("v_scale", "p"), Argument("q_token", "I"), Argument("q_head", "I"), Argument("k_page", "I"),
    Argument("k_token", "I"), Argument("k_head", "I"), Argument("v_page", "I"), Argument("v_token", "I"),
    Argument("v_head", "I"), Argument("table_row", "I"), Argument("k_scale_step", "I"),
    Argument("v_scale_step", "I"), Argument("page_shift", "I"),
    Argument("tokens", "I"), Argument("heads", "I"), Argument("group_size", "I"), Argument("scale", "f"),
    Argument("causal", "I"),     Argument("q_keep", "I"), Argument("q_sign", "I"),
)  # fmt: skip
"""Strides in bytes. A page has 2**page_shift tokens. ``scale`` is positive and includes log2(e). Queries are combined
bit by bit: and ``q_keep``, xor ``q_sign``. ``lse`` and the scales of the caches may be
null. A step of scales is the bytes between those of neighbouring kv heads: 0 where all have one."""


def name_of(dtype: str, cache: str) -> str:
    """A kernel's name."""
    return f"{FAMILY}_{dtype}{'_' + cache if cache else ''}"


def kernels(arch: str) -> list[Kernel]:
    """Every kernel of the family."""
    return [Decode(arch, dtype, cache).write() for dtype in QUERIES for cache in CACHES]


class Decode(Blocks):
    """Writes one kernel."""

    def __init__(self, arch: str, dtype: str, cache: str) -> None:
        self.dtype, self.cache = dtype, cache
        about = (
            f"Attention of a {dtype} query of a sequence to a paged cache of {cache or dtype}, heads of {HEAD}.\n"
            "Grid: sequences, kv heads, new tokens of the longest sequence."
        )
        self.k = Kernel(name_of(dtype, cache), arch, 64 * WAVES, ARGUMENTS, about, dims=3)
        self.k.allocate_lds(LDS_BYTES)
        self.element = 1 if cache else 2
        self.multiply = f"v_mfma_f32_16x16x16_{dtype}"

    def write(self) -> Kernel:
        """The kernel."""
        k = self.k
        self.given, self.constants = k.load_arguments(), Constants(k)
        self.batch, self.kv_head = k.group[0], k.group[1]
        done = k.label("done")
        self._sequence(done)
        self._lanes()
        self._heads()
        queries = self._queries()
        k.comment("Nothing is summed yet")
        self.softmax = Softmax(k, self.dtype, self.given["scale"], self.constants)
        if self.cache:
            for one in self.softmax.factor:
                k.v_mul_f32(one, self.scales["k"], one)
        else:
            self.constants.scalar("low_halves", LOW_HALVES)
        self.sums = k.v("sums", 32)
        for one in self.sums:
            k.v_mov_b32(one, 0)
        self.run(queries)
        k.free(queries, self.keys, self.values)
        self.finish()
        k.place(done)
        return k

    def _sequence(self, done: str) -> None:
        """Its token, how many keys that sees, and its row of the table; without a token there is nothing to do."""
        k, given = self.k, self.given
        k.comment("The sequence")
        four, place, self.row = k.s("four"), k.s("place", 2), k.s("table_of", 2)
        self.token, self.length, after = k.s("token"), k.s("length"), k.s("after")
        k.s_mov_b32(four, 4)
        advance(k, place, given["starts"], self.batch, four)
        k.s_load_dword(self.token, place, 0)
        k.s_load_dword(after, place, 4)
        advance(k, self.row, given["lengths"], self.batch, four)
        k.s_load_dword(self.length, self.row, 0)
        k.wait(lgkm=0)
        k.s_add_u32(self.token, self.token, k.group[2])
        k.s_cmp_ge_u32(self.token, after)
        k.s_cbranch_scc1(done)
        k.s_sub_u32(after, after, self.token)
        k.s_sub_u32(after, after, 1)
        k.s_mul_i32(after, after, given["causal"])
        k.s_sub_u32(self.length, self.length, after)
        advance(k, self.row, given["table"], self.batch, given["table_row"])
        k.free(place, after, four)

    def _lanes(self) -> None:
        """Which query a lane has, and which four keys of a block."""
        k = self.k
        k.comment("The lane's query and its part of the keys; the wave")
        self.query, self.part, self.wave = k.v("query"), k.v("part"), k.s("wave")
        k.v_and_b32(self.query, 15, k.thread)
        k.v_bfe_u32(self.part, k.thread, 4, 2)
        self.others = [k.v(f"lane_{apart}_further") for apart in (16, 32)]
        with k.temporary("wave_of") as wave:
            k.v_lshrrev_b32(wave, 6, k.thread)
            k.v_readfirstlane_b32(self.wave, wave)
        for apart, lanes in zip((16, 32), self.others, strict=True):
            k.v_and_b32(lanes, 63, k.thread)
            k.v_xor_b32(lanes, apart, lanes)
            k.v_lshlrev_b32(lanes, 2, lanes)

    def _heads(self) -> None:
        """Both caches from this kv head on, and the scales."""
        k, given = self.k, self.given
        k.comment("The caches of this kv head, and their scales")
        self.caches = {name: k.s(f"{name}_heads", 2) for name in ("k", "v")}
        for name, cache in self.caches.items():
            advance(k, cache, given[f"{name}_cache"], self.kv_head, given[f"{name}_head"])
        if not self.cache:
            return
        self.scales = {name: k.s(f"{name}_scale_of_head") for name in ("k", "v")}
        for name, scale in self.scales.items():
            pointer = given[f"{name}_scale"]
            k.s_mov_b32(scale, 1.0)
            k.s_cmp_eq_u64(pointer, 0)
            with k.skipped_if("scc1"), k.temporary("scale_place", 2, "s") as place:
                advance(k, place, pointer, self.kv_head, given[f"{name}_scale_step"])
                k.s_load_dword(scale, place, 0)
                k.wait(lgkm=0)

    def _queries(self) -> Register:
        """The queries, in the order in which lanes load keys: those past the last of the group are 0."""
        k, given = self.k, self.given
        k.comment("The queries")
        rows, first, at = k.s("q_rows", 4), k.s("first_head"), k.v("q_at")
        k.s_mul_i32(first, self.kv_head, given["group_size"])
        with k.temporary("q_token_place", 2, "s") as place:
            advance(k, place, given["q"], self.token, given["q_token"])
            advance(k, rows, place, first, given["q_head"])
        k.s_sub_u32(rows[2], given["group_size"], 1)
        k.s_mul_i32(rows[2], rows[2], given["q_head"])
        k.s_add_u32(rows[2], rows[2], 2 * HEAD)
        raw_buffer(k, rows)
        chunk = 16 // self.element  # elements of a chunk of keys
        queries = k.v("queries", 16)
        k.v_mul_lo_u32(at, self.query, given["q_head"])
        k.v_lshl_add_u32(at, self.part, (2 * chunk).bit_length() - 1, at)
        for i in range(4):
            step, within = divmod(i, chunk // 8)
            k.emit_buffer("load", queries[4 * i : 4 * i + 4], at, rows, 8 * chunk * step + 16 * within)
        k.wait_for(queries)
        signed(k, queries, given["q_keep"], given["q_sign"])
        self.first_head = first
        k.free(rows, at)
        return queries
