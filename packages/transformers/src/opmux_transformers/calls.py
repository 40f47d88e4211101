"""Calls of child modules by the shortest path that gives the same result as calling them.

A module's ``__call__`` checks for hooks and looks up its forward, and a linear's forward looks up its parameters: this
takes more host time than many kernels take on the device. Each call checks again, so that a child that is hooked,
wrapped, replaced or adapted after the patch is called as a module.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_module

from opmux.nn.quantization_choice import AS_TORCH
from opmux_transformers.vector import TORCHS, product

_CALL = nn.Module._wrapped_call_impl
_CALL_IMPL = nn.Module._call_impl
_is_compiling = torch.compiler.is_compiling
_eval_frame_callback = torch._C._dynamo.eval_frame.get_eval_frame_callback
_before_forward, _after_forward = torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks
_before_backward, _after_backward = torch_module._global_backward_pre_hooks, torch_module._global_backward_hooks


def all_are_watched() -> bool:
    """Whether every module has to be called as a module: something observes all calls, or torch.compile is at work."""
    return _is_compiling() or _dynamo_runs() or all_are_observed()


def _dynamo_runs() -> bool:
    """Whether Dynamo sees the frames that are called from here, as after a break in a compiled model's graph."""
    return callable(_eval_frame_callback())


def may_be_fed() -> bool:
    """Whether linears may be given codes without a call of each module: not after a break in a graph, where what runs
    now does not know which of the frames that it calls are traced."""
    return not all_are_observed() and (_is_compiling() or not _dynamo_runs())


def all_are_observed() -> bool:
    """Whether something observes the calls of all modules, so that none may be left out."""
    return bool(
        _before_forward
        or _after_forward
        or _before_backward
        or _after_backward
        or nn.Module.__call__ is not _CALL  # torch.fx, and other tracers
        or nn.Module._call_impl is not _CALL_IMPL
        or nn.Linear.__call__ is not _CALL
        or nn.Linear.forward is not TORCHS
    )


def linears_are_torchs() -> bool:
    """Whether a linear's forward is what torch defines, in this process."""
    return TORCHS is not None and nn.Linear.forward is TORCHS


def watched(module: nn.Module) -> bool:
    """Whether calling the module does more than run its forward; it then has to be called."""
    return bool(
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
        or module._compiled_call_impl is not None
    )


def computes(module: Any, forward: Callable[..., Any]) -> bool:
    """Whether calling a module only calls this function of opmux's."""
    own = module.__dict__.get("forward")
    same = getattr(own, "__func__", None) is forward and type(module).__call__ is _CALL
    return same and not watched(module)


def callee(module: Any) -> Any:
    """What to call for a module: the forward that was set on it, or the module. Not valid if `all_are_watched`."""
    forward = module.__dict__.get("forward")
    return module if forward is None or watched(module) or type(module).__call__ is not _CALL else forward


def call(module: Any, x: Tensor) -> Any:
    """The result of ``module(x)`` by the shortest path. Not valid if `all_are_watched`."""
    held = held_by(module)
    if held is None:
        return callee(module)(x)
    return (product if "forward" in module.__dict__ else functional.linear)(x, *held)


def held_by(module: Any) -> tuple[Tensor, Tensor | None] | None:
    """The weight and bias of a module that is a linear of torch's own and need not be called; None for any other."""
    if module.__class__ is nn.Linear and _is_torchs(module.__dict__.get("forward")) and not watched(module):
        parameters = module._parameters
        weight = parameters.get("weight")
        if weight is not None and "bias" in parameters:  # DataParallel replicas store their parameters differently
            return weight, parameters["bias"]
    return None


def _is_torchs(forward: Any) -> bool:
    """Whether a linear with this forward set on it computes what torch's own does."""
    return forward is None or bool(getattr(forward, AS_TORCH, False))


def call_as_module(module: Any, x: Tensor) -> Any:
    """Plain ``module(x)``."""
    return module(x)
