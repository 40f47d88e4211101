"""The loop of dense attention: the scores of a tile beside the softmax of the one before, then that one's values.

While one region of LDS is read, the other is filled: keys while values are read, and values while keys are. What is
written to LDS was loaded into registers a tile earlier.
"""

from functools import partial

from opmux_asm.kernels.attention_places import KEYS, RING, ROW_BYTES, VALUES_AT, Places
from opmux_asm.kernels.interleaving import Step, interleave
from opmux_asm.kernels.numbers import HIGH_HALVES, LOW_HALVES
from opmux_asm.kernels.softmax import MINUS_INFINITY
from opmux_asm.writer import Register


class Loop(Places):
    """Both phases of a tile."""

    # Memory to registers, registers to LDS

    def _load(self, name: str) -> list[Step]:
        """Steps that go on to the next tile of keys or values, and begin to load it; past the end it is 0."""
        k, (rows, left, step) = self.k, self.tiles[name]
        token, size = self.given[f"{name}_token"], rows[2]
        staged, at, steps = (
            (self.staged_keys, self.key_at, self.key_steps)
            if name == "k"
            else (self.staged_values, self.value_at, self.value_steps)
        )

        def resize() -> None:
            k.s_sub_i32(left, left, KEYS)
            k.s_min_i32(size, left, KEYS)
            k.s_sub_i32(size, size, 1)
            k.s_mul_i32(size, size, token)
            k.s_add_u32(size, size, ROW_BYTES)
            k.s_cmp_gt_i32(left, 0)
            k.s_cselect_b32(size, size, 0)

        def move() -> None:
            k.s_add_u32(rows[0], rows[0], step)
            k.s_addc_u32(rows[1], rows[1], 0)

        scalars: list[Register | int] = [0, *steps]
        loads: list[Step] = [
            partial(k.emit_buffer, "load", staged[4 * i : 4 * i + 4], at, rows, scalar=scalars[i]) for i in range(4)
        ]
        return [resize, move, *loads]

    def _write_keys(self) -> list[Step]:
        k, staged = self.k, self.staged_keys
        writes: list[Step] = [
            partial(k.ds_write_b128, self.write_key, staged[4 * i : 4 * i + 4], mods=f"offset:{16 * ROW_BYTES * i}")
            for i in range(4)
        ]
        return [partial(k.wait_for, staged), *writes]

    def _write_values(self) -> list[Step]:
        """Steps that turn eight dims of four keys into four keys of eight dims, and write them."""
        k, staged = self.k, self.staged_values
        low, high = (
            self.constants.scalar(name, value)
            for name, value in (("low_halves", LOW_HALVES), ("high_halves", HIGH_HALVES))
        )
        steps: list[Step] = [partial(k.wait_for, staged)]
        for dim in range(8):
            turn, turned = self.turned_at[dim % 2], self.turned[dim % 2]
            shift = dim if k.arch == "gfx942" else dim // 2
            chosen = high if dim % 2 else low
            word = dim // 2
            for i in range(2):
                one, other = staged[8 * i + word], staged[8 * i + 4 + word]
                steps.append(partial(k.v_perm_b32, turned[i], other, one, chosen))
            steps.append(partial(k.v_xor_b32, turn, 16 * shift, self.write_value))
            offset = VALUES_AT + 128 * dim
            steps.append(partial(k.ds_write_b64, turn, turned, mods=f"offset:{offset}"))
        return steps

    # Matrix instructions

    def _read_key(self, n: int) -> None:
        self.k.emit_read(self.ring[n % RING], self.read_key[n // 2], n % 2 * 32 * ROW_BYTES)

    def _read_value(self, n: int) -> None:
        group, tile = divmod(n, 4)
        self.k.emit_read(self.ring[n % RING], self.read_value[group ^ tile % 2 * 2], VALUES_AT + 4096 * tile)

    def _products(self, n: int, total: Register, other: Register, addend: Register | int, is_key: bool) -> list[Step]:
        """The matrix instructions of a fragment; then the ring's next one is read into its place."""
        k, fragment = self.k, self.ring[n % RING]
        multiply = getattr(k, self.op.instruction)
        steps: list[Step] = []
        for place, (first, end) in enumerate(self.op.parts):

            def step(place: int = place, first: int = first, end: int = end) -> None:
                if not place:
                    k.wait_for(fragment)
                multiply(total, fragment[first:end], other[first:end], total if place else addend)
                if place + 1 == len(self.op.parts) and n + RING < 16:
                    (self._read_key if is_key else self._read_value)(n + RING)

            steps.append(step)
        return steps

    def _score(self, into: Register) -> list[Step]:
        """Scores of a tile: 16 fragments of keys, those of both halves of a tile in turn."""
        steps: list[Step] = []
        for n in range(16):
            chunk, half = divmod(n, 2)
            total = into[16 * half : 16 * half + 16]
            steps += self._products(n, total, self.queries[4 * chunk : 4 * chunk + 4], total if chunk else 0, True)
        return steps

    def _average(self, shares: Register) -> list[Step]:
        """Values times shares: for each 16 keys four tiles of dims."""
        steps: list[Step] = []
        for n in range(16):
            group, tile = divmod(n, 4)
            total = self.sums[16 * tile : 16 * tile + 16]
            steps += self._products(n, total, shares[4 * group : 4 * group + 4], total, False)
        return steps

    # Softmax

    def _mask(self, scores: Register) -> None:
        """Take their weight from keys that a query does not see, and go on to the next tile's."""
        k = self.k
        with k.temporary("last_of_tile", 1, "s") as last:
            k.s_add_u32(last, self.key, KEYS - 1)
            k.s_cmp_le_i32(last, self.wave_sees)
        with k.skipped_if("scc1"):
            k.comment("Mask")
            limit, weightless = self.turned[0][0], self.turned[0][1]
            k.v_subrev_u32(limit, self.key, self.sees)
            k.v_mov_b32(weightless, MINUS_INFINITY)
            with k.temporary("seen", 8, "s") as seen:
                for at in range(0, len(scores), 4):
                    for i in range(4):
                        k.v_cmp_ge_i32(seen[2 * i : 2 * i + 2], limit, 32 * (at // 16) + 8 * (at % 16 // 4) + i)
                    for i in range(4):
                        k.v_cndmask_b32_e64(scores[at + i], weightless, scores[at + i], seen[2 * i : 2 * i + 2])
        k.s_add_u32(self.key, self.key, KEYS)

    def _shares(self, scores: Register, group: int) -> list[Step]:
        """Steps of the softmax of 16 keys; they end up packed in the first half of the tile's scores."""
        return self.softmax.shares(scores[8 * group : 8 * group + 8], scores[4 * group : 4 * group + 4])

    # The loop

    def run(self) -> None:
        """All tiles."""
        k = self.k
        self.turned, self.turned_at = [k.v(f"turned{i}", 2) for i in range(2)], k.v("turned_at", 2)
        k.comment("Before the loop: the first tile's scores; the second tile's keys in LDS")
        for step in (*self._load("k"), *self._write_keys(), *self._load("k")):
            step()
        k.barrier()
        for n in range(RING):
            self._read_key(n)
        for step in self._score(self.scores[0]):
            step()
        self._mask(self.scores[0])
        for step in self.softmax.largest(list(self.scores[0])):
            step()
        k.barrier()
        for step in (*self._write_keys(), *self._load("v"), *self._load("k")):
            step()
        k.barrier()
        k.comment("The loop: two tiles")
        with k.loop("tiles", self.pairs_of_tiles):
            for now, after in ((0, 1), (1, 0)):
                self._tile(self.scores[now], self.scores[after])
        k.wait(vm=0, lgkm=0)

    def _tile(self, now: Register, after: Register) -> None:
        """The next tile's scores, and this one's shares and values."""
        k = self.k
        k.comment("The next tile's scores, beside shares; values to LDS")
        for n in range(RING):
            self._read_key(n)
        self.softmax.follow(self.sums, [self.other_half])
        beside = [*self._shares(now, 0), *self._shares(now, 1), *self._write_values(), *self._load("v")]
        interleave(self._score(after), beside)
        k.barrier()
        k.comment("Values, beside the other shares; keys to LDS")
        for n in range(RING):
            self._read_value(n)
        average = self._average(now)
        quarter = len(average) // 4
        interleave(average[:quarter], self._shares(now, 2))
        interleave(average[quarter : 2 * quarter], self._shares(now, 3))
        self._mask(after)
        beside = [*self.softmax.largest(list(after)), *self._write_keys(), *self._load("k")]
        interleave(average[2 * quarter :], beside)
        k.barrier()
