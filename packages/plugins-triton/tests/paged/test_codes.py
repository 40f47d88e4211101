"""fp8 and int8 caches: written and read as the references do it, and what is launched for them."""

import re
from collections.abc import Callable

import pytest
import torch
from paged.coded_calls import BATCHES, OPTIONS, check, check_written, coded_call

import opmux
from opmux.arch import arch_of
from opmux_triton.aot.build import compile_launch
from opmux_triton.flavours import CODES, FlavourOfArch
from opmux_triton.launch import Launch, recording
from opmux_triton.paged import configs, targets


@pytest.mark.long
def test_interpreted_codes_agree_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("paged/interpreted_codes.py")


def launches_of(
    arch: str, codes: torch.dtype, dtype: torch.dtype = torch.bfloat16, batch: str = "decode", dim: int = 32
) -> list[Launch]:
    """The launches of a call, for an arch."""
    tensors, bounds = coded_call(codes, dtype, batch, "cpu", dim=dim)
    given = [None if t is None else t.to("meta") for t in tensors]
    features = {"page_size": 16, "head_dim": dim, "value_dim": dim, "bucket(batch)": 2}
    config = configs.codes_config(opmux.arch.parse_arch(arch), features)
    options = {"scale": None, "softcap": 0.0, "window": (-1, -1), "causal": True, **bounds}
    with recording(arch) as recorded:
        targets.paged_attention_codes(*given, config=config, **options)
    return recorded.launches


def launched(arch: str, codes: torch.dtype, dim: int = 32) -> list[dict[str, object]]:
    """The constants of a decode step's launches, for an arch."""
    return [dict(launch.meta) for launch in launches_of(arch, codes, dim=dim)]


def test_pairs_of_values_are_read_where_instructions_convert_pairs() -> None:
    e4m3 = torch.float8_e4m3fn
    assert launched("sm_90", e4m3)[0]["PAIRED"] is True
    assert launched("sm_80", e4m3)[0]["PAIRED"] is False
    assert launched("gfx950", e4m3)[0]["PAIRED"] is False
    assert launched("sm_90", torch.int8)[0]["PAIRED"] is False
    assert launched("sm_90", e4m3, dim=33)[0]["PAIRED"] is False


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2], ids=str)
def test_e5m2_becomes_bfloat16_by_way_of_float16(dtype: torch.dtype, batch: str) -> None:
    """Triton's own conversion to bfloat16 makes finite numbers of Inf and NaN; that to float16 is exact."""
    readers = [one for one in launches_of("sm_90", torch.float8_e5m2, dtype, batch, 64) if "FORMAT" in one.meta]
    assert readers
    for one in readers:
        compiled, _ = compile_launch(one, "sm_90")
        made = re.findall(r"fp_to_fp .*f8E5M2> -> tensor<.*x(\w+)>", compiled.asm["ttir"])
        assert set(made) == {"f16"}, made
        assert not re.search(r"\be112\b", compiled.asm["ptx"])  # the factor 2**112 of Triton's own conversion


def test_another_flavour_than_the_archs_is_refused_with_the_remedy() -> None:
    tensors, bounds = coded_call(torch.float8_e4m3fnuz, torch.bfloat16, "decode", "cpu")
    plan = opmux.explain(opmux.paged_attention, *tensors, **bounds, arch="sm_90")
    reasons = {c.name: c.reason for c in plan.candidates}
    expected = "k_cache is float8_e4m3fnuz, sm_90 has float8_e4m3fn: convert it by opmux.convert_fp8"
    assert reasons["triton:codes"] == expected
    plan = opmux.explain(opmux.paged_attention, *tensors, **bounds, arch="gfx942")
    assert plan.chosen.name == "triton:codes"
    tensors, bounds = coded_call(torch.float8_e5m2, torch.bfloat16, "decode", "cpu")
    reasons = {
        c.name: c.reason for c in opmux.explain(opmux.paged_attention, *tensors, **bounds, arch="gfx942").candidates
    }
    expected = "k_cache is float8_e5m2, gfx942 has float8_e5m2fnuz: convert it by opmux.convert_fp8"
    assert reasons["triton:codes"] == expected


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "gfx90a", "gfx1100"])
def test_archs_without_8_bit_floats_take_caches_of_all_of_them(arch: str) -> None:
    for codes in (getattr(torch, name) for name in CODES):
        for step in ("decode", "prefill"):
            tensors, bounds = coded_call(codes, torch.bfloat16, step, "cpu")
            assert opmux.explain(opmux.paged_attention, *tensors, **bounds, arch=arch).chosen.name == "triton:codes"
        keys, cache = torch.randn(3, 2, 32, dtype=torch.bfloat16), torch.zeros(4, 16, 2, 32, dtype=codes)
        written = (keys, keys, cache, cache.clone(), torch.arange(3), torch.ones(2), torch.ones(2))
        assert opmux.explain(opmux.write_kv_cache, *written, arch=arch).chosen.name == "triton:codes"


