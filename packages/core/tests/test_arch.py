"""Archs, patterns, detection, and reasoning as if on another arch."""

import subprocess
import sys

import pytest
import torch
from backends import backends, implementation
from hypothesis import given
from hypothesis import strategies as st

import opmux
from opmux import arch
from opmux.arch import CPU, check_pattern, parse_arch
from opmux.errors import InvalidArgument
from opmux.plugins import loading


@pytest.mark.parametrize(
    ("name", "vendor", "number"),
    [
        ("sm_80", "nvidia", (8, 0)),
        ("sm_90", "nvidia", (9, 0)),
        ("sm_100", "nvidia", (10, 0)),
        ("sm_90a", "nvidia", (9, 0)),
        ("gfx942", "amd", (9, 4, 2)),
        ("gfx90a", "amd", (9, 0, 10)),
        ("gfx1100", "amd", (11, 0, 0)),
        ("cpu", "cpu", ()),
    ],
)
def test_names_are_the_toolchains_own(name, vendor, number):
    parsed = parse_arch(name)
    assert (parsed.name, parsed.vendor, parsed.number) == (name, vendor, number)


def test_rocm_feature_suffixes_are_dropped():
    assert parse_arch("gfx942:sramecc+:xnack-").name == "gfx942"


@pytest.mark.parametrize("name", ["h100", "sm90", "gfx", "", "cuda", "SM_90"])
def test_what_is_no_arch_is_refused(name):
    with pytest.raises(InvalidArgument) as caught:
        parse_arch(name)
    assert str(caught.value) == (
        f"arch: `{name}` expected `cpu`, `sm_<number>` or `gfx<number>`, got {name!r}; "
        "use the toolchain's name, as sm_90 or gfx942"
    )


@pytest.mark.parametrize(
    ("pattern", "takes", "leaves"),
    [
        ("gfx942", ["gfx942"], ["gfx950", "gfx90a", "cpu"]),
        ("sm_80+", ["sm_80", "sm_90", "sm_100"], ["sm_75", "gfx942", "cpu"]),
        ("gfx90a+", ["gfx90a", "gfx942", "gfx1100"], ["gfx908", "sm_90"]),
        ("gfx9*", ["gfx90a", "gfx942", "gfx950"], ["gfx1100", "sm_90"]),
        ("*", ["cpu", "sm_90", "gfx942"], []),
        ("cpu", ["cpu"], ["sm_90"]),
    ],
)
def test_patterns(pattern, takes, leaves):
    check_pattern(pattern)
    assert all(parse_arch(name).matches(pattern) for name in takes)
    assert not any(parse_arch(name).matches(pattern) for name in leaves)


@pytest.mark.parametrize("pattern", ["hopper", "sm90+", "mi300*", "+", "sm_999", "gfx13*", "sm_95+", "gfx12a*", "cpux"])
def test_a_pattern_that_matches_nothing_is_refused(pattern):
    with pytest.raises(InvalidArgument):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "sm_90a",
            "arch: `sm_90a` expected the arch of a device, got a compiler's feature set of sm_90; write sm_90",
        ),
        (
            "sm_100f",
            "arch: `sm_100f` expected the arch of a device, got a compiler's feature set of sm_100; write sm_100",
        ),
        (
            "sm_999",
            "arch: `sm_999` expected an arch that compilers know, got 'sm_999'; did you mean sm_90? "
            f"known of nvidia: {', '.join(arch.KNOWN['nvidia'])}",
        ),
        (
            "gfx943",
            "arch: `gfx943` expected an arch that compilers know, got 'gfx943'; did you mean gfx942? "
            f"known of amd: {', '.join(arch.KNOWN['amd'])}",
        ),
    ],
)
def test_a_claim_and_a_question_name_a_known_arch(name, message):
    x, w = torch.randn(2, 8), torch.randn(8)
    for ask in (arch.known_arch, check_pattern, lambda name: opmux.explain(opmux.rms_norm, x, w, arch=name)):
        with pytest.raises(InvalidArgument) as caught:
            ask(name)
        assert str(caught.value) == message
    with backends(planted=implementation(lambda *tensors, **options: tensors[0], archs=("cpu", name))):
        assert [f.reason for f in loading.failed_plugins()] == [f"planted of rms_norm: {message}"]


def test_a_family_that_no_known_arch_is_of():
    with pytest.raises(InvalidArgument) as caught:
        check_pattern("gfx13*")
    assert str(caught.value) == (
        "arch: `gfx13*` expected the beginning of an arch's name and `*`, as gfx9*, got one that no known arch begins "
        "with; did you mean gfx1153? see opmux.arch.KNOWN"
    )


def test_every_known_arch_can_be_read_and_is_listed_once():
    names = [name for names in arch.KNOWN.values() for name in names]
    assert len(set(names)) == len(names)
    for vendor, known in arch.KNOWN.items():
        assert [arch.known_arch(name).vendor for name in known] == [vendor] * len(known)
        numbers = [parse_arch(name).number for name in known]
        assert numbers == sorted(numbers)


