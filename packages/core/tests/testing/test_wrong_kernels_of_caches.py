"""Kernels on paged and on 8-bit caches that are wrong in ways that happen: the kit must catch each of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import opmux

Hold = Callable[..., dict[str, Any]]
WRITE, READ = opmux.write_kv_cache.reference, opmux.paged_attention.reference


def checks_failed(report: dict[str, Any]) -> set[str]:
    return {failure["check"] for failure in report["failures"]}


def assert_only_codes_fail(report: dict[str, Any], *checks: str) -> None:
    assert set(checks) <= checks_failed(report), checks_failed(report)
    codes = ("e4m3fn", "e5m2", "i8", "e4m3fnuz", "e5m2fnuz")
    assert all(any(f"={c}," in f["case"] or f["case"].startswith(c) for c in codes) for f in report["failures"])


def rolled(scale: Tensor | None) -> Tensor | None:
    return None if scale is None else scale.roll(1)


def test_writes_with_the_scale_of_the_neighbouring_head(hold: Hold) -> None:
    def write_kv_cache(*tensors: Any, **options: Any) -> None:
        *rest, k_scale, v_scale = tensors
        WRITE(*rest, k_scale, rolled(v_scale), **options)

    report = hold("write_kv_cache", write_kv_cache)
    assert_only_codes_fail(report, "codes")
    assert all("@data=one_scale" not in f["case"] for f in report["failures"])


def test_writes_values_times_their_scale(hold: Hold) -> None:
    def write_kv_cache(*tensors: Any, **options: Any) -> None:
        *rest, k_scale, v_scale = tensors
        WRITE(*rest, None if k_scale is None else 1 / k_scale, v_scale, **options)

    assert_only_codes_fail(hold("write_kv_cache", write_kv_cache), "codes")


def test_writes_with_one_scale_for_all_heads(hold: Hold) -> None:
    def write_kv_cache(*tensors: Any, **options: Any) -> None:
        *rest, k_scale, v_scale = tensors
        WRITE(*rest, None if k_scale is None else k_scale[:1], v_scale, **options)

    assert_only_codes_fail(hold("write_kv_cache", write_kv_cache), "codes")


def test_writes_infinity_instead_of_saturating(hold: Hold) -> None:
    def write_kv_cache(k: Tensor, v: Tensor, k_cache: Tensor, *rest: Any, **options: Any) -> None:
        WRITE(k, v, k_cache, *rest, **options)
        if k_cache.dtype == torch.float8_e4m3fn:
            bits = k_cache.view(torch.int8)
            bits[bits == 0x7E] = 0x7F  # the largest value becomes NaN

    assert_only_codes_fail(hold("write_kv_cache", write_kv_cache), "NaN and Inf")


def test_stale_scales(hold: Hold) -> None:
    """The scales of the call before, because they lie where those lay."""
    kept: dict[Any, Tensor] = {}

    def paged_attention(*tensors: Any, **options: Any) -> Tensor:
        *rest, k_scale, v_scale = tensors
        if v_scale is not None:
            where = (v_scale.data_ptr(), v_scale.shape, rest[0].shape, rest[1].shape)
            before = kept.get(where, v_scale)
            kept.clear()
            kept[where] = v_scale.clone()
            v_scale = before
        return READ(*rest, k_scale, v_scale, **options)

    report = hold("paged_attention", paged_attention)
    assert_only_codes_fail(report, "stale contents")


def test_scale_of_values_applied_twice(hold: Hold) -> None:
    def paged_attention(*tensors: Any, **options: Any) -> Tensor:
        *rest, v_scale = tensors
        return READ(*rest, None if v_scale is None else v_scale.square(), **options)

    assert_only_codes_fail(hold("paged_attention", paged_attention), "element bound", "row bound", "global bound")


def test_scale_of_keys_forgotten_under_a_cap(hold: Hold) -> None:
    def paged_attention(*tensors: Any, softcap: float, **options: Any) -> Tensor:
        *rest, k_scale, v_scale = tensors
        if softcap > 0 and k_scale is not None:
            k_scale = torch.ones_like(k_scale)
        return READ(*rest, k_scale, v_scale, softcap=softcap, **options)

    report = hold("paged_attention", paged_attention)
    assert_only_codes_fail(report, "element bound")
    assert all("softcap" in f["case"] for f in report["failures"])


def test_reads_with_the_scale_of_the_neighbouring_head(hold: Hold) -> None:
    def paged_attention(*tensors: Any, **options: Any) -> Tensor:
        *rest, k_scale, v_scale = tensors
        return READ(*rest, rolled(k_scale), v_scale, **options)

    report = hold("paged_attention", paged_attention)
    assert_only_codes_fail(report, "element bound", "row bound", "global bound")
    assert all("@data=one_scale" not in f["case"] for f in report["failures"])


def test_fnuz_read_as_ocp(hold: Hold) -> None:
    def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any, **options: Any) -> Tensor:
        if v_cache.dtype == torch.float8_e4m3fnuz:
            v_cache = v_cache.view(torch.float8_e4m3fn)
        return READ(q, k_cache, v_cache, *rest, **options)

    report = hold("paged_attention", paged_attention)
    assert_only_codes_fail(report, "element bound", "global bound")
    assert all("e4m3fnuz" in f["case"] for f in report["failures"])


def test_the_keys_of_the_last_program_are_not_joined(hold: Hold) -> None:
    """Kernels divide the keys among programs where there are many: no case of few keys shows it."""

    def paged_attention(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, lengths: Tensor, *rest: Any, **o: Any) -> Any:
        if o["max_seqlen_q"] == 1:
            lengths = lengths.where(lengths <= 1024, lengths // 256 * 256)
        return READ(q, k, v, offsets, lengths, *rest, **o)

    report = hold("paged_attention", paged_attention)
    assert {"element bound", "row bound"} <= checks_failed(report)
    assert all("@data=long" in failure["case"] for failure in report["failures"])
    assert {failure["case"].split(",")[0] for failure in report["failures"]} == {"bf16", "f32"}
