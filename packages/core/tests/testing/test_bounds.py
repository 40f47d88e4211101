"""The bounds: what one rounding is, what sums may err by, and that they hold for what they are derived for, no more."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import opmux
from opmux.callpath.op import OPS
from opmux.testing.bounds import DERIVATIONS, Allowance, Given, allowances, roundings, unit_roundoff
from opmux.testing.bounds.exponentials import exponential_errors, softmax_errors
from opmux.testing.bounds.scores import Scores, by_sequence, per_head
from opmux.testing.case import parse_case
from opmux.testing.comparison import compare, requantised, ulp
from opmux.testing.inputs import make_arguments
from opmux.testing.oracle import expected_results, upcast

CPU = torch.device("cpu")
UNIT = 2.0**-24
REAL = [torch.bfloat16, torch.float16, torch.float32]


def held(case: str, op: str, results: tuple[Tensor, ...] | None = None) -> tuple[Any, ...]:
    """Arguments, exact results and allowances of a case."""
    arguments = make_arguments(parse_case(op, case), CPU)
    exact = expected_results(OPS[op], arguments, results or ())
    operands = {n: upcast(t) for n, t in arguments.tensors.items()}
    dtypes = {n: t.dtype for n, t in arguments.tensors.items() if t is not None}
    return arguments, exact, allowances(OPS[op], operands, dtypes, arguments.options, exact)


def test_every_op_of_the_core_is_derived() -> None:
    """None of them relies on the perturbation of its oracle."""
    own = {op.name for op in OPS.values() if op.in_place_of is None and ".ops." in op.reference.__module__}
    assert own <= set(DERIVATIONS)


# One rounding


@pytest.mark.parametrize("dtype", [*REAL, torch.float64])
def test_ulp_is_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    values = torch.tensor([1.0, 1.5, 2.0, 3.0, 1000.0, 2.0**-10, info.smallest_normal, 0.0], dtype=dtype)
    beyond = torch.nextafter(values, torch.tensor(math.inf, dtype=dtype))
    assert torch.equal(ulp(values.double(), dtype), beyond.double() - values.double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_value_rounded_once_passes_and_its_neighbour_does_not(dtype: torch.dtype) -> None:
    exact = torch.randn(64, 64, dtype=torch.float64) * 10
    allowance = Allowance(exact.abs())  # torch converts float64 by way of float32
    rounded = exact.to(dtype)
    errors, findings = compare("out", rounded, exact, allowance, UNIT)
    assert findings == []
    assert 0.9 < errors.element <= 1
    assert errors.whole < 0.9
    spoiled = rounded.clone()
    spoiled[3, 7] = torch.nextafter(spoiled[3, 7], torch.tensor(math.copysign(100.0, exact[3, 7])).to(dtype))
    errors, findings = compare("out", spoiled, exact, allowance, UNIT)
    assert 1 < errors.element <= 3
    assert [f.check for f in findings] == ["element bound"]
    assert "`out`[3, 7] = " in findings[0].message


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_value_rounded_twice_fails_as_a_whole(dtype: torch.dtype) -> None:
    exact, factor = torch.randn(64, 64, dtype=torch.float64), torch.rand(64, dtype=torch.float64) + 1
    twice = (exact.to(dtype).double() * factor).to(dtype)
    errors, findings = compare("out", twice, exact * factor, Allowance(), UNIT)
    assert 1 < errors.whole < 2
    assert {"element bound", "global bound"} <= {f.check for f in findings}


def test_results_on_a_grid_of_half_an_ulp_pass() -> None:
    """Every other exact result is a tie: the mean square of the error is 1/8 ulp**2."""
    exact = (torch.arange(2**16, dtype=torch.float64) + 2**17).reshape(256, 256) / 2**10
    errors, findings = compare("out", exact.float().to(torch.bfloat16), exact, Allowance(), UNIT)
    assert findings == []
    assert errors.whole < 1


def test_one_bad_row_fails_as_a_row() -> None:
    exact = torch.randn(64, 512, dtype=torch.float64)
    got = exact.to(torch.bfloat16)
    got[5] = (exact[5] * 1.002).to(torch.bfloat16)
    errors, findings = compare("out", got, exact, Allowance(), UNIT)
    assert errors.row > 1 > errors.whole
    assert "`out`[5] errs by" in next(f.message for f in findings if f.check == "row bound")


def test_overflow_is_infinite() -> None:
    exact = torch.tensor([1e6, -1e6, 1.0, 65500.0], dtype=torch.float64)
    got = exact.to(torch.float16)
    assert compare("out", got, exact, Allowance(), UNIT)[1] == []
    saturated = got.clamp(-65504, 65504)
    (finding,) = compare("out", saturated, exact, Allowance(), UNIT)[1]
    assert finding.check == "NaN and Inf"
    assert finding.message == "1 elements of `out` should be inf, the first at [0]: got 65504, exact inf"


def test_nan_where_nan_is_and_nowhere_else() -> None:
    exact = torch.tensor([[1.0, math.nan], [2.0, 3.0]], dtype=torch.float64)
    assert compare("out", exact.float(), exact, Allowance(), UNIT)[1] == []
    (missing,) = compare("out", exact.float().nan_to_num(5.0), exact, Allowance(), UNIT)[1]
    assert missing.message.startswith("1 elements of `out` should be NaN, the first at [0, 1]")
    surplus = exact.float()
    surplus[1] = math.nan
    (found,) = compare("out", surplus, exact, Allowance(), UNIT)[1]
    assert found.message.startswith("2 elements of `out` must not be NaN, the first at [1, 0]")


def test_a_bound_that_is_no_number_lets_nothing_through() -> None:
    exact = torch.ones(4, dtype=torch.float64)
    errors, findings = compare("out", exact.float() * 1.5, exact, Allowance(torch.full((4,), math.nan)), UNIT)
    assert errors.element == math.inf
    assert errors.as_dict()["element"] == 1e300
    assert "element bound" in {f.check for f in findings}
    assert compare("out", exact.float(), exact, Allowance(torch.full((4,), math.nan)), UNIT)[1] == []


def test_integers_are_exact() -> None:
    exact = torch.arange(6).reshape(2, 3)
    assert compare("ids", exact.int(), exact, Allowance(), UNIT)[1] == []
    wrong = exact.clone()
    wrong[1, 2] = 4
    (finding,) = compare("ids", wrong.int(), exact, Allowance(), UNIT)[1]
    assert finding.message == "`ids`[1, 2] = 4, exact 5; 1 of 6 elements are wrong"


def test_nothing_to_compare() -> None:
    errors, findings = compare("out", torch.empty(0, 3), torch.empty(0, 3, dtype=torch.float64), Allowance(), UNIT)
    assert findings == []
    assert errors.as_dict() == {"global": None, "row": None, "element": None}


# Codes


def test_codes_may_be_one_apart_on_a_few_elements() -> None:
    exact = torch.linspace(-100, 100, 4000, dtype=torch.float64).reshape(40, 100) + 0.3
    codes = requantised(exact, torch.int8)
    assert compare("q", codes, exact, Allowance(), UNIT)[1] == []
    codes[0, :4] += 1
    errors, findings = compare("q", codes, exact, Allowance(), UNIT)
    assert findings == []
    assert errors.whole == 1
    codes[0, 4] += 1
    assert [f.check for f in compare("q", codes, exact, Allowance(), UNIT)[1]] == ["number of codes"]
    codes[0, 4] += 1
    assert {f.check for f in compare("q", codes, exact, Allowance(), UNIT)[1]} == {"codes", "number of codes"}


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
)
def test_neighbours_of_fp8_codes_are_one_apart(dtype: torch.dtype) -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    finite = numbers[numbers.isfinite()].unique()
    below = finite[:-1].to(dtype)
    errors, _ = compare("q", below, finite[1:].to(dtype), Allowance(), UNIT)
    assert errors.element == 1
    apart = finite[:-2].to(dtype)
    errors, _ = compare("q", apart, finite[2:].to(dtype), Allowance(), UNIT)
    assert errors.element == 2


def test_both_codes_of_a_tie_are_right() -> None:
    exact = torch.full((10,), 2.5, dtype=torch.float64)
    allowance = Allowance(4 * exact)
    for code in (2, 3):
        got = torch.full((10,), code, dtype=torch.int8)
        assert compare("q", got, exact, allowance, UNIT)[1] == []
    off = torch.full((10,), 2.51, dtype=torch.float64)
    assert compare("q", torch.full((10,), 2, dtype=torch.int8), off, Allowance(4 * off), UNIT)[1] != []


def test_codes_of_the_oracle_are_the_references() -> None:
    x = torch.randn(64, 256, dtype=torch.float64)
    for dtype in (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2fnuz):
        q, scale = opmux.quantize.reference(x, dtype=dtype, block=(1, 128))
        spread = scale.double().repeat_interleave(128, -1)
        assert torch.equal(requantised(x / spread, dtype).float(), q.float())


def test_scales_may_be_two_ulp_off() -> None:
    results = (torch.empty(0), torch.empty(0))
    _, exact, (_, allowance) = held("f32,batch=1,m=16,k=256,dtype=i8", "quantize", results)
    scale = exact[1].float()
    for steps, right in ((2, True), (3, False)):
        off = (scale.view(torch.int32) + steps).view(torch.float32)
        assert (compare("scale", off, exact[1], allowance, UNIT)[1] == []) is right


# Sums


def test_roundings_grow_with_the_root_of_the_terms() -> None:
    assert roundings(0) == 4
    assert roundings(4096) == 68


def test_unit_roundoff_is_that_of_the_accumulation() -> None:
    assert unit_roundoff([torch.bfloat16, torch.float32]) == 2.0**-24
    assert unit_roundoff([torch.float32, torch.float64]) == 2.0**-53


@pytest.mark.parametrize("terms", [16, 256, 4096])
@pytest.mark.parametrize("positive", [False, True], ids=["mixed signs", "one sign"])
def test_sums_in_the_worst_order_stay_within_half_of_their_bound(terms: int, positive: bool) -> None:
    values = torch.rand(2000, terms) if positive else torch.randn(2000, terms)
    total = torch.zeros(2000)
    for column in values.unbind(-1):
        total = total + column
    error = (total.double() - values.double().sum(-1)).abs()
    allowed = UNIT * roundings(terms) * values.double().abs().sum(-1)
    assert float((error / allowed).max()) < 0.9
    assert float((error / allowed).max()) > (0.1 if positive else 0.005)


def test_sums_in_bfloat16_are_far_beyond_it() -> None:
    values = torch.rand(100, 256).to(torch.bfloat16)
    total = torch.zeros(100, dtype=torch.bfloat16)
    for column in values.unbind(-1):
        total = total + column
    error = (total.double() - values.double().sum(-1)).abs()
    allowed = UNIT * roundings(256) * values.double().abs().sum(-1)
    assert float((error / allowed).median()) > 1000


def test_the_magnitude_of_a_product_is_that_of_its_operands() -> None:
    arguments, _, (allowance,) = held("f32,tokens=3,k=20,n=4", "linear")
    x, w, bias = (arguments.tensors[n].double() for n in ("x", "w", "bias"))
    expected = x.abs() @ w.abs().T * (4 + math.sqrt(20)) + bias.abs()
    assert torch.allclose(allowance.magnitude, expected, rtol=1e-12)


def test_float64_counts_twice() -> None:
    exact = torch.ones(4, dtype=torch.float64)
    got = exact + 3 * 2.0**-52
    (once,) = {compare("out", got.to(d), exact, Allowance(exact * 4), 2.0**-53)[0].element for d in (torch.float64,)}
    assert once == pytest.approx(3 / (1 + 4), rel=0.01)


# Attention


@pytest.mark.parametrize(
    "options", ["", ",causal=true", ",window=3x2", ",causal=true,softcap=2.0,scale=0.25", ",causal=true,window=4x3"]
)
def test_the_scores_are_those_of_the_reference(options: str) -> None:
    dims = "f64,batch=2,seq_q=9,heads=4,head_dim=8,seq_k=13,kv_heads=2,value_dim=6"
    arguments, exact, _ = held(dims + options, "attention_lse")
    tensors = arguments.tensors
    for batch, heads in per_head(tensors["q"], tensors["k"]):
        scores = Scores.of(tensors, arguments.options, batch, heads)
        assert torch.allclose((scores.p @ scores.v).transpose(0, 1), exact[0][batch][:, heads], atol=1e-12)
        assert torch.allclose(scores.lse.squeeze(-1), exact[1][batch][heads], atol=1e-12)


def test_sequences_are_those_of_the_reference() -> None:
    case = (
        "f64,tokens=24,heads=4,head_dim=8,pages=12,page_size=16,kv_heads=2,value_dim=8,batch=3,max_pages=4,causal=false"
    )
    arguments, exact, _ = held(case, "paged_attention_lse")
    tensors = arguments.tensors
    for tokens, _, one in by_sequence(tensors):
        for batch, heads in per_head(one["q"], one["k"]):
            scores = Scores.of(one, arguments.options, batch, heads)
            assert torch.allclose((scores.p @ scores.v).transpose(0, 1), exact[0][tokens][:, heads], atol=1e-12)


def test_only_16_bit_inputs_may_round_probabilities() -> None:
    dims = "batch=1,seq_q=4,heads=2,head_dim=8,seq_k=5,kv_heads=2,value_dim=8"
    for dtype, noisy in (("bf16", True), ("f16", True), ("f32", False), ("f64", False)):
        _, _, (out, lse) = held(f"{dtype},{dims}", "attention_lse")
        assert (out.noise is not None) is noisy
        assert lse.noise is None


def test_noise_is_the_root_of_the_squares() -> None:
    dims = "bf16,sinks=none,batch=1,seq_q=4,heads=1,head_dim=8,seq_k=50,kv_heads=1,value_dim=8"
    arguments, exact, (allowance,) = held(dims, "attention")
    operands = {n: upcast(t) for n, t in arguments.tensors.items()}
    scores = Scores.of(operands, arguments.options, 0, slice(0, 1))
    root = (scores.p.square() @ scores.v.square()).sqrt()[0].unsqueeze(1)
    assert torch.allclose(allowance.noise[0], 2.5 * root + exact[0][0].abs())


def test_chunks_of_heads_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    from opmux.testing.bounds import scores

    dims = "bf16,batch=2,seq_q=9,heads=4,head_dim=8,seq_k=13,kv_heads=2,value_dim=6"
    _, _, whole = held(dims, "attention_lse")
    monkeypatch.setattr(scores, "SCORES_AT_A_TIME", 1)
    _, _, parts = held(dims, "attention_lse")
    for a, b in zip(whole, parts, strict=True):
        assert torch.allclose(a.magnitude, b.magnitude)
    assert torch.allclose(whole[0].noise, parts[0].noise)


TINY = torch.finfo(torch.float32).tiny


def test_small_errors_of_exponents_count_in_first_order() -> None:
    x = torch.log_softmax(torch.randn(3, 7, dtype=torch.float64), -1)
    error = 1e-5 * torch.rand(3, 7, dtype=torch.float64)
    assert torch.equal(exponential_errors(x, error, TINY), x.exp() * error)
    of_p, of_lse = softmax_errors(x, error, TINY)
    assert torch.allclose(of_lse, (x.exp() * error).sum(-1, keepdim=True))
    assert torch.allclose(of_p, x.exp() * (error + of_lse))


def test_large_errors_of_exponents_are_intervals() -> None:
    """exp(-2), whose exponent may be anything from -5 to 1; and the same in a softmax, where 1 is the most."""
    x, error = torch.tensor([[-2.0]], dtype=torch.float64), torch.tensor([[3.0]], dtype=torch.float64)
    assert float(exponential_errors(x, error, TINY)) == pytest.approx(math.exp(1) - math.exp(-2))
    x = torch.log(torch.tensor([[0.9, 0.1]], dtype=torch.float64))
    of_p, of_lse = softmax_errors(x, torch.full_like(x, 3.0), TINY)
    assert float(of_lse) == pytest.approx(3.0)
    assert of_p[0].tolist() == pytest.approx([0.9 - 0.9 * math.exp(-6), 1 - 0.1])


def test_a_score_that_leads_by_more_than_its_error_is_certain() -> None:
    x = torch.tensor([[0.0, -1e6, -2e6]], dtype=torch.float64)
    of_p, _ = softmax_errors(x, torch.full_like(x, 1e5), TINY)
    assert of_p.tolist() == [[0.0, 0.0, 0.0]]
    of_p, _ = softmax_errors(x, torch.full_like(x, 1e6), TINY)
    assert of_p.tolist() == [[1.0, 1.0, 1.0]]


def test_probabilities_that_may_be_flushed_to_zero_are_their_own_error() -> None:
    x = torch.log(torch.tensor([[1.0, 3 * TINY, 1.5 * TINY, TINY / 2]], dtype=torch.float64))
    error = torch.full_like(x, 1e-6)
    small = x.exp()[0, 2:].tolist()
    assert exponential_errors(x, error, TINY)[0, 2:].tolist() == small
    assert softmax_errors(x, error, TINY)[0][0, 2:].tolist() == small
    assert float(exponential_errors(x, error, TINY)[0, 1]) == pytest.approx(3e-6 * TINY)


@pytest.mark.parametrize("shared", [1, 8])
def test_keys_that_occur_several_times_round_alike(shared: int) -> None:
    """bfloat16 probabilities over pages that a sequence names ``shared`` times: the noise grows with their number."""
    generator = torch.Generator().manual_seed(0)
    pages, size, dim = 4, 16, 32
    caches = [torch.randn(pages, size, 1, dim, generator=generator) for _ in range(2)]
    q = torch.randn(64, 1, dim, generator=generator)
    length = pages * shared * size
    tensors = {
        "q": q,
        "k_cache": caches[0],
        "v_cache": caches[1],
        "cu_seqlens_q": torch.tensor([0, 64], dtype=torch.int32),
        "seq_lens": torch.tensor([length], dtype=torch.int32),
        "block_table": torch.arange(pages, dtype=torch.int32).repeat(shared).reshape(1, -1),
        "sinks": None,
    }
    options = {"max_seqlen_q": 64, "max_seqlen_k": length, "scale": None, "causal": False, "window": (-1, -1)}
    options["softcap"] = 0.0
    tensors = {n: t.bfloat16() if t is not None and t.is_floating_point() else t for n, t in tensors.items()}
    dtypes = {n: t.dtype for n, t in tensors.items() if t is not None}
    operands = {n: upcast(t) for n, t in tensors.items()}
    op = OPS["paged_attention"]
    exact = op.reference(*operands.values(), **options)
    (allowance,) = allowances(op, operands, dtypes, options, (exact,))
    k, v = (operands[n].flatten(0, 1)[:, 0].repeat(shared, 1) for n in ("k_cache", "v_cache"))
    p = torch.softmax(operands["q"][:, 0] @ k.T / math.sqrt(dim), -1)
    got = (p.bfloat16().double() @ v).unsqueeze(1).bfloat16()
    errors, findings = compare("out", got, exact, allowance, UNIT)
    assert findings == []
    independent = 2.5 * (p.square() @ v.square()).sqrt().unsqueeze(1)
    assert torch.allclose(allowance.noise, math.sqrt(shared) * independent + exact.abs())
    assert errors.element > 0.3


def test_merging_with_an_infinite_lse_has_a_bound() -> None:
    case = "f32,batch=2,seq=5,heads=2,value_dim=8,@data=lse_a,@probe=inf"
    arguments = make_arguments(parse_case("merge_attention_states_backward", case), CPU)
    arguments.tensors["lse_a"][0, 0, 0] = math.inf
    op = OPS["merge_attention_states_backward"]
    operands = {n: upcast(t) for n, t in arguments.tensors.items()}
    dtypes = {n: t.dtype for n, t in arguments.tensors.items()}
    exact = expected_results(op, arguments, ())
    found = allowances(op, operands, dtypes, arguments.options, exact)
    assert all(bool(torch.as_tensor(a.magnitude).isfinite().all()) for a in found)


# An op that nobody has derived


def test_perturbation_bounds_what_is_not_derived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(DERIVATIONS, "linear")
    arguments, exact, (allowance,) = held("f32,tokens=40,k=160,n=24", "linear")
    right = opmux.linear.reference(*arguments.tensors.values())
    errors, findings = compare("out", right, exact[0], allowance, UNIT)
    assert findings == []
    assert errors.element < 0.5
    narrow = opmux.linear.reference(*(t.half().float() for t in arguments.tensors.values()))
    assert compare("out", narrow, exact[0], allowance, UNIT)[0].element > 1


def test_a_derivation_sees_finite_operands() -> None:
    seen: list[Given] = []

    def derivation(given: Given) -> list[Allowance]:
        seen.append(given)
        return [Allowance(torch.zeros_like(given.expected[0]))]

    op = opmux.rms_norm.op
    x = torch.tensor([[1.0, math.nan], [math.inf, 2.0]], dtype=torch.float64)
    tensors = {"x": x, "weight": torch.ones(2, dtype=torch.float64)}
    kept = DERIVATIONS["rms_norm"]
    DERIVATIONS["rms_norm"] = derivation
    try:
        dtypes = dict.fromkeys(tensors, torch.float16)
        allowances(op, tensors, dtypes, {"eps": 1e-6, "weight_offset": 0.0}, (x,))
    finally:
        DERIVATIONS["rms_norm"] = kept
    (given,) = seen
    assert given.sixteen
    assert given["x"].tolist() == given.expected[0].tolist() == [[1.0, 0.0], [0.0, 2.0]]
    assert given.raw["x"] is x


def test_what_is_kept_in_float16_may_be_as_coarse_as_its_subnormals() -> None:
    values = torch.tensor([0.0, 2.0**-30, -(2.0**-20), 2.0**-16, -0.5], dtype=torch.float64)
    parts = (OPS["attention"], {}, {}, (), True, {})
    assert Given(*parts).kept(values).tolist() == [0.0, 2.0**-30, 2.0**-20, 2.0**-16, 0.5]
    assert Given(*parts, half=True).kept(values).tolist() == [0.0, 2.0**-16, 2.0**-16, 2.0**-16, 0.5]
