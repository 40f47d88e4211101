"""The names in generated code: all of them are in the table, bound, and refused where a definition uses them."""

import ast
import dis
import functools
import inspect
import re
from types import CodeType
from typing import Any

import pytest
import torch
from backends import backends, implementation
from torch import Tensor

import opmux
from opmux import plugin as p
from opmux.callpath import codegen, comparisons, names, wrappers
from opmux.callpath import op as op_module
from opmux.callpath.op import OPS, Op
from opmux.declared import constraints, features, functions, memory_constraints
from opmux.declared.functions import Name
from opmux.dtypes import Real
from opmux.errors import BuildDeferred
from opmux.plugin import define_op
from opmux.signatures.signature import read_signature
from opmux.torch_bridge import flops, torch_library

WRITERS = (codegen, comparisons, wrappers, features, constraints, memory_constraints, torch_library, flops)
RETRY = (BuildDeferred, lambda run, *tensors, **options: None)
TABLE = {n.text for group in (names.SHARED, names.GIVEN, names.WRITTEN, names.ENCLOSED) for n in group}


def globals_read(code: CodeType) -> set[str]:
    """The globals that a function, and those written inside of it, read."""
    read = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return read.union(*(globals_read(c) for c in code.co_consts if isinstance(c, CodeType)))


def enclosed(op: Op) -> list[CodeType]:
    """The small functions, each compiled in a namespace of its own."""
    signature, run = op.signature, lambda *t, **o: None
    handled = []

    def handler(*arguments):
        handled.append(inspect.currentframe().f_back.f_code)

    torch_library.gathering(signature, handler)(*signature.tensors, **{o.name: () for o in signature.options})
    return [
        wrappers.make_bound(
            signature, run, {o.name: o.default for o in signature.options}, frozenset(), RETRY
        ).__code__,
        wrappers.make_wrapper(signature, True, run).__code__,
        *(wrappers.make_writer(signature, takes, run).__code__ for takes in (True, False) if signature.takes_out),
        flops.formula(op).__code__,
        *handled,
    ]


def into_of(op: Op) -> list[CodeType]:
    """The function for calls with ``out=``, compiled as the first such call does it."""
    if not op.signature.takes_out:
        return []
    name = names.into_name(op._versions)
    if isinstance(op.namespace[name], functools.partial):
        with pytest.raises(TypeError, match=f"{name}.. missing .* required positional"):
            op.namespace[name]()
    return [op.namespace[name].__code__]


def of_the_namespace(op: Op) -> list[CodeType]:
    """The functions that run in the op's own namespace."""
    return [
        *into_of(op),
        op.public.__code__,
        op.namespace["_traced"].__code__,
        op.state.key_of.__code__,
        torch_library.fits(op).__code__,
    ]


@pytest.mark.parametrize("name", sorted(OPS))
def test_what_generated_code_reads_is_in_the_table_and_bound(name):
    op = OPS[name]
    version = op._versions
    own = {names.into_name(version), *map(names.absent_name, op.absent)}
    own |= {name for calls in op._guarded(version) for name in (calls.front, calls.other)}
    for code in of_the_namespace(op):
        read = globals_read(code) - names.BUILTINS
        assert read <= TABLE | own
        assert read - {"_key_of", "_fits"} <= op.namespace.keys()
    for code in enclosed(op):
        options = {names.option_name(o.name) for o in op.signature.options}
        assert globals_read(code) - names.BUILTINS <= TABLE | options


@pytest.mark.parametrize("name", sorted(OPS))
def test_local_variables_are_arguments_dims_and_those_of_the_table(name):
    op = OPS[name]
    signature = op.signature
    shapes = "|".join(names.shape_name(t.name) for t in signature.tensors)
    known = {t.name for t in signature.tensors} | {o.name for o in signature.options} | set(signature.binders)
    known |= set(names.results(signature)) if signature.takes_out else set()
    for code in of_the_namespace(op):
        local = set(code.co_varnames) - known - set(names.PARAMETERS) - set(names.VARIABLES)
        assert {v for v in local if not re.fullmatch(rf"({shapes})(_\d+)?|_(last|shift)_of_\w+", v)} == set()


