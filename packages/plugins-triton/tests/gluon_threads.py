"""Gluon kernels with roles, run in Python: their own code, each role a thread, on barriers that act as the hardware's.

One thread runs at a time; whenever one passes a barrier, a copy or a product, the next is drawn at random, and copies
to shared memory arrive in any order. Products read their operands, and stores their source, as late as they are allowed
to. So a slot given back too early, a barrier waited for in the wrong phase and a deadlock all show.
"""

import random
import sys
import threading
from collections.abc import Callable
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np


class Int(int):
    """A scalar of a kernel."""

    def __add__(self, other: Any) -> Any:
        return Int(int(self) + other) if isinstance(other, int) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return Int(int(self) - other) if isinstance(other, int) else NotImplemented

    def to(self, _dtype: Any) -> "Int":
        return self


class Tensor(np.ndarray):
    """A tensor of a kernel: an array with Gluon's methods."""

    type = SimpleNamespace(layout=None)

    def permute(self, order: tuple[int, ...]) -> Any:
        return self.transpose(order)

    def split(self) -> tuple[Any, Any]:
        return self[..., 0], self[..., 1]

    def to(self, _dtype: Any) -> "Tensor":
        return self


def tensor(values: Any) -> Any:
    """An array as a tensor."""
    return np.asarray(values).view(Tensor)


class Pointer:
    """Into a flat array."""

    def __init__(self, array: np.ndarray, at: Any = 0) -> None:
        self.array, self.at = array, at

    def __add__(self, offset: Any) -> "Pointer":
        return Pointer(self.array, self.at + np.asarray(offset))


class Descriptor:
    """Blocks of a matrix; what lies outside is 0, and not stored."""

    dtype = layout = None

    def __init__(self, matrix: np.ndarray, shape: list[int]) -> None:
        self.matrix, self.shape = matrix, shape
        self.block_type = SimpleNamespace(nbytes=shape[0] * shape[1])

    def read(self, at: list[int]) -> np.ndarray:
        block = np.zeros(self.shape)
        inside = self.matrix[at[0] : at[0] + self.shape[0], at[1] : at[1] + self.shape[1]]
        block[: inside.shape[0], : inside.shape[1]] = inside
        return block

    def write(self, at: list[int], block: np.ndarray) -> None:
        inside = self.matrix[at[0] : at[0] + self.shape[0], at[1] : at[1] + self.shape[1]]
        inside[:] = block[: inside.shape[0], : inside.shape[1]]


class Shared:
    """A slot of shared memory, or a transposed view of one."""

    def __init__(self, of: "Shared | None" = None) -> None:
        self.of, self.values = of, None

    def permute(self, _order: tuple[int, ...]) -> "Shared":
        return Shared(self)

    def store(self, values: np.ndarray) -> None:
        if self.of is None:
            self.values = np.array(values)
        else:
            self.of.store(values.T)

    def read(self) -> Any:
        return self.values if self.of is None else self.of.read().T


class Ring:
    """Slots, or barriers."""

    def __init__(self, slots: list[Any]) -> None:
        self.slots = slots

    def index(self, index: int) -> Any:
        return self.slots[index]


class Barrier:
    """An mbarrier: a phase ends when ``count`` have arrived and all bytes that were announced have."""

    def __init__(self) -> None:
        self.count = self.pending = self.bytes = self.phases = 0

    def init(self, count: int) -> None:
        self.count = self.pending = count

    def arrive(self, count: int = 1, nbytes: int = 0) -> None:
        self.bytes += nbytes
        self.pending -= count
        self.settle()

    def deliver(self, nbytes: int) -> None:
        self.bytes -= nbytes
        self.settle()

    def settle(self) -> None:
        assert self.pending >= 0, "more arrivals than a phase has"
        if self.pending == 0 and self.bytes == 0:
            self.phases, self.pending = self.phases + 1, self.count


