"""The op object and its plan table: which calls share a plan, and how far the tables grow."""

import torch
from backends import backends, implementation
from planted import W, X, filled, ones
from torch import nn

import opmux
from opmux.callpath.op import OPS
from opmux.callpath.plans import Front, PlanTable
from opmux.plugin import AtMost, Bucket, Exact, MultipleOf


def test_a_target_gets_the_ops_own_arguments():
    seen = []

    def target(*tensors, **options):
        seen.append((tensors, options))
        return torch.empty_like(tensors[0])

    with backends(a=implementation(target, op="layer_norm")):
        opmux.layer_norm(X, W)
        opmux.layer_norm(X, W, W, eps=1e-3)
    assert [(len(t), t[2] is None, o) for t, o in seen] == [(3, True, {"eps": 1e-5}), (3, False, {"eps": 1e-3})]


def test_calls_with_equal_features_share_a_plan():
    with backends(a=implementation(ones, when=(MultipleOf("hidden", 8), AtMost("tokens", 64)))):
        for rows in range(1, 40):
            opmux.rms_norm(torch.randn(rows, 8), W)
        assert len(opmux.rms_norm.op.table) == 1
        assert opmux.rms_norm(torch.randn(65, 8), W).shape == (65, 8)
        assert len(opmux.rms_norm.op.table) == 2
        assert len(opmux.rms_norm.op.front[2]) == 2


def test_a_call_that_names_its_backend_goes_the_direct_way_too(monkeypatch):
    """It is checked in full once, and has plans of its own behind the same guard."""
    with backends(a=implementation(filled(1.0)), b=implementation(filled(2.0))), torch.no_grad():
        assert opmux.rms_norm(X, W)[0, 0] == 1.0
        assert opmux.rms_norm(X, W, backend="b")[0, 0] == 2.0
        assert opmux.rms_norm(X, W, backend="a")[0, 0] == 1.0
        monkeypatch.setattr("opmux.torch_bridge.routing.check_call", None)
        entry = opmux.rms_norm.op.front
        for backend, value in [("b", 2.0), (None, 1.0), ("a", 1.0), ("b", 2.0)]:
            assert opmux.rms_norm(torch.randn(7, 8), W, backend=backend)[0, 0] == value
        assert opmux.rms_norm.op.front is entry


def test_plans_of_named_backends_are_forgotten_with_the_others():
    with backends(a=implementation(filled(1.0)), b=implementation(filled(2.0))), torch.no_grad():
        op = opmux.rms_norm.op
        opmux.rms_norm(X, W, backend="b")
        (key,) = op.table
        forced = op.front[2].forced("b")
        assert len(forced) == 1
        assert forced.plan_of(key).implementation.backend == "b"
        op.forget_plan(key)
        assert len(forced) == len(op.table) == 0
        assert opmux.rms_norm(X, W, backend="b")[0, 0] == 2.0
        assert len(forced) == 1


def test_as_many_names_have_plans_as_fit(monkeypatch):
    monkeypatch.setattr(Front, "NAMES", 2)
    made = {name: implementation(filled(float(n))) for n, name in enumerate("abcd")}
    with backends(**made), torch.no_grad():
        for _ in range(2):
            for n, name in enumerate("abcd"):
                assert opmux.rms_norm(X, W, backend=name)[0, 0] == n
        assert len(opmux.rms_norm.op.front[2]._forced) == 2


def test_many_shapes_grow_no_table_beyond_the_feature_keys():
    with backends(a=implementation(ones, when=(MultipleOf("hidden", 8),), features=(Bucket("tokens"),))):
        weights = {hidden: torch.randn(hidden) for hidden in range(1, 101)}
        for rows in range(100):
            for hidden, weight in weights.items():
                opmux.rms_norm(torch.empty(rows, hidden), weight)
        # 2 answers to hidden % 8, 8 buckets of 0..99 (0 counts as 2)
        assert len(opmux.rms_norm.op.table) == 16
        assert len(opmux.rms_norm.op.front[2]) == 16


def test_a_plan_table_is_bounded(monkeypatch):
    monkeypatch.setattr(PlanTable, "LIMIT", 8)
    with backends(a=implementation(ones, features=(Exact("hidden"),))):
        for hidden in range(1, 50):
            opmux.rms_norm(torch.empty(2, hidden), torch.empty(hidden))
        table = opmux.rms_norm.op.table
        assert len(table) == len(table.plans) == 8
        assert len(opmux.rms_norm.op.front[2]) == 8


