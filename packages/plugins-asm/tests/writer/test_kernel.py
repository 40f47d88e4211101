"""The kernel writer: registers by name, waits, wait states, loops, LDS."""

import re

import pytest

from opmux_asm.writer import VCC, Argument, Kernel, WriterError
from opmux_asm.writer.instructions import Instruction

ARGUMENTS = (Argument("x", "p"), Argument("n", "I"), Argument("y", "p"))


def kernel(arch: str = "gfx942") -> Kernel:
    return Kernel("k", arch, 256, ARGUMENTS, "a test")


def instructions(k: Kernel) -> list[str]:
    return [str(line).strip() for line in k.lines if isinstance(line, Instruction)]


def test_registers_have_names_and_alignment() -> None:
    k = kernel()
    k.v("odd")
    pair, buffer = k.v("pair", 2), k.s("buffer", 4)
    assert (pair.first % 2, buffer.first % 4) == (0, 0)
    assert str(pair) == "v[v_pair:v_pair+1]"
    assert str(pair[1]) == "v[v_pair+1]"
    assert str(-pair[1]) == "-v[v_pair+1]"
    assert str(abs(pair[0])) == "|v[v_pair]|"
    assert f"  .set v_pair, {pair.first}" in k.lines


def test_freed_registers_are_taken_again() -> None:
    k = kernel()
    first = k.v("first", 4)
    k.free(first)
    assert k.v("second", 4).first == first.first


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda k: (k.v("a"), k.v("a")), "k: v_a is taken: free it, or choose another name"),
        (lambda k: k.v("a", 300), "a: no 300 registers of kind 'v' are free, 1 are taken"),
        (lambda k: k.v("a", 2)[2], "a: it has 2 registers, asked for 2"),
        (lambda k: k.free(*[k.v("a")] * 2), "a: it is freed twice"),
        (lambda k: k.allocate_lds(70_000), "k: gfx942 has 65536 bytes of LDS, asked for 70000"),
    ],
)
def test_mistakes_with_resources(mistake: object, message: str) -> None:
    with pytest.raises(WriterError, match=re.escape(message)):
        mistake(kernel())  # type: ignore[operator]


def test_arguments_lie_at_their_own_alignment() -> None:
    k = kernel()
    assert [(a.name, at) for a, at in k.layout] == [("x", 0), ("n", 8), ("y", 16)]
    assert (k.kernarg_bytes, k.signature) == (24, "pIp")
    given = k.load_arguments()
    assert given["y"].first - given["x"].first == 4
    assert instructions(k)[-1] == "s_waitcnt lgkmcnt(0)"


def loads(k: Kernel, count: int) -> tuple[list[object], object]:
    buffer, at = k.s("buffer", 4), k.v("at")
    found = [k.v(f"x{i}", 4) for i in range(count)]
    for x in found:
        k.emit_buffer("load", x, at, buffer)
    return found, k.v("out", 4)


def test_wait_for_waits_no_longer_than_needed() -> None:
    k = kernel()
    (first, second, _), out = loads(k, 3)
    k.wait_for(first)
    k.v_mov_b32(out[0], first[0])
    k.wait_for(second)
    k.wait_for(first, second)
    k.v_mov_b32(out[1], second[0])
    waits = [line for line in instructions(k) if line.startswith("s_waitcnt")]
    assert waits == ["s_waitcnt vmcnt(2)", "s_waitcnt vmcnt(1)"]


def test_scalar_loads_are_waited_for_altogether() -> None:
    k = kernel()
    word, at = k.s("word", 2), k.v("at")
    k.s_load_dwordx2(word, k.group, 0)
    value = k.v("value")
    k.ds_read_b32(value, at)
    k.wait_for(word)
    assert instructions(k)[-1] == "s_waitcnt lgkmcnt(0)"


def test_a_register_that_is_not_waited_for() -> None:
    k = kernel()
    (x,), out = loads(k, 1)
    with pytest.raises(WriterError) as caught:
        k.v_mov_b32(out[0], x[1])
    assert str(caught.value) == (
        f"k: v_mov_b32: v{x.first + 1} is used while a load into it is outstanding:\n"
        "  v_mov_b32 v[v_out], v[v_x0+1]\n  try: wait_for(...) before it"
    )


def test_a_loop_whose_second_iteration_waits_too_little() -> None:
    k = kernel()
    (x,), out = loads(k, 1)
    times = k.s("times")
    k.s_mov_b32(times, 4)
    k.wait_for(x)

    def write() -> None:
        with k.loop("tiles", times):
            k.v_mov_b32(out[0], x[0])
            k.emit_buffer("load", x, out[1], k.s("again", 4))

    with pytest.raises(WriterError, match=r"k, again in loop tiles: v_mov_b32: v\d+ is used while a load"):
        write()