def test_what_features_read_is_in_the_table():
    rules = (p.Bucket("tokens", per_octave=4), p.Bucket("hidden"), p.Alignment("x"), p.StrideOrder("weight"))
    layouts = (p.Aligned("x"), p.MaxNumel("x"), p.Contiguous("x"), p.UnitStride("weight"), p.MultipleOf("tokens", 4))
    blocks = p.ScaleBlock("x", (1, 128), scale="weight")
    read = set()
    with backends(a=implementation(lambda *t, **o: t[0], features=rules, when=(*layouts, blocks))):
        for code in of_the_namespace(opmux.rms_norm.op):
            read |= globals_read(code)
        assert {"_prod", "_aligned", "_span", "_stride_order", "_has_blocks", "_deterministic", "max"} <= read
        version = opmux.rms_norm.op._versions
        fronts = {n for calls in opmux.rms_norm.op._guarded(version) for n in (calls.front, calls.other)}
        fronts.add(names.into_name(version))
    assert read - fronts <= TABLE | names.BUILTINS


def literals(module: Any) -> set[str]:
    """The words in the strings of a module, without docstrings."""
    tree = ast.parse(inspect.getsource(module))
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in statements)
    return {word for text in texts if isinstance(text, str) for word in re.findall(r"(?<![\w.])_\w+", text)}


@pytest.mark.parametrize("writer", WRITERS, ids=lambda module: module.__name__)
def test_what_writes_code_takes_the_names_from_the_table(writer):
    """A name written out would not follow the table."""
    assert literals(writer) & TABLE == set()


def test_every_name_of_the_table_is_used_and_has_a_meaning():
    groups = (names.SHARED, names.GIVEN, names.WRITTEN, names.ENCLOSED)
    given = {n.text: key for module in (names, functions) for key, n in vars(module).items() if isinstance(n, Name)}
    assert set(given) == TABLE
    used = set(re.findall(r"\b[A-Z][A-Z_]+\b", "".join(map(inspect.getsource, (*WRITERS, op_module)))))
    apart = {"torch", "_deterministic"}  # among defaults; through `names.DETERMINISTIC`
    assert {key for text, key in given.items() if text not in apart} <= used
    assert all(n.meaning for group in groups for n in group)
    assert len(TABLE) == sum(map(len, groups))


def test_binding_gives_every_global_its_value():
    namespace, absent = {}, torch.empty(0)
    names.bind(namespace, {"bias": absent}, slow=len, recover=repr, deterministic=bool)
    assert set(namespace) == {n.text for n in (*names.SHARED, *names.GIVEN)} | {"_absent_bias"}
    assert all(value is not None for value in namespace.values())
    assert namespace["_absent_bias"] is absent
    assert (namespace["_slow"], namespace["_recover"], namespace["_deterministic"]) == (len, repr, bool)


def annotated(**annotations):
    """The signature of a definition with these arguments: tensors where shaped, else keyword-only ints."""
    kinds = inspect.Parameter
    made = [
        kinds(n, kinds.POSITIONAL_OR_KEYWORD if hasattr(a, "dim_str") else kinds.KEYWORD_ONLY, annotation=a)
        for n, a in annotations.items()
    ]
    return inspect.Signature(made, return_annotation=Real[Tensor, "n"])


X = Real[Tensor, "n"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *((name, {"x": X, name: int}) for name in (*names.VARIABLES, *names.PARAMETERS, *sorted(names.BUILTINS))),
        *((name, {"x": Real[Tensor, f"n {name}"]}) for name in ("runs", "error", "out", "max", "lambda")),
        ("runs", {"x": X, "runs": X}),
        ("s_x", {"x": X, "s_x": X}),
        ("s_x_0", {"x": Real[Tensor, "2*n n"], "s_x_0": int}),
        ("_hidden", {"x": X, "_hidden": int}),
    ],
)
def test_a_definition_may_not_use_a_name_of_generated_code(name, arguments):
    signature = read_signature("planted", annotated(**arguments))
    with pytest.raises(TypeError, match=f"^planted: `{name}` is a reserved name; call it something else$"):
        names.check_names(signature)


def test_an_op_without_an_out_form_may_have_an_argument_called_out():
    names.check_names(read_signature("planted", annotated(x=X, out=X)))


def test_a_definition_with_a_reserved_name_is_refused_and_not_kept():
    def planted_op(x: Real[Tensor, "runs"]) -> Real[Tensor, "runs"]:
        return x

    with pytest.raises(TypeError, match="planted_op: `runs` is a reserved name; call it something else"):
        define_op(planted_op)
    assert "planted_op" not in OPS
