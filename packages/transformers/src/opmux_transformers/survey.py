"""The survey of a model before anything is changed: what its modules turn out to be, one kind after the other."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from opmux_transformers import agreement, block, decode, find_attention, gate, norm, rope
from opmux_transformers.foreign import whose_class
from opmux_transformers.undo import Patch


@dataclass
class Found:
    """What the modules of a model turned out to be, by path."""

    norms: dict[str, norm.Norm] = field(default_factory=dict)
    gates: dict[str, gate.Gate] = field(default_factory=dict)
    tables: dict[str, rope.Tables] = field(default_factory=dict)
    attentions: dict[str, find_attention.Attention] = field(default_factory=dict)
    ropes: dict[str, rope.Rope] = field(default_factory=dict)
    attended: set[str] = field(default_factory=set)
    decodings: dict[str, decode.Decoding | None] = field(default_factory=dict)
    blocks: dict[str, block.Block] = field(default_factory=dict)
    strangers: dict[str, nn.Module] = field(default_factory=dict)


def survey(model: nn.Module, modules: dict[str, nn.Module], patch: Patch) -> Found:
    """Judge every module of a model; what is left alone is taken down in the patch's report."""
    dtype = _activation_dtype(model)
    found = Found()
    _norms(modules, dtype, found, patch)
    _gates(modules, dtype, found, patch)
    _attention(modules, dtype, found, patch)
    _residuals(modules, found, patch)
    return found


def _activation_dtype(model: nn.Module) -> torch.dtype:
    """The dtype of what flows through the model: that of its first matrix of floating numbers."""
    for parameter in model.parameters():
        if parameter.ndim >= 2 and parameter.dtype in agreement.TOLERANCES:
            return parameter.dtype
    return torch.float32


def _norms(modules: dict[str, nn.Module], dtype: torch.dtype, found: Found, patch: Patch) -> None:
    known: dict[Any, norm.Norm | str] = {}
    for path, module in modules.items():
        if norm.weight_is_computed(module):
            reason = "its weight is computed in every call, or is no parameter"
            patch.report.add("norm", path, reason=reason, class_name=type(module).__name__)
        if not norm.is_candidate(module):
            continue
        result = whose_class(path, modules)
        if result is None:
            result = _once(known, module, lambda module=module: norm.find_norm(module, dtype))
        _note(patch, "norm", path, module, result, "rms_norm", found.norms)


def _gates(modules: dict[str, nn.Module], dtype: torch.dtype, found: Found, patch: Patch) -> None:
    known: dict[Any, gate.Gate | str] = {}
    for path, module in modules.items():
        if any(p.ndim == 3 and min(p.shape) > 1 for p in module._parameters.values() if p is not None):
            reason = "a mixture of experts holds its weights together; only dense MLPs are replaced"
            patch.report.add("experts", path, reason=reason, class_name=type(module).__name__)
        if not gate.layouts(module):
            continue
        result = whose_class(path, modules)
        if result is None:
            result = _once(known, module, lambda module=module: gate.find_gate(module, dtype))
        op = result.op if isinstance(result, gate.Gate) else ""
        _note(patch, "gate", path, module, result, op, found.gates)


def _once(known: dict[Any, Any], module: nn.Module, judge: Any) -> Any:
    """Judge one of all modules that differ in nothing but the values of their tensors."""
    key = agreement.signature_of(module)
    if key not in known:
        known[key] = judge()
    return known[key]


def _note(patch: Patch, kind: str, path: str, module: nn.Module, result: Any, op: str, found: dict[str, Any]) -> None:
    """Take a finding down, unless the kind is not wanted."""
    name = type(module).__name__
    if isinstance(result, str):
        patch.report.add(kind, path, reason=result, class_name=name)
    elif not patch.options[kind]:
        patch.report.add(kind, path, reason=f"not asked for: {kind}=False", class_name=name)
    else:
        found[path] = result
        patch.report.add(kind, path, op, class_name=name)


def _attention(modules: dict[str, nn.Module], dtype: torch.dtype, found: Found, patch: Patch) -> None:
    candidates = {path: m for path, m in modules.items() if find_attention.is_candidate(m)}
    for path, module in modules.items():
        tables = rope.find_tables(path, module, dtype)
        if tables is not None:
            found.tables[path] = tables
    known: dict[Any, find_attention.Attention] = {}
    for path, module in candidates.items():
        tables = nearest(path, found.tables)
        maker = modules[tables.path] if tables else None
        layer = (_layer_kind(module), tables)
        key = (agreement.signature_of(module), layer)
        if (foreign := whose_class(path, modules)) is not None:
            found.attentions[path] = find_attention.Attention(foreign, foreign)
            continue
        if key not in known:
            known[key] = find_attention.find_attention(module, tables, maker)
        found.attentions[path] = known[key]
    for path, module in candidates.items():
        result = found.attentions[path]
        if find_attention.rotates(module):
            _note(patch, "rope", path, module, result.rope, "apply_rope", found.ropes)
    found.strangers = find_attention.strangers(modules, candidates) if candidates else {}
    _share_masks(candidates, found)
    for path, module in candidates.items():
        result = found.attentions[path]
        kept: dict[str, Any] = {}
        _note(patch, "attention", path, module, result.reason or result, result.ops, kept)
        found.attended |= kept.keys()
    _decoding(modules, found)


