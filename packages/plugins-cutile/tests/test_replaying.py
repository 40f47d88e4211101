"""Launches that are kept: made again for other tensors of the same forms, and only for those."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from played.launches import on, play

from opmux_cutile import launching, replaying
from opmux_cutile.gates import targets as gates
from opmux_cutile.gates.configs import GatedConfig
from opmux_cutile.norms import targets as norms
from opmux_cutile.norms.configs import NormConfig
from opmux_cutile.parameters import Array
from opmux_cutile.quantization import targets as quantization
from opmux_jit.launching.kernel import Address

CONFIG = NormConfig(1)


def made_again(self: launching.TileKernel, index: int, grid: Any, arguments: Any, tensors: int) -> Any:
    """As the native launch: arrays begin at addresses of the call's tensors; refused where one is not aligned."""

    def launch(*given: torch.Tensor) -> bool:
        assert len(given) == tensors
        if any(tensor.data_ptr() % 16 for tensor in given):
            return False
        values, rest = [], list(arguments)
        for parameter in self.parameters:
            if isinstance(parameter, Array):
                (tensor, offset), rank = rest.pop(0), len(parameter.shape)
                whole = given[tensor]
                first = whole.storage_offset() + offset // whole.element_size()
                values.append(whole.as_strided(tuple(rest[:rank]), tuple(rest[rank : 2 * rank]), first))
                values += rest[: 2 * rank]
                del rest[: 2 * rank]
            elif parameter.letters:
                values.append(rest.pop(0))
        play(self, grid, tuple(values))
        launches.append(self.name)
        return True

    return launch


launches: list[str] = []


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls on the CPU are kept, and played."""
    replaying.forget()
    launches.clear()
    monkeypatch.setattr(replaying, "_on_gpu", lambda tensor: True)
    monkeypatch.setattr(launching.TileKernel, "repeating", made_again)
    with torch.no_grad(), on("sm_90"):
        yield
    replaying.forget()


def norm(x: torch.Tensor, w: torch.Tensor, eps: float = 0.5) -> torch.Tensor:
    return norms.rms_norm(x, w, eps=eps, weight_offset=0.0, config=CONFIG)


def test_the_third_call_is_made_again_for_its_own_tensors() -> None:
    for time in range(5):
        x, w = torch.randn(3, 256), torch.randn(256)
        expected = torch.nn.functional.rms_norm(x, (256,), w, 0.5)
        torch.testing.assert_close(norm(x, w), expected)
        assert len(launches) == max(0, time - 1)


def test_other_shapes_strides_options_and_addresses_are_calls_of_their_own() -> None:
    x, w = torch.randn(8, 512), torch.randn(256)
    for _ in range(3):
        norm(x[:3, :256], w)
    assert len(launches) == 1
    for other, eps in ((x[:4, :256], 0.5), (x[:3, :256].contiguous(), 0.5), (x[:3, :256], 0.25), (x[:3, 1:257], 0.5)):
        torch.testing.assert_close(norm(other, w, eps), torch.nn.functional.rms_norm(other, (256,), w, eps))
    assert len(launches) == 1  # the last one's address is odd, which the launch tells


def test_halves_of_a_tensor_are_found_in_it() -> None:
    config = GatedConfig(1, 128)
    for _ in range(3):
        x = torch.randn(5, 256)
        gate, up = x.chunk(2, dim=-1)
        torch.testing.assert_close(gates.silu_and_mul(x, config=config), torch.nn.functional.silu(gate) * up)
    assert launches == ["silu_mul"]
    for _ in range(3):  # interleaved, then apart
        gate, up = torch.randn(5, 256).chunk(2, dim=-1)
        torch.testing.assert_close(gates.silu_mul(gate, up, config=config), torch.nn.functional.silu(gate) * up)
    gate, up = torch.randn(5, 256)[:, :128], torch.randn(5, 256)[:, 128:]
    torch.testing.assert_close(gates.silu_mul(gate, up, config=config), torch.nn.functional.silu(gate) * up)
    assert launches == ["silu_mul"] * 3


def test_a_tensor_given_twice_is_not_kept() -> None:
    for _ in range(4):
        x = torch.randn(3, 256)
        norms.add_rms_norm(x, x, x[0].clone(), eps=0.5, weight_offset=0.0, config=CONFIG)
    assert not launches


def test_in_place_and_several_results() -> None:
    for _ in range(3):
        x, residual, w = torch.randn(3, 256), torch.randn(3, 256), torch.randn(256)
        total = x + residual
        y, rounded = norms.add_rms_norm(x, residual, w, eps=0.5, weight_offset=0.0, config=CONFIG)
        torch.testing.assert_close(rounded, total)
        assert norms.add_rms_norm_(x, residual, w, eps=0.5, weight_offset=0.0, config=CONFIG) is None
        torch.testing.assert_close(x, y)
        torch.testing.assert_close(residual, total)
    assert launches == ["add_rms_norm"] * 2


def test_results_with_padding_that_is_zero_are_not_kept() -> None:
    options = {"dtype": torch.int8, "block": (1, 128), "config": GatedConfig(2, 128)}
    for _ in range(4):
        quantization.quantize(torch.randn(3, 256), scale_major="m", **options)
    assert not launches
    for _ in range(3):
        quantization.quantize(torch.randn(3, 256), scale_major="k", **options)
    assert launches == ["quantize"]


def test_few_calls_are_kept_under_a_key_and_noting_ends() -> None:
    w = torch.randn(256)
    for rows in range(1, 40):
        norm(torch.randn(rows, 256), w)
    (key,) = replaying._kept
    assert len(replaying._kept[key]) == replaying.MOST_CALLS
    assert replaying._replaced[key] == replaying.MOST_REPLACED


def test_an_address_has_an_offset() -> None:
    assert Address(1) == (1, 0)


def test_a_call_keeps_the_launches_of_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As autograd's threads make them, one for each GPU: one call is noted while another is between its launches."""
    monkeypatch.setattr(launching, "MOST_BYTES", 4 * 256)  # stands for 2 GiB: eight rows are launched in two parts
    player, made = launching._here.recorded, norms.launch
    x, w = torch.randn(8, 64), torch.randn(64)
    other = NormConfig(2)
    between, inside, done = (threading.Event() for _ in range(3))

    def call(rows: torch.Tensor, config: NormConfig) -> torch.Tensor:
        return norms.rms_norm(rows, w, eps=0.5, weight_offset=0.0, config=config)

    def launch(*given: Any) -> None:
        made(*given)
        if threading.current_thread() is first and not between.is_set():
            between.set()
            assert inside.wait(60)
        elif threading.current_thread() is last:
            inside.set()
            assert done.wait(60)

    def run(rows: torch.Tensor, config: NormConfig) -> None:
        launching._here.recorded = player
        with torch.no_grad():
            call(rows, config)

    def one() -> None:
        run(x, CONFIG)
        done.set()

    def two() -> None:
        assert between.wait(60)
        run(x[:2].clone(), other)

    call(x, CONFIG), call(x[:2].clone(), other)
    monkeypatch.setattr(norms, "launch", launch)
    first, last = threading.Thread(target=one), threading.Thread(target=two)
    first.start(), last.start()
    first.join(), last.join()
    torch.testing.assert_close(call(x, CONFIG), torch.nn.functional.rms_norm(x, (64,), w, 0.5))
    assert launches == ["rms_norm"] * 2
    assert [len(one.launches) for found in replaying._kept.values() for one in found] == [2, 1]
