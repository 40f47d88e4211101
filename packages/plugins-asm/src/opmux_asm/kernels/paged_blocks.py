"""The loop of paged attention: scores, shares and values of a block of keys while the next one is on its way.

Neighbouring lanes load neighbouring bytes. Values are put in order by permutes; keys, of which matrix instructions want
a lane to have a row, go through LDS, where each wave has a block of its own and no barrier is needed.
"""

from contextlib import nullcontext

from opmux_asm.kernels.numbers import HIGH_HALVES, LOW_HALVES
from opmux_asm.kernels.paged_results import HEAD, WAVES, Results
from opmux_asm.kernels.rope import advance
from opmux_asm.kernels.rows import RAW_BUFFER
from opmux_asm.kernels.softmax import MINUS_INFINITY, pairs
from opmux_asm.writer import VCC, Register

BLOCK = 16
"""Keys of a block."""


class Blocks(Results):
    """The blocks of a wave.

    Attributes:
        length: how many keys the token sees.
        row: the address of the sequence's pages.
        caches: by cache, the address of this kv head in the first page.
        element: bytes of an element of the caches.
        multiply: the matrix instruction.
    """

    length: Register
    row: Register
    caches: dict[str, Register]
    element: int
    multiply: str

    def run(self, queries: Register) -> None:
        """All blocks of this wave; every wave has equally many, of which the last may lie past the end."""
        k = self.k
        row_bytes = HEAD * self.element
        self.steps, self.at, self.page = k.s("steps"), k.s("first_key"), k.s("page")
        self.last_block = k.s("last_block")
        k.s_add_u32(self.steps, self.length, BLOCK * WAVES - 1)
        k.s_lshr_b32(self.steps, self.steps, (BLOCK * WAVES).bit_length() - 1)
        k.s_max_u32(self.steps, self.steps, 1)
        k.s_sub_u32(self.last_block, self.length, 1)
        k.s_max_i32(self.last_block, self.last_block, 0)
        k.s_lshl_b32(self.at, self.wave, BLOCK.bit_length() - 1)
        self.rows = {name: k.s(f"{name}_rows", 4) for name in ("k", "v")}
        for rows in self.rows.values():
            k.s_mov_b32(rows[3], RAW_BUFFER)
        self._key_places()
        self.value_at = k.v("value_at", 4)
        with k.temporary("key") as key:
            for i, one in enumerate(self.value_at):
                k.v_lshl_add_u32(key, self.part, 2, i)
                k.v_mul_lo_u32(one, key, self.given["v_token"])
                k.v_lshl_add_u32(one, self.query, (row_bytes // 16).bit_length() - 1, one)
        self.keys, self.values = k.v("keys", row_bytes // 16), k.v("values", row_bytes // 16)
        scores = k.v("scores", 4)
        k.comment("Before the loop: the first block, and the page of the second")
        self._next_page()
        self._next_rows()
        self._load_keys()
        self._load_values()
        with k.loop("blocks", self.steps):
            self._block(queries, scores)
        k.wait(vm=0, lgkm=0)
        k.free(scores, self.key_at, self.write_key, self.read_key, self.value_at)

    def _key_places(self) -> None:
        """Where a lane loads chunks of keys, where in LDS it writes them, and where it reads those of its row."""
        k, row_bytes = self.k, HEAD * self.element
        chunks = row_bytes // 16
        bits, at_once = chunks.bit_length() - 1, 64 // chunks
        turned = 0 if chunks == 16 or k.arch == "gfx942" else 1  # two rows of 128 bytes fill the 64 banks of gfx950
        self.key_at, self.write_key = k.v("key_at", BLOCK // at_once), k.v("write_key", BLOCK // at_once)
        self.read_key = k.v("read_key", chunks // 4)
        with k.temporary("chunk") as chunk, k.temporary("key") as key, k.temporary("swizzle") as swizzle:
            k.v_and_b32(chunk, chunks - 1, k.thread)
            for i, (at, write) in enumerate(zip(self.key_at, self.write_key, strict=True)):
                k.v_bfe_u32(key, k.thread, bits, 6 - bits)
                if i:
                    k.v_add_u32(key, at_once * i, key)
                k.v_mul_lo_u32(at, key, self.given["k_token"])
                k.v_lshl_add_u32(at, chunk, 4, at)
                self._place_chunk(write, key, chunk, swizzle, turned, bits)
            for i, read in enumerate(self.read_key):
                k.v_add_u32(chunk, 4 * i, self.part)
                self._place_chunk(read, self.query, chunk, swizzle, turned, bits)

    def _place_chunk(
        self, out: Register, row: Register, chunk: Register, swizzle: Register, turned: int, bits: int
    ) -> None:
        """The address in LDS of a row's chunk, which is swizzled by the row's number; of this wave's block."""
        k = self.k
        k.v_bfe_u32(swizzle, row, turned, bits)
        k.v_xor_b32(swizzle, chunk, swizzle)
        k.v_lshlrev_b32(swizzle, 4, swizzle)
        k.v_lshl_add_u32(out, row, bits + 4, swizzle)
        with k.temporary("own_block", 1, "s") as own:
            k.s_mul_i32(own, self.wave, BLOCK << bits + 4)
            k.v_add_u32(out, own, out)

    def _next_page(self) -> None:
        """Begin to load the page of the block ``at``; past the end, that of the last."""
        k = self.k
        with k.temporary("entry", 1, "s") as entry, k.temporary("entry_place", 2, "s") as place:
            k.s_min_u32(entry, self.at, self.last_block)
            k.s_lshr_b32(entry, entry, self.given["page_shift"])
            k.s_lshl_b32(entry, entry, 2)
            k.s_add_u32(place[0], self.row[0], entry)
            k.s_addc_u32(place[1], self.row[1], 0)
            k.s_load_dword(self.page, place, 0)

    def _next_rows(self) -> None:
        """The block's rows in both caches, of which those past the end read as 0; then go on to the next block."""
        k, given = self.k, self.given
        k.wait(lgkm=0)
        with k.temporary("left", 1, "s") as left, k.temporary("inside", 1, "s") as inside:
            k.s_sub_i32(left, self.length, self.at)
            k.s_min_i32(left, left, BLOCK)
            k.s_lshr_b32(inside, self.at, given["page_shift"])
            k.s_lshl_b32(inside, inside, given["page_shift"])
            k.s_sub_u32(inside, self.at, inside)
            for name, rows in self.rows.items():
                advance(k, rows, self.caches[name], self.page, given[f"{name}_page"])
                with k.temporary("offset", 1, "s") as offset:
                    k.s_mul_i32(offset, inside, given[f"{name}_token"])
                    k.s_add_u32(rows[0], rows[0], offset)
                    k.s_addc_u32(rows[1], rows[1], 0)
                k.s_and_b32(rows[1], rows[1], 0xFFFF)
                k.s_sub_i32(rows[2], left, 1)
                k.s_mul_i32(rows[2], rows[2], given[f"{name}_token"])
                k.s_add_u32(rows[2], rows[2], HEAD * self.element)
                k.s_cmp_gt_i32(left, 0)
                k.s_cselect_b32(rows[2], rows[2], 0)
        k.s_add_u32(self.at, self.at, BLOCK * WAVES)
        self._next_page()

    def _load_keys(self) -> None:
        for i, at in enumerate(self.key_at):
            self.k.emit_buffer("load", self.keys[4 * i : 4 * i + 4], at, self.rows["k"])

    def _load_values(self) -> None:
        size = len(self.values) // 4
        for i, at in enumerate(self.value_at):
            self.k.emit_buffer("load", self.values[size * i : size * (i + 1)], at, self.rows["v"])

    def _block(self, queries: Register, scores: Register) -> None:
        """Scores, shares and values of a block, while the next one is on its way."""
        k = self.k
        k.comment("Scores")
        with k.temporary("left_of_block", 1, "s") as left:
            k.s_sub_i32(left, self.length, self.at)
            k.s_add_i32(left, left, BLOCK * WAVES)  # the block's first key is one turn behind
            k.wait_for(self.keys)
            for i, at in enumerate(self.write_key):
                k.ds_write_b128(at, self.keys[4 * i : 4 * i + 4])
            read = k.v("own_keys", len(self.keys))
            for i, at in enumerate(self.read_key):
                k.emit_read(read[4 * i : 4 * i + 4], at, 0)
            k.wait(lgkm=0)
            self._next_rows()
            self._load_keys()
            addend: Register | int = 0
            with k.temporary("pieces", 16) if self.cache else nullcontext(read) as pieces:
                if self.cache:
                    for i, word in enumerate(read):
                        self._decode(word, pieces[2 * i : 2 * i + 2])
                for i in range(0, 16, 2):
                    getattr(k, self.multiply)(scores, pieces[i : i + 2], queries[i : i + 2], addend)
                    addend = scores
            k.free(read)
            k.comment("Without those past the end")
            with k.temporary("first_of_part") as first, k.temporary("weightless") as weightless:
                k.v_mov_b32(weightless, MINUS_INFINITY)
                k.v_lshlrev_b32(first, 2, self.part)
                k.v_sub_u32(first, left, first)
                for i, score in enumerate(scores):
                    k.v_cmp_lt_i32(VCC, i, first)
                    k.v_cndmask_b32(score, weightless, score, VCC)
        k.comment("Shares")
        for step in self.softmax.largest(list(scores)):
            step()
        self.softmax.follow(self.sums, self.others)
        with k.temporary("shares", 2) as shares:
            for step in self.softmax.shares(scores, shares):
                step()
            k.comment("Values")
            k.wait_for(self.values)
            with k.temporary("columns", 16) as columns:
                self._columns(columns)
                self._load_values()
                for tile in range(8):
                    total = self.sums[4 * tile : 4 * tile + 4]
                    getattr(k, self.multiply)(total, columns[2 * tile : 2 * tile + 2], shares, total)

    def _decode(self, word: Register, out: Register) -> None:
        """Four codes as 16-bit numbers, which hold them exactly."""
        k = self.k
        with k.temporary("decoded", 4) as decoded:
            self._to_float(word, decoded)
            for i in range(2):
                self._pack_exact(decoded[2 * i], decoded[2 * i + 1], out[i])

    def _to_float(self, word: Register, out: Register) -> None:
        for i, pair in enumerate(pairs((out,))):
            self.k.v_cvt_pk_f32_fp8(pair, word) if not i else self.k.v_cvt_pk_f32_fp8_sdwa(
                pair, word, mods="src0_sel:WORD_1"
            )

    def _pack_exact(self, low: Register, high: Register, out: Register) -> None:
        if self.dtype == "f16":
            self.k.v_cvt_pkrtz_f16_f32(out, low, high)
        else:
            self.k.v_perm_b32(out, high, low, self.constants.scalar("high_halves", HIGH_HALVES))

    def _columns(self, out: Register) -> None:
        """From eight dims of each of four keys to four keys of each of eight dims, two registers each."""
        k = self.k
        if self.cache:
            for half in range(2):  # four dims at a time
                for two in range(2):  # two keys at a time
                    with k.temporary("decoded", 8) as decoded:
                        for i in range(2):
                            self._to_float(self.values[2 * (2 * two + i) + half], decoded[4 * i : 4 * i + 4])
                        for dim in range(4):
                            self._pack_exact(decoded[dim], decoded[4 + dim], out[2 * (4 * half + dim) + two])
            return
        low = self.constants.scalar("low_halves", LOW_HALVES)
        high = self.constants.scalar("high_halves", HIGH_HALVES)
        for word in range(4):
            for two in range(2):
                one, other = self.values[8 * two + word], self.values[8 * two + 4 + word]
                k.v_perm_b32(out[4 * word + two], other, one, low)
                k.v_perm_b32(out[4 * word + 2 + two], other, one, high)