class Machine:
    """Runs the roles of one program, one at a time."""

    def __init__(self, program: int, programs: int, seed: int) -> None:
        self.program, self.programs = program, programs
        self.random = random.Random(seed)
        self.copies: list[Callable[[], None]] = []
        self.wake: dict[int, threading.Semaphore] = {}
        self.blocked: dict[int, Callable[[], bool]] = {}
        self.own = threading.local()
        self.back = threading.Semaphore(0)
        self.faults: list[BaseException] = []

    def yield_(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Let another role run, until ``ready``."""
        if getattr(self.own, "role", None) is None:
            return
        self.blocked[self.own.role] = ready
        self.back.release()
        self.wake[self.own.role].acquire()
        if self.faults:
            raise SystemExit

    def warp_specialize(self, roles: list[tuple[Any, tuple[Any, ...]]], _warps: Any, _registers: Any) -> None:
        threads = []
        for index, (function, arguments) in enumerate(roles):
            self.wake[index] = threading.Semaphore(0)
            self.blocked[index] = lambda: True
            threads.append(threading.Thread(target=self._role, args=(index, function, arguments), daemon=True))
        for thread in threads:
            thread.start()
        while self.blocked and not self.faults:
            able = [index for index, ready in self.blocked.items() if ready()]
            if self.copies and (not able or self.random.random() < 0.4):
                self.copies.pop(self.random.randrange(len(self.copies)))()
                continue
            if not able:
                self.faults.append(AssertionError("every role waits"))
                break
            self.wake[self.random.choice(able)].release()
            self.back.acquire()
        for index in self.blocked:
            self.wake[index].release()
        if self.faults:
            raise self.faults[0]

    def _role(self, index: int, function: Any, arguments: tuple[Any, ...]) -> None:
        self.wake[index].acquire()
        self.own.role, self.own.products, self.own.stores = index, [], []
        try:
            if not self.faults:
                function(*arguments)
                assert not self.own.stores, "a store may still read shared memory"
                assert not self.own.products, "a product is not waited for"
        except SystemExit:
            pass
        except BaseException as fault:
            self.faults.append(fault)
        self.blocked.pop(index, None)
        self.back.release()

    def names(self) -> dict[str, Any]:
        """What the kernels' modules import."""

        def wait(barrier: Barrier, phase: int) -> None:
            self.yield_(lambda: barrier.phases & 1 != phase)

        def arrive(barrier: Barrier, count: int = 1, pred: bool = True) -> None:
            if pred:
                barrier.arrive(count)
            self.yield_()

        def load_block(descriptor: Descriptor, at: list[int], barrier: Barrier, slot: Shared) -> None:
            slot.values = np.full(descriptor.shape, np.nan)

            def copy() -> None:
                slot.values = descriptor.read(at)
                barrier.deliver(descriptor.block_type.nbytes)

            self.copies.append(copy)
            self.yield_()

        def store_block(descriptor: Descriptor, at: list[int], slot: Shared) -> None:
            self.own.stores.append(lambda: descriptor.write(at, slot.read()))
            self.yield_()

        def store_wait(most: int) -> None:
            while len(self.own.stores) > most:
                self.own.stores.pop(0)()

        def warpgroup_mma(a: Shared, b: Shared, total: Any, is_async: bool, use_acc: bool = True) -> Any:
            def multiply() -> None:
                total[:] = (total if use_acc else 0) + a.read() @ b.read()

            assert is_async
            self.own.products.append(multiply)
            self.yield_()
            return total

        def warpgroup_mma_wait(most: int, values: list[Any]) -> Any:
            self.yield_()
            while len(self.own.products) > most:
                self.own.products.pop(0)()
            return values[0] if len(values) == 1 else tuple(values)

        def allocate(_dtype: Any, shape: list[int], layout: Any) -> Ring:
            return Ring([Barrier() if layout == "barrier" else Shared() for _ in range(shape[0])])

        def load(pointer: Pointer, mask: Any = True, other: float = 0.0) -> Any:
            if np.ndim(pointer.at) == 0 and pointer.array.dtype.kind == "i":
                return Int(pointer.array[pointer.at])
            return tensor(np.where(mask, pointer.array[np.where(mask, pointer.at, 0)], other))

        def store(pointer: Pointer, values: Any, mask: Any = True) -> None:
            at, values, live = np.broadcast_arrays(pointer.at, values, mask)
            pointer.array[at[live]] = values[live]

        def least(a: Any, b: Any) -> Any:
            return np.minimum(a, b) if isinstance(a, np.ndarray) else min(a, b)

        def arange(start: int, end: int, layout: Any = None) -> Any:
            return tensor(np.arange(start, end))

        gl = SimpleNamespace(
            program_id=lambda _axis: Int(self.program), num_programs=lambda _axis: self.programs, minimum=least,
            maximum=max, where=lambda c, a, b: a if c else b, static_range=range, constexpr=int, int64=None,
            float32=None, zeros=lambda shape, _dtype, _layout: tensor(np.zeros(shape)), arange=arange, load=load,
            store=store, convert_layout=lambda x, _layout: x, NVMMADistributedLayout=lambda *_: None,
            SliceLayout=lambda *_: None, allocate_shared_memory=allocate, warp_specialize=self.warp_specialize,
        )  # fmt: skip
        mbarrier = SimpleNamespace(
            init=lambda barrier, count: barrier.init(count), wait=wait, arrive=arrive,
            expect=lambda barrier, nbytes: barrier.arrive(1, nbytes), MBarrierLayout=lambda: "barrier",
        )  # fmt: skip
        return {
            "gl": gl, "tl": gl, "mbarrier": mbarrier, "tma": SimpleNamespace(store_wait=store_wait),
            "load_block": load_block, "store_block": store_block, "fence_async_shared": lambda: None,
            "warpgroup_mma": warpgroup_mma, "warpgroup_mma_wait": warpgroup_mma_wait,
            "gdc_wait": lambda: None, "gdc_launch_dependents": lambda: None,
        }  # fmt: skip

    def functions(self, module: ModuleType) -> dict[str, Any]:
        """What a module holds, with its kernels as Python functions."""
        scope: dict[str, Any] = {}
        self._fill(scope, module)
        scope |= self.names()
        return scope

    def _fill(self, scope: dict[str, Any], module: ModuleType) -> None:
        """Add what a module holds, and first what the modules hold whose kernels it imports."""
        held = [(name, value, getattr(value, "fn", None)) for name, value in vars(module).items()]
        kernels = [python for _, _, python in held if isinstance(python, FunctionType)]
        for name in {python.__module__ for python in kernels} - {module.__name__}:
            self._fill(scope, sys.modules[name])
        for name, value, python in held:
            scope[name] = FunctionType(python.__code__, scope) if isinstance(python, FunctionType) else value

    def run(self, module: ModuleType, kernel: str, arguments: tuple[Any, ...], meta: dict[str, Any]) -> None:
        """Run a kernel of a module."""
        self.functions(module)[kernel](*arguments, **meta)
