"""The loop of a product: what fills one buffer of LDS while the other is read, beside matrix instructions."""

from functools import partial

from opmux_asm.kernels.interleaving import Step, interleave
from opmux_asm.kernels.operands import CHUNK
from opmux_asm.kernels.product_places import SIDE, THREADS, Places
from opmux_asm.writer import M0, Register


class Loop(Places):
    """Both ways to fill LDS, and the matrix instructions."""

    def _reads(self, which: int, substep: int, offset: int = 0) -> list[Step]:
        """Read the chunks of a substep from LDS into a set of registers."""
        apart = SIDE * self.row_bytes
        tiles = [("w", i, self.read_w) for i in range(self.i_tiles)] + [
            ("x", j, self.read_x) for j in range(self.j_tiles)
        ]
        width = self.op.width
        return [
            partial(
                self.k.emit_read, self.fragment(which, operand, tile)[4 * part : 4 * part + 4],
                read[width * substep + part], offset + tile * apart,
            )
            for operand, tile, read in tiles
            for part in range(width)
        ]  # fmt: skip

    def _multiply(self, which: int, is_first: bool = False) -> list[Step]:
        """The matrix instructions on a set of registers; ``is_first`` in the first substep of an iteration."""
        steps: list[Step] = []
        for first, end in self.op.parts:
            for i in range(self.i_tiles):
                for j in range(self.j_tiles):
                    at = 16 * (i * self.j_tiles + j)
                    total = self.sums[at : at + 16]
                    a, b = self.fragment(which, "w", i)[first:end], self.fragment(which, "x", j)[first:end]
                    steps.append(partial(getattr(self.k, self.op.instruction), total, a, b, total))
        return steps

    def _begin_scales(self) -> list[Step]:
        """Steps before the loop, for scales that change with k."""
        return []

    def _turn_scales(self) -> list[Step]:
        """Steps of each iteration after its first substep, for scales that change with k."""
        return []

    def _wait_for_set(self, which: int) -> None:
        count = 4 * self.op.width * (self.i_tiles + self.j_tiles)
        self.k.wait_for(self.frags[which * count : (which + 1) * count])

    def _advance(self) -> None:
        self.k.s_add_u32(self.k_at, self.k_at, self.row_bytes)

    def through_registers(self) -> None:
        """Memory to registers two steps ahead, registers to LDS one step ahead; a step is half of an iteration."""
        k = self.k
        count = len(self.x_at) + len(self.w_at)
        stages = [k.v(f"stage{i}", 4 * count) for i in range(2)]

        def load(stage: int) -> list[Step]:
            places = [(at, self.x_rows) for at in self.x_at] + [(at, self.w_rows) for at in self.w_at]
            steps: list[Step] = [
                partial(k.emit_buffer, "load", stages[stage][4 * i : 4 * i + 4], at, rows, scalar=self.k_at)
                for i, (at, rows) in enumerate(places)
            ]
            return [*steps, self._advance]

        def store(stage: int, buffer: int) -> list[Step]:
            return [
                partial(k.ds_write_b128, self.write_at, stages[stage][4 * i : 4 * i + 4], mods=f"offset:{offset}")
                for i, offset in enumerate(buffer * self.buffer_bytes + i * THREADS * CHUNK for i in range(count))
            ]

        k.comment("Before the loop: two steps on their way, the first in LDS")
        arrived: list[Step] = [partial(k.wait_for, stages[0])]
        first = (*load(0), *load(1), *arrived, *store(0, 0), *self._begin_scales(), *load(0))
        for step in (*first, k.barrier, *self._reads(0, 0)):
            step()
        k.comment("The loop: two steps of k")
        with k.loop("k", self.iterations):
            for buffer in (0, 1):
                other = 1 - buffer
                k.comment(f"Step in buffer {buffer}")
                self._wait_for_set(0)
                arrived = [partial(k.wait_for, stages[other])]
                beside = [*self._reads(1, 1, buffer * self.buffer_bytes), *arrived, *store(other, other), *load(other)]
                interleave(self._multiply(0, is_first=not buffer), beside)
                k.barrier()
                for step in self._turn_scales() if not buffer else ():
                    step()
                interleave(self._multiply(1), self._reads(0, 0, other * self.buffer_bytes))
        k.wait(vm=0, lgkm=0)
        k.free(*stages, self.write_at)

    def straight(self) -> None:
        """Memory to LDS one step ahead."""
        k = self.k
        to, between = k.s("fill"), k.s("between")
        k.s_lshl_b32(to, self.wave, 10)  # a wave fills 64 chunks of 16 bytes at once
        k.s_mov_b32(between, self.buffer_bytes)

        def load() -> list[Step]:
            places = [(at, self.x_rows) for at in self.x_at] + [(at, self.w_rows) for at in self.w_at]
            steps: list[Step] = []
            for i, (at, rows) in enumerate(places):
                steps.append(partial(k.s_add_u32, M0, to, i * THREADS * CHUNK))
                steps.append(partial(k.buffer_load_dwordx4, at, rows, self.k_at, mods="offen lds"))
            return [*steps, self._advance]

        def turn(*registers: Register) -> list[Step]:
            return [partial(k.v_add_u32, one, between, one) for register in registers for one in register]

        k.comment("Before the loop: the first step in LDS")
        for step in load():
            step()
        k.s_add_u32(to, to, between)
        k.wait(vm=0)
        k.barrier()
        for step in (*self._begin_scales(), *self._reads(0, 0)):
            step()
        k.comment("The loop: a step of k")
        with k.loop("k", self.iterations):
            loads = load()
            early = max(1, self.substeps // 2)
            cuts = [len(loads) * min(i, early) // early for i in range(self.substeps)]
            for substep in range(self.substeps - 1):
                k.comment(f"Substep {substep}")
                self._wait_for_set(substep % 2)
                some = loads[cuts[substep] : cuts[substep + 1]]
                beside = [*some, *self._reads(1 - substep % 2, substep + 1)]
                interleave(self._multiply(substep % 2, is_first=not substep), beside)
                for step in self._turn_scales() if not substep else ():
                    step()
            k.comment("The last substep: half of it gives the loads time, beside the rest come the next step's chunks")
            self._wait_for_set(1)
            multiply = self._multiply(1)
            half = len(multiply) // 2
            interleave(multiply[:half], turn(self.read_x, self.read_w))
            k.wait(vm=0)
            k.barrier()
            k.s_sub_u32(to, to, between)
            interleave(multiply[half:], self._reads(0, 0))
            k.s_sub_u32(between, 0, between)
