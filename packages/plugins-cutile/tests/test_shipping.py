"""What the wheel ships: the kernels of models' calls, each the code of what the source is now."""

import importlib.util
from pathlib import Path

import pytest
import torch
from cubins import kernel, meta

import opmux
import opmux_cutile.launching
from opmux.plugin import Taker, registered_ops, takers
from opmux_cutile.launching import aligned
from opmux_cutile.norms import backward as norms_backward
from opmux_cutile.paged import targets as paged
from opmux_cutile.plugin import opmux_implementations
from opmux_cutile.prebuilding import kernels_of, launched_by, takers_of
from opmux_cutile.products import backward as products_backward
from opmux_cutile.products import targets as products
from opmux_cutile.scaled import targets as scaled
from opmux_cutile.shipping import calls, kernels
from opmux_cutile.shipping.more_calls import more_calls
from opmux_jit import KernelMissing, machine_code
from opmux_jit.cache import layers, shipped
from opmux_jit.cache.keys import source_key
from opmux_jit.compilers import tile


@pytest.fixture(autouse=True)
def forgetful():
    """Machine code is read again in every test."""
    layers.forget()
    yield
    layers.forget()


@pytest.mark.parametrize("arch", kernels.ARCHS)
def test_there_are_kernels_for_models_on_every_arch_of_the_wheel(arch) -> None:
    found = kernels.kernels(arch)
    assert 100 < len(found) < 400
    assert all(source_key(one.source(arch)) == key for key, one in found.items())
    names = {one.name for one in found.values()}
    assert {"rms_norm", "silu_mul", "quantize", "rope", "linear", "scaled_linear", "write", "attend"} <= names


def test_the_wheel_has_the_kernel_that_a_model_asks_for() -> None:
    asked = kernel("rms_norm", meta(77, 4096), meta(4096))
    assert source_key(asked.source("sm_90")) in kernels.kernels("sm_90")