def test_tiles_of_values_are_as_wide_as_those_of_keys_up_to_128_bytes() -> None:
    """One assembler gets tiles of values that are narrower wrong, where warpgroups multiply them."""
    tensors, bounds = coded_call(torch.float8_e4m3fn, torch.bfloat16, "prefill", "cpu", dim=40, value_dim=24)
    given = [None if t is None else t.to("meta") for t in tensors]
    config = configs.codes_config(
        opmux.arch.parse_arch("sm_90"), {"page_size": 16, "head_dim": 40, "value_dim": 24, "bucket(batch)": 2}
    )
    options = {"scale": None, "softcap": 0.0, "window": (-1, -1), "causal": True, **bounds}
    with recording("sm_90") as recorded:
        targets.paged_attention_codes(*given, config=config, **options)
    tiles = {(one.meta["BLOCK_M"] >= 64, one.meta["BLOCK_D"], one.meta["BLOCK_V"]) for one in recorded.launches[:2]}
    assert tiles == {(True, 64, 64), (False, 64, 32)}


def taken() -> list[torch.dtype]:
    """The dtypes of codes that the GPU's own instructions convert."""
    call = type("Call", (), {})
    found = []
    for name in CODES:
        call.tensors = {"k_cache": torch.empty(0, dtype=getattr(torch, name))}
        call.arch = arch_of(torch.device("cuda"))
        if FlavourOfArch("k_cache").check(call) is None:  # type: ignore[arg-type]
            found.append(getattr(torch, name))
    return found


@pytest.mark.gpu
@pytest.mark.memcheck
@pytest.mark.parametrize("scales", ["heads", "one", "none"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_writes_on_the_gpu(dtype: torch.dtype, scales: str) -> None:
    for codes in taken():
        for heads, dim in ((8, 128), (3, 24)):
            check_written(codes, dtype, "cuda", heads, dim, scales)


@pytest.mark.gpu
@pytest.mark.memcheck
@pytest.mark.parametrize("heads", [(8, 1), (16, 2), (32, 8), (6, 2)], ids=str)
@pytest.mark.parametrize("dim", [64, 128, 256, 40])
@pytest.mark.parametrize("batch", BATCHES)
def test_reads_on_the_gpu(batch: str, dim: int, heads: tuple[int, int]) -> None:
    """Equal shares (one or two kv heads and long sequences), splits, and prefill."""
    for codes in taken():
        check(coded_call(codes, torch.bfloat16, batch, "cuda", heads=heads, dim=dim, sinks=True))


@pytest.mark.gpu
@pytest.mark.memcheck
@pytest.mark.parametrize("dims", [(40, 24), (64, 24), (24, 64), (128, 48), (32, 32)], ids=str)
@pytest.mark.parametrize("batch", BATCHES)
def test_values_of_another_size_on_the_gpu(batch: str, dims: tuple[int, int]) -> None:
    given = coded_call(taken()[0], torch.bfloat16, batch, "cuda", heads=(8, 2), dim=dims[0], value_dim=dims[1])
    check(given)


@pytest.mark.gpu
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_options_on_the_gpu(dtype: torch.dtype, batch: str, options: str) -> None:
    for scales in ("heads", "one", "none"):
        given = coded_call(taken()[0], dtype, batch, "cuda", heads=(16, 2), dim=128, page_size=32, scales=scales)
        check(given, **OPTIONS[options])


@pytest.mark.gpu
@pytest.mark.parametrize("batch", BATCHES)
def test_fp8_queries_on_the_gpu(batch: str) -> None:
    for codes in taken():
        if codes != torch.int8:
            check(coded_call(codes, codes, batch, "cuda", heads=(16, 2), dim=128))


@pytest.mark.gpu
def test_a_captured_decode_step_reads_new_scales() -> None:
    """The scales are tensors: a replay takes what they hold then."""
    tensors, bounds = coded_call(taken()[0], torch.bfloat16, "long decode", "cuda", heads=(16, 2), dim=128)

    def step() -> torch.Tensor:
        out: torch.Tensor = opmux.paged_attention(*tensors, **bounds, backend="triton")
        return out

    for _ in range(3):
        step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    assert tensors[9] is not None
    tensors[9].mul_(3.0)
    graph.replay()
    torch.testing.assert_close(out, step())