def test_a_loop_that_waits_enough() -> None:
    k = kernel()
    (x,), out = loads(k, 1)
    times, buffer = k.s("times"), k.s("again", 4)
    k.s_mov_b32(times, 4)
    with k.loop("tiles", times):
        k.wait_for(x)
        k.v_mov_b32(out[0], x[0])
        k.emit_buffer("load", x, out[0], buffer)
    assert instructions(k)[-3:] == ["s_sub_u32 s[s_times], s[s_times], 1", "s_cmp_lg_u32 s[s_times], 0",
                                    "s_cbranch_scc1 k.tiles.1"]  # fmt: skip


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda k, v, s: (k.v_rsq_f32(v[0], v[1]), k.v_mov_b32(v[2], v[0])), "s_nop 0"),
        (lambda k, v, s: (k.v_mov_b32(v[0], 1), k.v_add_f32_dpp(v[1], v[0], v[0], mods="row_mirror")), "s_nop 1"),
        (lambda k, v, s: (k.v_mov_b32(v[0], 1), k.v_readlane_b32(s[0], v[0], 63)), "s_nop 0"),
        (lambda k, v, s: (k.v_readlane_b32(s[0], v[0], 63), k.v_mov_b32(v[1], s[0])), "s_nop 1"),
        (lambda k, v, s: (k.v_readfirstlane_b32(s[0], v[0]), k.emit_buffer("load", v[1], v[0], s)), "s_nop 4"),
        (lambda k, v, s: (k.v_cmp_u_f32(VCC, v[0], v[0]), k.v_cndmask_b32(v[1], v[0], v[2], VCC)), "s_nop 1"),
        (lambda k, v, s: (k.emit_buffer("store", v, v[0], s), k.v_mov_b32(v[3], 1)), "s_nop 1"),
        (lambda k, v, s: (k.v_mov_b32(v[0], 1), k.v_mov_b32(v[1], v[0])), "v_mov_b32 v[v_v], 1"),
    ],
)
def test_wait_states_are_written(write: object, expected: str) -> None:
    k = kernel()
    v, s = k.v("v", 4), k.s("s", 4)
    write(k, v, s)  # type: ignore[operator]
    assert instructions(k)[-2] == expected


def test_lds_offsets_are_aligned() -> None:
    k = kernel("gfx950")
    assert (k.allocate_lds(4), k.allocate_lds(64, 64), k.lds) == (0, 64, 128)
    assert k.allocate_lds(100_000) == 128  # gfx950 has 160 KiB


def test_an_unknown_attribute_is_no_mnemonic() -> None:
    with pytest.raises(AttributeError):
        _ = kernel().nothing


def test_what_may_be_skipped_counts_on_both_ways() -> None:
    """A wait within it does not cover the load for those who skip it, and what it writes last needs its wait states."""
    k = kernel()
    (x,), out = loads(k, 1)
    with k.skipped_if("scc1"):
        k.wait_for(x)
        k.v_mov_b32(out[0], x[0])
    with pytest.raises(WriterError, match=r"v_mov_b32: v\d+ is used while a load"):
        k.v_mov_b32(out[1], x[1])
    k.wait_for(x)
    with k.skipped_if("vccz"):
        k.v_rsq_f32(out[0], x[0])
    k.v_mov_b32(out[1], out[0])
    assert instructions(k)[-2] == "s_nop 0"


def test_what_may_be_skipped_leaves_nothing_outstanding() -> None:
    k = kernel()
    (x,), out = loads(k, 1)
    buffer = k.s("again", 4)
    k.wait_for(x)

    def write() -> None:
        with k.skipped_if("scc1"):
            k.emit_buffer("load", x, out[0], buffer)

    with pytest.raises(
        WriterError, match=r"^k: instructions that may be skipped leave an access outstanding: wait for it$"
    ):
        write()


def test_what_may_be_skipped_in_a_loop() -> None:
    """The second iteration is checked as if it were skipped."""
    k = kernel()
    (x,), out = loads(k, 1)
    times, buffer = k.s("times"), k.s("again", 4)
    k.s_mov_b32(times, 4)
    k.wait_for(x)

    def write() -> None:
        with k.loop("tiles", times):
            with k.skipped_if("scc1"):
                k.wait(vm=0)
            k.v_mov_b32(out[0], x[0])
            k.emit_buffer("load", x, out[1], buffer)

    with pytest.raises(WriterError, match=r"k, again in loop tiles: v_mov_b32: v\d+ is used while a load"):
        write()


def test_wait_states_that_only_a_second_iteration_needs() -> None:
    k = kernel()
    v, a, times = k.v("v", 4), k.v("a", 16), k.s("times")
    k.s_mov_b32(times, 4)
    with k.loop("tiles", times):
        k.v_mov_b32(v[0], a[0])
        k.v_mfma_f32_32x32x8_bf16(a, v[0:2], v[2:4], a)
    assert instructions(k)[-5:] == [
        "s_nop 0", "s_nop 7", "s_sub_u32 s[s_times], s[s_times], 1", "s_cmp_lg_u32 s[s_times], 0",
        "s_cbranch_scc1 k.tiles.1",
    ]  # fmt: skip


def test_ids_of_three_dims_follow_the_arguments() -> None:
    assert Kernel("k", "gfx942", 64, [], "", dims=3).group.first == 2
