"""Models for the tests, and what a model looks like from outside: what a patch must change and restore."""

import copy
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from opmux_transformers import check
from opmux_transformers.configs import FAMILIES, SIZES, small_config

__all__ = ["SIZES"]

NAMES = tuple(FAMILIES)
HAS_GATE = tuple(name for name in NAMES if name != "gpt_oss")
CLOSE = {"rtol": 1e-4, "atol": 2e-5}
GREEDY: dict[str, Any] = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False}


def model(name: str = "llama", dtype: torch.dtype = torch.float32, **changed: Any) -> Any:
    """A small random model of a family; keywords change its configuration."""
    config = small_config(name)
    for key, value in changed.items():
        setattr(config, key, value)
    return check.build(config, dtype)


def pair(name: str = "llama", dtype: torch.dtype = torch.float32, **changed: Any) -> tuple[Any, Any]:
    """The same model twice: one to leave as it is, one to patch."""
    plain = model(name, dtype, **changed)
    return plain, copy.deepcopy(plain)


def ids(seq: int = 12, batch: int = 2) -> Tensor:
    """Random tokens."""
    return torch.randint(3, 128, (batch, seq), generator=torch.Generator().manual_seed(5))


def logits(of: Any, tokens: Tensor, **keywords: Any) -> Tensor:
    """What a model gives, without gradients."""
    with torch.no_grad():
        return of(tokens, **keywords).logits


def greedy_by_steps(step: Any, tokens: Tensor, cache: Any, first: Any) -> Tensor:
    """The prompt and what follows it as in `GREEDY`: the prompt by ``first``, then one token at a time by ``step``."""
    new = logits(first, tokens, past_key_values=cache)[:, -1:].argmax(-1)
    found = [tokens, new]
    for _ in range(GREEDY["max_new_tokens"] - 1):
        new = logits(step, new, past_key_values=cache)[:, -1:].argmax(-1)
        found.append(new)
    return torch.cat(found, 1)


def looks(of: nn.Module) -> dict[str, Any]:
    """Every object that a patch may touch: each module's own attributes by identity, and the names of its class."""
    seen = {}
    for path, module in of.named_modules():
        seen[path] = (type(module), {key: id(value) for key, value in vars(module).items()})
        for key in ("_parameters", "_buffers"):
            seen[f"{path}.{key}"] = {name: id(value) for name, value in vars(module)[key].items()}
    return seen


def deep_looks(of: nn.Module) -> dict[str, Any]:
    """Everything that a module and its children hold: each object by identity, and what is in it bit by bit."""

    def inside(value: Any) -> Any:
        if isinstance(value, Tensor):
            return (
                value.dtype,
                tuple(value.shape),
                value._version,
                value.detach().double().nan_to_num().flatten().tolist(),
            )
        if isinstance(value, Mapping):
            return {key: seen(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple, set, deque)):
            return [seen(inner) for inner in value]
        if isinstance(value, transformers.PreTrainedConfig):
            return {key: seen(inner) for key, inner in vars(value).items()}
        return value if isinstance(value, (bool, int, float, str)) else None

    def seen(value: Any) -> tuple[Any, ...]:
        return type(value), None if isinstance(value, (bool, int, float, str)) else id(value), inside(value)

    return {
        path: (type(module), {name: seen(value) for name, value in vars(module).items()})
        for path, module in of.named_modules()
    }


def reasons(report: Any, kind: str) -> dict[str, str]:
    """Why each module was left that a report names for a kind."""
    return {row.module: row.reason for row in report.left(kind)}


def children(of: nn.Module, matches: Callable[[nn.Module], bool]) -> list[str]:
    """The paths of the modules that match."""
    return [path for path, module in of.named_modules() if matches(module)]
