"""`apply_rope`: a workgroup rotates the heads of one token, queries and then keys, eight pairs a thread at a time."""

from opmux_asm.kernels.numbers import Constants, pack, unpack
from opmux_asm.kernels.rows import RAW_BUFFER
from opmux_asm.writer import Argument, Kernel, Register

FAMILY = "apply_rope"
DTYPES = ("bf16", "f16")
HALVES = (8, 16, 32, 64, 128)
"""Half of a head, which is rotated whole."""
ARGUMENTS = (
    Argument("q", "p"), Argument("keys", "p"), Argument("cos", "p"), Argument("sin", "p"), Argument("positions", "p"),
    Argument("q_out", "p"), Argument("k_out", "p"), Argument("seq", "I"), Argument("q_bytes", "I"),
    Argument("k_bytes", "I"), Argument("q_steps", "I"), Argument("k_steps", "I"), Argument("position_bytes", "I"),
)  # fmt: skip
"""Bytes of a token's queries and keys, steps of a workgroup over them; 0 bytes of a position where there are none."""
THREADS, PER = 256, 8


def name_of(dtype: str, half: int, interleaved: bool) -> str:
    """A kernel's name."""
    return f"{FAMILY}_{dtype}_{half}{'_interleaved' if interleaved else ''}"


def kernels(arch: str) -> list[Kernel]:
    """Every kernel of the family."""
    return [rope(arch, dtype, half, turned) for dtype in DTYPES for half in HALVES for turned in (False, True)]