def _decoding(modules: dict[str, nn.Module], found: Found) -> None:
    """Which attentions have a short way for one new token."""
    known: dict[Any, decode.Decoding | None] = {}
    for path in found.attended & found.ropes.keys():
        module, tables = modules[path], nearest(path, found.tables)
        if tables is None or not found.attentions[path].paged:
            continue
        norms = {n: found.norms[f"{path}.{n}"] for n, _ in module.named_children() if f"{path}.{n}" in found.norms}
        key = (agreement.signature_of(module), _layer_kind(module), tuple(norms.items()))
        if key not in known:
            with torch.no_grad():
                angles = rope.make(modules[tables.path], find_attention.kind_of(tables, module), 7, torch.float32)
            known[key] = decode.find_decoding(module, found.ropes[path], norms, angles)
        found.decodings[path] = known[key]


def _layer_kind(module: nn.Module) -> Any:
    """What kind of layer a module belongs to, where the configuration names kinds."""
    kinds, index = getattr(module.config, "layer_types", None), getattr(module, "layer_idx", None)
    return kinds[index] if kinds is not None and index is not None else None


def nearest(path: str, tables: dict[str, rope.Tables]) -> rope.Tables | None:
    """The tables whose module lies nearest above a path."""

    def shared(other: str) -> int:
        parent = other.rpartition(".")[0]
        return len(parent) if not parent or path.startswith(f"{parent}.") else -1

    best = max(tables, key=shared, default=None)
    return tables[best] if best is not None and shared(best) >= 0 else None


def _share_masks(candidates: dict[str, nn.Module], found: Found) -> None:
    """Layers of one configuration share their masks: all of them change their attention, or none does."""
    culprits = {id(m.config): f"{path}, which does not ask the registry" for path, m in found.strangers.items()}
    for path, module in candidates.items():
        if found.attentions[path].reason:
            culprits.setdefault(id(module.config), f"{path}, whose attention is left")
    for path, module in candidates.items():
        result = found.attentions[path]
        culprit = culprits.get(id(module.config))
        if culprit is not None and not result.reason:
            reason = f"it shares its masks with {culprit}"
            found.attentions[path] = find_attention.Attention(reason, result.rope)


def _residuals(modules: dict[str, nn.Module], found: Found, patch: Patch) -> None:
    known: dict[Any, block.Block | str] = {}
    for path, attention_path in _layers(found.attentions):
        layer, child = modules[path], attention_path.rpartition(".")[2]
        norms = {n: found.norms[f"{path}.{n}"] for n, _ in layer.named_children() if f"{path}.{n}" in found.norms}
        tables = nearest(attention_path, found.tables)
        rotates = tables is not None or find_attention.rotates(modules[attention_path])
        if not rotates and not norms:
            continue  # nothing that could be fused, as in BERT
        if not patch.options["residual"]:
            result: block.Block | str = "not asked for: residual=False"
        elif (foreign := whose_class(path, modules)) is not None:
            result = foreign
        elif not rotates:
            result = (
                "its attention calls no function (q, k, cos, sin), and only layers whose attention does are looked at"
            )
        elif tables is None:
            result = "nothing was found that makes the cos and sin to check it with"
        else:
            key = (agreement.signature_of(layer), _layer_kind(modules[attention_path]), tuple(norms.items()))
            if key not in known:
                known[key] = _try_block(layer, modules[attention_path], child, norms, tables, modules[tables.path])
            result = known[key]
        if isinstance(result, str):
            patch.report.add("residual", path, reason=result, class_name=type(layer).__name__)
            continue
        patch.report.add("residual", path, "add_rms_norm", class_name=type(layer).__name__)
        found.blocks[path] = result


def _layers(attentions: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The paths of the layers that hold an attention, with the attention's."""
    for path in attentions:
        parent, _, _ = path.rpartition(".")
        if parent:
            yield parent, path


def _try_block(
    layer: nn.Module, inner: nn.Module, child: str, norms: dict[str, norm.Norm], tables: rope.Tables, maker: nn.Module
) -> block.Block | str:
    """Judge a layer under transformers' eager attention, which needs nothing but a mask."""
    own, seq = vars(inner)["config"], 6
    like = agreement.like(layer)
    if agreement.on_meta(layer):
        return "it is on the meta device, where nothing can be checked: load the weights first"
    hidden = agreement.random(2, seq, own.hidden_size, like=like, dtype=torch.float32)
    future = torch.ones(seq, seq, dtype=torch.bool, device=like.device).triu(1)
    mask = torch.zeros(2, 1, seq, seq, device=like.device).masked_fill(future, torch.finfo(torch.float32).min)
    kind = find_attention.kind_of(tables, inner)
    with torch.no_grad():
        angles: tuple[Tensor, Tensor] = rope.make(maker, kind, seq, torch.float32)
    given = {"hidden_states": hidden, "attention_mask": mask, "position_embeddings": angles}
    given |= find_attention.positions(inner, seq, like.device)
    vars(inner)["config"] = find_attention.with_attention(own, "eager")
    try:
        return block.find_block(layer, child, norms, given)
    finally:
        vars(inner)["config"] = own
