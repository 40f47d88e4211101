"""The names in generated code: what each one means, what it is bound to, and which names a definition may not use.

`codegen` writes the call path of an op, and the features that plugins declare write expressions into it. All of it
runs in the op's own namespace. Global names begin with an underscore; arguments and dims may not, so they cannot hide
a global. Local variables do not, so a definition may not use them.
"""

import keyword
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad, profiler

from opmux.declared.functions import FUNCTIONS, Name
from opmux.signatures.memory import separate
from opmux.signatures.signature import Signature

TORCH = Name("torch", "torch itself, for dtypes among the defaults", torch)
COMPILING = Name("_compiling", "whether Dynamo is tracing", torch.compiler.is_dynamo_compiling)
PROFILER = Name("_profiler", "torch.autograd.profiler, which knows whether a profiler is on", profiler)
DISPATCH_MODES = Name("_dispatch_modes", "how many dispatch modes are active", torch._C._len_torch_dispatch_stack)
FUNCTION_MODES = Name("_function_modes", "whether a function mode is active", torch._C._has_torch_function_unary)
FORWARD_AD = Name("_forward_ad", "torch.autograd.forward_ad, which knows its current level", forward_ad)
GRAD_ENABLED = Name("_grad_enabled", "whether gradients are recorded", torch.is_grad_enabled)
AUTOCAST = Name("_autocast", "whether autocast is on for any device", torch._C._is_any_autocast_enabled)
OPS = Name("_ops", "the registered ops, called under Dynamo", torch.ops.opmux)
SEPARATE = Name("_separate", "whether tensors that are written overlap no other", separate)

SHARED = (
    TORCH,
    COMPILING,
    PROFILER,
    DISPATCH_MODES,
    FUNCTION_MODES,
    FORWARD_AD,
    GRAD_ENABLED,
    AUTOCAST,
    OPS,
    SEPARATE,
    *FUNCTIONS,
)
"""Globals that mean the same in every op."""

SLOW = Name("_slow", "handles every call that the direct way does not take: explains, routes or plans")
RECOVER = Name("_recover", "handles an exception on the direct way: another backend, or the error explained")
IS_DETERMINISTIC = Name("_deterministic", "whether torch's deterministic mode is on")

GIVEN = (SLOW, RECOVER, IS_DETERMINISTIC)
"""Globals from modules above this one, given to `bind`."""

DETERMINISTIC = f"{IS_DETERMINISTIC}()"
"""The part of a key that says whether torch's deterministic mode is on."""

TRACED = Name("_traced", "what Dynamo sees: a call of the registered op")
KEY_OF = Name("_key_of", "the plan key of a call that does not come by the direct way")
FITS = Name("_fits", "whether shapes and flags are the signature's")

WRITTEN = (TRACED, KEY_OF, FITS)
"""Functions that `codegen` writes beside the op's own, which has the op's name."""

RUN = Name("_run", "in `bound`: the callable of a plan")
DEFERRED = Name("_deferred", "in `bound`: what a target raises that leaves a build to a helper process")
AGAIN = Name("_again", "in `bound`: runs the callable again, which then builds")
TARGET = Name("_target", "in `wrapper`: the target")
CONFIG = Name("_config", "in `wrapper`: its config")
BUMP = Name("_bump", "in `wrapper`: bumps the version of a tensor that was written")
HANDLER = Name("_handler", "in `gathered`: the kernel of a dispatch key")
COUNT = Name("_count", "in `formula`: counts the operations of a call")

ENCLOSED = (RUN, DEFERRED, AGAIN, TARGET, CONFIG, BUMP, HANDLER, COUNT)
"""Names in the small functions that are compiled in a namespace of their own, where they are bound."""

PARAMETERS = {
    "backend": "the backend asked for",
    "out": "where to write the results; an op without an `out=` form may have an argument of this name",
}
"""Parameters that every op's function adds to those of its definition."""

VARIABLES = {
    "same": "the guard asked first",
    "recorded": "whether gradients must be on or off for that guard to hold; None where no tensor requires one",
    "runs": "the plans behind a guard, by key",
    "error": "an exception on the direct way",
}
"""Local variables of the call path."""