def test_more_kinds_of_calls_than_guards(monkeypatch):
    """Ranks and dtypes beyond the guards kept at a time still get the right plan."""
    monkeypatch.setattr(type(opmux.rms_norm.op), "FRONTS", 3)
    for _ in range(3):
        for rank in range(1, 7):
            for dtype in (torch.float32, torch.bfloat16, torch.float64):
                x, w = torch.randn([2] * rank + [8]).to(dtype), torch.randn(8)
                assert torch.equal(opmux.rms_norm(x, w), opmux.rms_norm.reference(x, w))


def test_an_op_is_a_function_with_its_own_signature_and_docs():
    import inspect

    for op in OPS.values():
        signature = inspect.signature(op.public)
        added = ("backend", "out") if op.signature.takes_out else ("backend",)
        assert [p for p in signature.parameters if p not in added] == [
            *(t.name for t in op.signature.tensors),
            *(o.name for o in op.signature.options),
        ] or op.is_backward
        assert op.public.__doc__
        assert op.public.__name__ == op.name
        assert "backend" in signature.parameters
    assert inspect.signature(opmux.rms_norm).parameters["eps"].default == 1e-6


Q = torch.randn(2, 5, 4, 8)


def test_a_plan_made_without_gradients_does_not_drop_them_later():
    """Evaluation first, training afterwards, on the same parameters."""
    weight = nn.Parameter(W.clone())
    with backends(a=implementation(filled(7.0))):
        for _ in range(2):
            with torch.no_grad():
                assert not opmux.rms_norm(X, weight).requires_grad
            result = opmux.rms_norm(X, weight)
            assert result.requires_grad
            assert (result == 7).all()


def test_an_absent_optional_tensor_keeps_its_guard():
    weight = torch.randn(3, 8)
    opmux.linear(X, weight)
    entry = opmux.linear.op.front
    for _ in range(3):
        opmux.linear(X, weight)
    assert opmux.linear.op.front is entry
    opmux.linear(X, weight, torch.randn(3))
    opmux.linear(X, weight)
    assert torch.equal(opmux.linear(X, weight), opmux.linear.reference(X, weight))


def test_one_tensor_given_twice_has_a_guard_of_its_own():
    opmux.add_rms_norm(X, X, W)
    entry = opmux.add_rms_norm.op.front
    opmux.add_rms_norm(X, X, W)
    assert opmux.add_rms_norm.op.front is entry
    _, total = opmux.add_rms_norm(X, X, W)
    assert torch.equal(total, X + X)


def test_a_plan_made_without_autocast_is_not_used_under_it():
    """A target that computes with torch ops is plain Python: autocast must be off around it, and costs nothing else."""
    weight = torch.randn(3, 8)
    with backends(a=implementation(lambda x, w, bias, out_dtype: x @ w.T, op="linear")):
        for _ in range(3):
            assert opmux.linear(X, weight).dtype == torch.float32
            with torch.autocast("cpu", torch.bfloat16):
                assert (X @ weight.T).dtype == torch.bfloat16
                assert opmux.linear(X, weight).dtype == torch.float32
                assert opmux.linear(X, weight, backend="a").dtype == torch.float32
                assert torch.ops.opmux.linear(X, weight).dtype == torch.float32
                assert opmux.linear.bind(X, weight)(X, weight).dtype == torch.float32
        assert opmux.quarantined() == ()


def test_an_old_front_does_not_come_back_after_a_change_of_policy():
    with backends(a=implementation(filled(1.0))):
        opmux.rms_norm(X, W)
        op = opmux.rms_norm.op
        stale = op.namespace[f"_other_front_{op._versions}"]
        opmux.policy.disable("a")
        stale(X, W)
        assert opmux.rms_norm(X, W).sum() != 32


def test_a_call_without_scales_has_a_guard_of_its_own():
    """It leaves them out of the guard and the key, and so pays nothing for what it is not given."""
    op = opmux.write_kv_cache.op
    k, cache, slots = torch.randn(3, 2, 8), torch.zeros(2, 16, 2, 8), torch.arange(3)
    brief = f"_brief_front_{op._versions}"
    opmux.write_kv_cache(k, k.clone(), cache, cache.clone(), slots)
    entry = op.namespace[brief]
    assert entry[2] is not None
    codes = [torch.zeros(2, 16, 2, 8, dtype=torch.int8) for _ in range(2)]
    opmux.write_kv_cache(k, k.clone(), *codes, slots, torch.tensor([0.1]), torch.tensor([0.2]))
    assert op.namespace[brief] is entry
    assert op.front[2] is not None
    assert len(op.front[2]) == 1
    before = [code.clone() for code in codes]
    opmux.write_kv_cache(k, k.clone(), *codes, slots)
    assert op.namespace[brief] is not entry
    assert not any(torch.equal(*pair) for pair in zip(before, codes, strict=True))
    op.forget_plan(next(iter(op.table)))
    op.drop_plans()
    assert op.namespace[brief][2] is None