def test_what_is_built_serves_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = meta(512, 4096), meta(4096)
    monkeypatch.setattr(kernels, "calls", lambda: iter([("rms_norm", (x, w), {}), ("rms_norm", (x[:9], w), {})]))
    lines = list(kernels.build(tmp_path / "built", ["sm_90", "sm_120"], 2))
    assert lines[:2] == ["sm_90: 1 kernels", "sm_120: 1 kernels"]
    monkeypatch.setattr(shipped, "_folders", {tmp_path / "built": None})
    monkeypatch.setattr(tile, "find", lambda: None)
    monkeypatch.setenv("OPMUX_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("OPMUX_NO_JIT", "1")
    layers.forget()
    wanted = kernel("rms_norm", meta(3, 4096), meta(4096))
    for arch in ("sm_90", "sm_120"):
        found = machine_code(wanted.source(arch))
        assert found.code[:4] == b"\x7fELF"
        assert found.place == tmp_path / "built"
    (package,) = shipped.everything()
    assert package.keys() == {source_key(wanted.source(arch)) for arch in package.archs}
    with pytest.raises(KernelMissing) as caught:
        machine_code(wanted.source("sm_100"))
    assert f"  shipped:   {tmp_path / 'built'} (sm_120, sm_90, cutile " in str(caught.value)
    assert "try:       opmux prebuild --arch sm_100 --backend cutile --op rms_norm --shapes FILE" in str(caught.value)


def test_a_tree_ships_nothing_and_the_wheel_is_looked_into() -> None:
    assert opmux_cutile.launching.BUILT in shipped._folders
    assert opmux_cutile.launching.BUILT.name == "built"


def test_the_calls_name_ops_of_the_backend() -> None:
    ops = {record.op for record in opmux_implementations()}
    assert {op for op, *_ in calls.calls()} <= ops
    assert all(t is None or t.device.type == "meta" for _, tensors, _ in calls.calls() for t in tensors)
    assert torch.float8_e4m3fn in {t.dtype for _, tensors, _ in calls.calls() for t in tensors if t is not None}


def test_the_session_compiles_kernels_of_every_op_and_the_wheel_has_those_of_models() -> None:
    more = list(more_calls())
    ops = {record.op for record in opmux_implementations()}
    assert {op for op, *_ in (*calls.calls(), *more)} == ops
    dtypes = {t.dtype for _, tensors, _ in more for t in tensors if t is not None}
    codes = {torch.float8_e4m3fn, torch.float8_e5m2, torch.int8}
    assert codes | {torch.float16, torch.float32, torch.bfloat16} <= dtypes
    quantised = {(o["dtype"], o["block"]) for op, _, o in more if op == "quantize"}
    assert quantised == {(c, b) for c in codes for b in ((1, 128), (1, 32), (1, -1), (128, 128), (-1, -1))}
    assert {tensors[4] is None for op, tensors, _ in more if op == "scaled_linear"} == {False, True}
    shipped, compiled = kernels.kernels("sm_90"), kernels.kernels("sm_90", more)
    assert shipped.keys() < compiled.keys()


@pytest.mark.parametrize("arch", kernels.ARCHS)
def test_every_call_that_is_compiled_is_taken(arch) -> None:
    ops = registered_ops()
    for op, tensors, options in more_calls():
        taken = list(takers_of(ops[op], *tensors, arch=arch, **options))
        # Where both operands come from registers, rows of caches begin at multiples of 16 bytes.
        refused = arch == "sm_120" and op == "paged_attention_lse" and not aligned(*tensors[1:3])
        assert bool(taken) != refused, (op, options)


def test_a_wheel_has_no_room_for_what_is_taken_by_name_alone_with_wide_heads_or_codes() -> None:
    shipped = kernels.kernels("sm_120")
    dropped = [k for key, k in kernels.kernels("sm_120", []).items() if key not in shipped]
    assert {kernel.op for kernel in dropped} >= {"attention", "attention_varlen_lse", "paged_attention"}
    assert all("attention" in kernel.op for kernel in dropped)
    assert kernels.kernels("sm_90").keys() == kernels.kernels("sm_90", []).keys()


class App:
    """What a hook says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def display_warning(self, text: str) -> None:
        self.said.append(text)

    display_info = display_warning


def hook_of(app: App) -> object:
    """The hook of the package's build."""
    name = Path(__file__).parents[1] / "build_cubins.py"
    spec = importlib.util.spec_from_file_location("build_cubins", name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CubinsHook(str(name.parent), {}, None, None, str(name.parent / "build"), "wheel", app)


def test_a_wheel_gets_cubins_where_there_is_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(kernels, "build", lambda folder, archs, workers: made.append((folder, archs)) or iter(["done"]))
    app, data = App(), {"force_include": {}}
    hook_of(app).initialize("standard", data)
    assert app.said == ["done"]
    ((folder, archs),) = made
    assert archs == kernels.ARCHS
    assert data["force_include"] == {str(folder): "opmux_cutile/built"}
    monkeypatch.setattr(tile, "find", lambda: None)
    app, data = App(), {"force_include": {}}
    hook_of(app).initialize("standard", data)
    assert app.said == ['no cubins in the wheel: the compiler is not there ("opmux-cutile[compiler]")']
    assert data["force_include"] == {}
    hook_of(app).initialize("editable", data)
    assert len(app.said) == 1


@pytest.mark.parametrize("units", [114, 148])
def test_what_is_built_ahead_is_what_a_gpu_of_any_size_launches(units, monkeypatch) -> None:
    """No constant of a kernel comes from the number of multiprocessors."""
    options = {"dtype": torch.float8_e4m3fn, "block": (-1, -1)}
    (taker, *_) = takers(opmux.quantize, meta(8192, 8192), arch="sm_90", backend="cutile", **options)
    more = [source_key(one.source("sm_90")) for one in kernels_of(taker)]
    ahead = kernels.kernels("sm_90").keys() | set(more)
    for module in (products, products_backward, scaled, norms_backward):
        monkeypatch.setattr(module, "units_of", lambda index: units)
    monkeypatch.setattr(paged, "TYPICAL_UNITS", units)
    there = kernels.kernels("sm_90").keys() | {source_key(one.source("sm_90")) for one in kernels_of(taker)}
    assert there == ahead


def attended(arch: str, stored: torch.dtype, batch: int, new: int, window: tuple[int, int], reach: int) -> list[Taker]:
    """What takes attention over caches of up to some keys."""
    caches = [meta(4096, 64, 8, 128, dtype=stored) for _ in range(2)]
    ints = (meta(size, dtype=torch.int32) for size in (batch + 1, batch))
    tensors = meta(batch * new, 32, 128), *caches, *ints, meta(batch, 512, dtype=torch.int32)
    options = {"max_seqlen_q": new, "max_seqlen_k": reach, "window": window, "causal": True}
    return list(takers_of(opmux.paged_attention, *tensors, arch=arch, **options))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_pages_are_attended_with_what_is_built_ahead_by_any_gpu_and_at_any_length(
    arch, stored, masked, monkeypatch
) -> None:
    """A bundle for the length that a cache has in the end serves each step on the way there."""
    window = (512, 0) if masked else (-1, -1)
    for batch, new in ((1, 1), (2, 1), (16, 1), (150, 1), (2, 40)):
        call = arch, stored, batch, new, window
        ahead = [set(kernels_of(taker)) for taker in attended(*call, 8192)]
        assert ahead
        launched: set[str] = set()
        for units in (20, 78, 132, 148, 188):
            monkeypatch.setattr(paged, "TYPICAL_UNITS", units)
            for reach in (1, 256, 257, 700, 2048, 4160, 8192):
                for there, taker in zip(ahead, attended(*call, reach), strict=True):
                    found = launched_by(taker)
                    assert there.issuperset(found), (batch, new, units, reach)
                    launched |= {one.name for one in found}
        assert batch == 150 or "combine" in launched