def test_a_device_of_an_arch_that_is_not_known_yet_works(monkeypatch):
    """What a driver reports is a fact; only claims and questions are held to the table."""
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: (14, 2))
    arch._arch_of_gpu.cache_clear()
    try:
        found = arch.arch_of(torch.device("cuda", 0))
    finally:
        arch._arch_of_gpu.cache_clear()
    assert found.name == "sm_142"
    assert found.matches("sm_80+")


@given(st.integers(10, 130), st.integers(10, 130))
def test_at_least_compares_numbers_not_text(have, want):
    assert parse_arch(f"sm_{have}").matches(f"sm_{want}+") == (have >= want)


def test_several_different_gpus_in_one_process(monkeypatch):
    """Each device answers for itself, once."""
    asked = []
    capability = {0: (9, 0), 1: (8, 0)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: asked.append(i) or capability[i])
    monkeypatch.setattr(torch.version, "hip", None)
    arch._arch_of_gpu.cache_clear()
    try:
        archs = [arch.arch_of(torch.device("cuda", i)).name for i in (0, 1, 0, 1)]
    finally:
        arch._arch_of_gpu.cache_clear()
    assert archs == ["sm_90", "sm_80", "sm_90", "sm_80"]
    assert asked == [0, 1]


def test_rocm_devices_are_named_by_their_target(monkeypatch):
    class Properties:
        gcnArchName = "gfx942:sramecc+:xnack-"

    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: Properties)
    arch._arch_of_gpu.cache_clear()
    try:
        assert arch.arch_of(torch.device("cuda", 0)).name == "gfx942"
    finally:
        arch._arch_of_gpu.cache_clear()


def test_the_cpu_plays_an_arch():
    with arch.cpu_plays("gfx942"):
        assert arch.arch_of(torch.device("cpu")).name == "gfx942"
        with arch.cpu_plays("gfx950"):
            assert arch.device_arch("cpu", 0).name == "gfx950"
        assert arch.device_arch("meta", 0).name == "gfx942"
        assert arch.present_archs()[0] == ("cpu", arch.CPU, "CPU")
    assert arch.arch_of(torch.device("cpu")) is arch.CPU
    with (
        pytest.raises(InvalidArgument, match="`gfx943` expected an arch that compilers know"),
        arch.cpu_plays("gfx943"),
    ):
        pass


def test_an_unknown_device_is_named():
    with pytest.raises(
        InvalidArgument, match=r"^arch: `device` expected cpu or cuda \(ROCm included\), got mps; move the tensors$"
    ):
        arch.device_arch("mps", 0)


def test_the_arch_of_explain(monkeypatch):
    x, w = torch.randn(2, 8), torch.randn(8)
    assert opmux.explain(opmux.rms_norm, x, w).arch == "cpu"
    assert opmux.explain(opmux.rms_norm, x, w, arch="gfx942").arch == "gfx942"
    monkeypatch.setenv("OPMUX_ARCH", "gfx950")
    assert opmux.explain(opmux.rms_norm, x, w).arch == "gfx950"
    with opmux.trace() as trace:
        opmux.rms_norm(x, w)
    assert [row.arch for row in trace.rows] == ["cpu"], "a real call uses its tensors' device"


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("gfx942", torch.float8_e4m3fnuz),
        ("gfx950", torch.float8_e4m3fn),
        ("sm_90", torch.float8_e4m3fn),
        ("cpu", torch.float8_e4m3fn),
    ],
)
def test_the_fp8_flavour_of_an_arch(name, dtype):
    assert opmux.fp8_dtype(name) == dtype
    assert opmux.fp8_dtype(parse_arch(name)) == dtype


def test_fp8_of_no_device_and_no_arch():
    with pytest.raises(InvalidArgument) as caught:
        opmux.fp8_dtype("h100")
    assert str(caught.value) == (
        "fp8_dtype: `device` expected a device or an arch, as 'cuda' or 'gfx942', got 'h100'; see `opmux doctor`"
    )


def test_the_cpu():
    assert arch.arch_of(torch.device("cpu")) is CPU
    assert not CPU.is_gpu
    assert arch.present_archs()[0][:2] == ("cpu", CPU)


IMPORTS = """
import sys, torch
before = set(sys.modules)
import opmux, opmux.plugin
new = set(sys.modules) - before
bad = [m for m in new if m.split(".")[0] in {"triton", "pandas", "rich", "typer", "pytest", "hypothesis", "numba"}]
bad += [m for m in new if m.startswith(("torch._dynamo", "torch._inductor"))]
print(bad, torch.cuda.is_initialized())
"""


def test_importing_pulls_in_no_toolchain_and_touches_no_device():
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False"
