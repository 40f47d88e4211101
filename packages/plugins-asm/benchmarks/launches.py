"""One workgroup of each kernel on the emulator, with the schedule model."""

import math

import numpy as np

from opmux_asm.kernels.attention import Attention
from opmux_asm.kernels.attention_places import ROWS as QUERIES
from opmux_asm.kernels.attention_places import UNMASKED
from opmux_asm.kernels.block_products import BLOCK, BlockProduct
from opmux_asm.kernels.cache import THREADS as COPYING
from opmux_asm.kernels.cache import copy_heads
from opmux_asm.kernels.operands import Operands
from opmux_asm.kernels.paged_decode import Decode
from opmux_asm.kernels.products import Product
from opmux_asm.kernels.rope import THREADS as ROTATING
from opmux_asm.kernels.rope import rope
from opmux_asm.objects.toolchain import assemble
from opmux_asm.writer import Kernel, module
from opmux_emulator import Latencies, Memory, Program, Report, launch

HEAD, PAGE = 128, 16


def program_of(kernel: Kernel) -> Program:
    """A kernel, assembled."""
    return Program(assemble(module("k", kernel.arch, [kernel], "figures"), kernel.arch, kernel.name))


def run(kernel: Kernel, arguments: list[object], memory: Memory, model: bool | Latencies = True) -> Report:
    """One workgroup of 256 threads; waves take turns, as on a compute unit."""
    return launch(program_of(kernel), kernel.name, (1, 1, 1), (256,), arguments, memory=memory, model=model)


def product(
    arch: str, dtype: str, rows: int, columns: int, k_bytes: int, *, blocks: bool = False,
    model: bool | Latencies = True,
) -> tuple[Kernel, Report]:  # fmt: skip
    """A tile of a product, whose scales are of blocks if asked for."""
    operands = Operands(arch, dtype, "bf16" if dtype in ("fp8", "int8") else dtype)
    kernel = (BlockProduct if blocks else Product)("k", operands, rows, columns).write()
    memory, count = Memory(), k_bytes // BLOCK
    sizes = (rows * k_bytes, columns * k_bytes, 4 * columns, 2 * rows * columns, 4 * rows * count, 4 * columns * count)
    pointers = [memory.add(np.zeros(size, "u1")) for size in sizes]
    numbers = [rows, columns, k_bytes // operands.bytes, k_bytes, k_bytes, 0]
    numbers += [4, 4 * rows, 4 * count, 4] if blocks else []
    return kernel, run(kernel, [*pointers, *map(np.uint32, numbers)], memory, model)


def normal(*shape: int) -> np.ndarray:
    """Random bfloat16, from the same seed each time."""
    return (np.random.default_rng(0).standard_normal(shape, "f4").view("u4") >> 16).astype("u2")


def attention(arch: str, keys: int) -> tuple[Kernel, Report]:
    """128 queries of one head, bfloat16, not causal; scores as of normal numbers, so that references seldom move."""
    kernel, memory = Attention("k", arch, "bf16").write(), Memory()
    tensors = [normal(QUERIES, HEAD), normal(keys, HEAD), normal(keys, HEAD), np.zeros((QUERIES, HEAD), "u2")]
    pointers = [memory.add(tensor) for tensor in (*tensors, np.zeros(QUERIES, "f4"))]
    strides = [*map(np.uint64, (0, 0, 0)), *map(np.uint32, (2 * HEAD,) * 6)]
    sizes = [np.uint32(QUERIES), np.uint32(keys), np.uint32(1), np.float32(1), np.int32(UNMASKED), np.uint32(1)]
    scale = [np.float32(math.log2(math.e) / math.sqrt(HEAD)), np.uint32(0xFFFFFFFF), np.uint32(0)]
    return kernel, run(kernel, [*pointers, *strides, *sizes, *scale], memory)


def paged(arch: str, cache: str, keys: int, group: int) -> tuple[Kernel, Report]:
    """The queries of one kv head, a sequence in pages of 16; bfloat16, or fp8 caches."""
    kernel, memory, element = Decode(arch, "bf16", cache).write(), Memory(), 1 if cache else 2
    pages = keys // PAGE
    caches = [np.full((keys, HEAD), 0x30, "u1") if cache else normal(keys, HEAD) for _ in range(2)]
    tensors = [normal(group, HEAD), *caches, np.zeros((group, HEAD), "u2"), np.zeros(group, "f4")]
    order = np.random.default_rng(1).permutation(pages).astype("i4")
    index = [np.array([0, 1], "i4"), np.array([keys], "i4"), order]
    pointers = [memory.add(tensor) for tensor in (*tensors, *index)]
    row = HEAD * element
    numbers = [2 * HEAD * group, 2 * HEAD, *(PAGE * row, row, row) * 2, 4 * pages, 0, 0, 4, 1, group, group]
    scale = [np.float32(math.log2(math.e) / math.sqrt(HEAD)), np.uint32(1), np.uint32(0xFFFFFFFF), np.uint32(0)]
    null = [np.uint64(0), np.uint64(0)]
    return kernel, run(kernel, [*pointers, *null, *map(np.uint32, numbers), *scale], memory)


def rotation(arch: str, tokens: int, heads: int, *, interleaved: bool) -> tuple[Kernel, Report, int]:
    """As many query heads as key heads of tokens, bfloat16; the last result is the fewest bytes that it can move."""
    kernel, memory = rope(arch, "bf16", HEAD // 2, interleaved), Memory()
    tensors = [normal(tokens, heads, HEAD) for _ in range(2)]
    tables = [np.ones((tokens, HEAD // 2), "f4") for _ in range(2)]
    results = [np.zeros_like(tensor) for tensor in tensors]
    pointers = [memory.add(tensor) for tensor in (*tensors, *tables)]
    outputs = [memory.add(tensor) for tensor in results]
    size = 2 * HEAD * heads
    steps = max(1, -(-size // (16 * (1 if interleaved else 2) * ROTATING)))
    arguments = [*pointers, np.uint64(0), *outputs, *map(np.uint32, (tokens, size, size, steps, steps, 0))]
    report = launch(program_of(kernel), kernel.name, (tokens, 1, 1), (ROTATING,), arguments, memory=memory)
    return kernel, report, 2 * sum(t.nbytes for t in tensors) + sum(t.nbytes for t in tables)


def cache_write(arch: str, tokens: int, heads: int) -> tuple[Kernel, Report, int]:
    """The keys of tokens to slots of a cache, bfloat16; the last result is the fewest bytes that it can move."""
    kernel, memory = copy_heads(arch), Memory()
    keys, cache = normal(tokens, heads, HEAD), np.zeros((1, PAGE, heads, HEAD), "u2")
    pointers = [memory.add(tensor) for tensor in (keys, cache, np.arange(tokens, dtype="i8"))]
    row = 2 * HEAD
    chunks = row // 16
    sizes = (heads * row, row, PAGE * heads * row, heads * row, row, PAGE, heads, PAGE.bit_length() - 1)
    numbers = map(np.uint32, (*sizes, chunks.bit_length() - 1, -(-heads * chunks // COPYING)))
    report = launch(program_of(kernel), kernel.name, (tokens, 1, 1), (COPYING,), [*pointers, *numbers], memory=memory)
    return kernel, report, 2 * keys.nbytes