def rope(arch: str, dtype: str, half: int, interleaved: bool) -> Kernel:
    """One kernel. A thread's pairs are the same in each of its steps, since a step is a whole number of heads."""
    about = f"Rotate heads of {2 * half} {dtype}, pairs {'of neighbours' if interleaved else 'of both halves'}.\n"
    k = Kernel(name_of(dtype, half, interleaved), arch, THREADS, ARGUMENTS, f"{about}Grid: seq, batch.", dims=2)
    given, constants = k.load_arguments(), Constants(k)
    k.comment("The token, and its row of the tables")
    token, place = k.s("token"), k.s("place", 2)
    k.s_mul_i32(token, k.group[1], given["seq"])
    k.s_add_u32(token, token, k.group[0])
    known = k.label("position_known")
    k.s_mov_b32(place[0], k.group[0])
    k.s_cmp_eq_u32(given["position_bytes"], 0)
    k.s_cbranch_scc1(known)
    advance(k, place, given["positions"], token, given["position_bytes"])
    k.s_load_dword(place[0], place, 0)
    k.wait(lgkm=0)
    k.place(known)
    table_bytes = k.s("table_bytes")
    k.s_mov_b32(table_bytes, 4 * half)
    tables = [token_buffer(k, f"{name}_row", given[name], place[0], table_bytes) for name in ("cos", "sin")]
    k.comment("The angles of this thread's pairs")
    groups = half // PER
    pair = k.v("pair")
    pairs = PER // 2 if interleaved else PER
    k.v_and_b32(pair, half // pairs - 1, k.thread)
    k.v_lshlrev_b32(pair, (4 * pairs).bit_length() - 1, pair)
    angles = [k.v(name, pairs) for name in ("cosines", "sines")]
    for table, angle in zip(tables, angles, strict=True):
        for i in range(0, pairs, 4):
            k.emit_buffer("load", angle[i : i + 4], pair, table, 4 * i)
    at = k.v("at", 2)
    if interleaved:  # elements in order
        k.v_lshlrev_b32(at[0], 4, k.thread)
    else:
        with k.temporary("head") as head:
            k.v_lshrrev_b32(head, groups.bit_length() - 1, k.thread)
            k.v_and_b32(at[0], groups - 1, k.thread)
            k.v_lshlrev_b32(at[0], 4, at[0])
            k.v_lshl_add_u32(at[0], head, (4 * half).bit_length() - 1, at[0])
    k.wait_for(*angles)
    if dtype == "bf16" and arch == "gfx942":
        constants.prepare_bf16()
    step_bytes = THREADS * 16 * (1 if interleaved else 2)
    for source, result, size, steps in (("q", "q_out", "q_bytes", "q_steps"), ("keys", "k_out", "k_bytes", "k_steps")):
        k.comment(f"The heads of {source}")
        rows = token_buffer(k, f"{source}_row", given[source], token, given[size])
        out = token_buffer(k, f"{result}_row", given[result], token, given[size])
        where = k.v(f"{source}_at")
        k.v_mov_b32(where, at[0])
        with k.loop(source, given[steps]):
            if interleaved:
                _neighbours(k, dtype, where, rows, out, angles, constants)
            else:
                _both_halves(k, dtype, half, where, rows, out, angles, constants)
            k.v_add_u32(where, step_bytes, where)
    return k


def advance(k: Kernel, out: Register, pointer: Register, row: Register, size: Register) -> None:
    """``out = pointer + row * size``, 64 bits."""
    k.s_mul_i32(out[0], row, size)
    k.s_mul_hi_u32(out[1], row, size)
    k.s_add_u32(out[0], out[0], pointer[0])
    k.s_addc_u32(out[1], out[1], pointer[1])


def token_buffer(k: Kernel, name: str, pointer: Register, row: Register, size: Register) -> Register:
    """A buffer of one row of a contiguous matrix."""
    buffer = k.s(name, 4)
    advance(k, buffer, pointer, row, size)
    k.s_and_b32(buffer[1], buffer[1], 0xFFFF)
    k.s_mov_b32(buffer[2], size)
    k.s_mov_b32(buffer[3], RAW_BUFFER)
    return buffer


def _both_halves(
    k: Kernel, dtype: str, half: int, at: Register, rows: Register, out: Register, angles: list[Register],
    constants: Constants,
) -> None:  # fmt: skip
    """Eight pairs ``(i, half + i)``: an access of each half of a head."""
    cosines, sines = angles
    with k.temporary("packed", 8) as packed, k.temporary("pairs", 16) as pairs, k.temporary("turned", 16) as turned:
        for i in range(2):
            k.emit_buffer("load", packed[4 * i : 4 * i + 4], at, rows, 2 * half * i)
        k.wait_for(packed)
        unpack(k, dtype, packed, pairs)
        for i in range(0, PER, 2):
            first, second = pairs[i : i + 2], pairs[PER + i : PER + i + 2]
            k.v_pk_mul_f32(turned[i : i + 2], second, sines[i : i + 2])
            k.v_pk_mul_f32(turned[PER + i : PER + i + 2], second, cosines[i : i + 2])
            low, high = turned[i : i + 2], turned[PER + i : PER + i + 2]
            k.v_pk_fma_f32(low, first, cosines[i : i + 2], low, mods="neg_lo:[0,0,1] neg_hi:[0,0,1]")
            k.v_pk_fma_f32(high, first, sines[i : i + 2], high)
        pack(k, dtype, turned, packed, constants)
        for i in range(2):
            k.emit_buffer("store", packed[4 * i : 4 * i + 4], at, out, 2 * half * i)


def _neighbours(
    k: Kernel, dtype: str, at: Register, rows: Register, out: Register, angles: list[Register], constants: Constants
) -> None:
    """Four pairs ``(2 * i, 2 * i + 1)``: an access."""
    cosines, sines = angles
    with k.temporary("packed", 4) as packed, k.temporary("pairs", PER) as pairs, k.temporary("turned", PER) as turned:
        k.emit_buffer("load", packed, at, rows)
        k.wait_for(packed)
        unpack(k, dtype, packed, pairs)
        for i in range(PER // 2):
            first, second = pairs[2 * i], pairs[2 * i + 1]
            k.v_mul_f32(turned[2 * i], second, sines[i])
            k.v_mul_f32(turned[2 * i + 1], second, cosines[i])
            k.v_fma_f32(turned[2 * i], first, cosines[i], -turned[2 * i])
            k.v_fma_f32(turned[2 * i + 1], first, sines[i], turned[2 * i + 1])
        pack(k, dtype, turned, packed, constants)
        k.emit_buffer("store", packed, at, out)