BUILTINS = frozenset({"Exception", "bool", "len", "max", "tuple"})
"""Builtins that generated code reads."""


def absent_name(tensor: str) -> str:
    """The empty tensor that guards are given in place of this optional argument where it is absent."""
    return f"_absent_{tensor}"


def option_name(option: str) -> str:
    """In `bound`: the fixed value of an option."""
    return f"_option_{option}"


def result_name(output: str) -> str:
    """One tensor of a tuple given as ``out=``; it is also what the registered op calls it."""
    return f"out_{output}"


def results(signature: Signature) -> list[str]:
    """The tensors given as ``out=``: itself, or for several outputs those of the tuple."""
    if len(signature.outputs) == 1:
        return ["out"]
    return [result_name(output.name) for output in signature.outputs]


def made_name(output: str) -> str:
    """In `wrapper`: one result of a target, which is copied into the caller's tensor."""
    return f"_made_{output}"


def shape_name(tensor: str) -> str:
    """The local variable with a tensor's shape."""
    return f"s_{tensor}"


def size_name(shape: str, position: int) -> str:
    """The local variable with one size of the shape in this variable, where that size alone is not a dim's value."""
    return f"{shape}_{position}"


def front_name(version: int) -> str:
    """The guard asked first, with its plans: one name for each version of the code, whose keys differ."""
    return f"_front_{version}"


def other_front_name(version: int) -> str:
    """Finds or makes the plans of calls that this version's first guard does not know."""
    return f"_other_front_{version}"


def brief_front_name(version: int) -> str:
    """The same as `front_name`, for calls without a scale: a guard of fewer tensors, and shorter keys."""
    return f"_brief_front_{version}"


def other_brief_front_name(version: int) -> str:
    """The same as `other_front_name`, for calls without a scale."""
    return f"_other_brief_front_{version}"


def into_name(version: int) -> str:
    """Handles calls with ``out=``: this version's code for them, which is written when the first one comes."""
    return f"_into_{version}"


def into_front_name(version: int) -> str:
    """The same as `front_name`, for calls with ``out=``: a guard of the tensors that are written, too."""
    return f"_into_front_{version}"


def other_into_front_name(version: int) -> str:
    """The same as `other_front_name`, for calls with ``out=``."""
    return f"_other_into_front_{version}"


TUNED_CELL = "_tuned_cell_"
"""How the names of functions that place a call among the tuned records begin."""


def tuned_cell_name(number: int) -> str:
    """Places a call among tuned records: one name for each set of records, since old code may still be running."""
    return f"{TUNED_CELL}{number}"


def bind(
    namespace: dict[str, Any],
    absent: Mapping[str, Tensor],
    *,
    slow: Callable[..., Any],
    recover: Callable[..., Any],
    deterministic: Callable[[], bool],
) -> None:
    """Bind the globals of an op's generated code, except those that are replaced with its plans and records.

    Args:
        namespace: the namespace that the op's code runs in.
        absent: optional tensor argument -> its stand-in where it is absent.
        slow: the value of ``_slow``.
        recover: the value of ``_recover``.
        deterministic: the value of ``_deterministic``.
    """
    namespace.update({name.text: name.value for name in SHARED})
    namespace.update({absent_name(tensor): stand_in for tensor, stand_in in absent.items()})
    namespace.update({SLOW.text: slow, RECOVER.text: recover, IS_DETERMINISTIC.text: deterministic})


def check_names(signature: Signature) -> None:
    """Refuse a definition with an argument or dim whose name generated code needs for itself, or cannot write.

    Raises:
        TypeError: names the op and the reserved name.
    """
    arguments = [*(t.name for t in signature.tensors), *(o.name for o in signature.options)]
    reserved = {"backend", *VARIABLES, *BUILTINS}
    if signature.takes_out:
        reserved |= {"out", *results(signature)}
    for tensor in signature.tensors:
        shape = shape_name(tensor.name)
        reserved |= {shape, *(size_name(shape, position) for position in range(len(tensor.shape.dims)))}
    for name in (*arguments, *signature.binders):
        if name in reserved or keyword.iskeyword(name) or name.startswith("_"):
            raise TypeError(f"{signature.name}: `{name}` is a reserved name; call it something else")
