"""`patch` and `unpatch` of a model: what each finding of the survey changes, and what is to be known besides."""

import copy
import itertools
import sys
from dataclasses import replace
from typing import Any

import transformers
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from opmux.errors import InvalidArgument
from opmux_transformers import attention, block, decode, find_attention, gate, generation, masks, norm, rope
from opmux_transformers.foreign import whose_forward
from opmux_transformers.pickled import survive_pickle
from opmux_transformers.replicas import follow_replicas
from opmux_transformers.reporting import LEFT, REPLACED, Report, Row
from opmux_transformers.survey import Found, nearest, survey
from opmux_transformers.undo import STATE, Patch, StandIn, state_of
from opmux_transformers.versions import check_transformers


def register() -> None:
    """Put opmux's attention and mask into transformers' registries; models that do not name it do not notice."""
    AttentionInterface.register(attention.NAME, attention.opmux_attention)
    AttentionMaskInterface.register(attention.NAME, masks.opmux_mask)
    AttentionInterface.register(find_attention.RECORDING, find_attention.recording_attention)


def patch_model(model: nn.Module, options: dict[str, bool]) -> Report:
    """Replace what can be proved equal in one model; see `opmux_transformers.patch`."""
    check_transformers()
    if (before := state_of(model)) is not None and before.options == options:
        if _unloaded(model) >= before.unloaded:
            return report_of(model, before)
        unpatch_model(model)  # weights have come since: they are looked at now
    elif before is not None:
        changed = ", ".join(f"{k}={v}" for k, v in before.options.items() if options[k] != v)
        raise InvalidArgument(
            f"opmux_transformers.patch: `model` is patched already, with {changed}; unpatch(model) first, or leave the"
            " options as they were"
        )
    register()
    config = getattr(model, "config", None)
    report = Report(type(model).__name__, str(getattr(config, "model_type", "?")), transformers.__version__)
    patch = Patch(report, options, unloaded=_unloaded(model))
    modules = dict(model.named_modules())
    if _sharded(model):
        report.add("model", "", reason=_SHARDED, class_name=type(model).__name__)
        vars(model)[STATE] = patch
        return report
    if any(getattr(vars(m).get("config"), "_attn_implementation", None) == attention.NAME for m in modules.values()):
        report.notes.append(
            "its configuration is that of a patched model and names opmux's attention already, which unpatch leaves;"
            " set_attn_implementation takes another"
        )
    try:
        found = survey(model, modules, patch)
        _apply(modules, found, patch)
        if options["cache"]:
            generation.use_paged_cache(model, patch, _why_not_paged(model, modules, found))
        survive_pickle(model, patch)
    except BaseException:
        patch.undo()
        raise
    _notes(model, modules, found, patch)
    vars(model)[STATE] = patch
    return report


_SHARDED = (
    "its parameters are sharded already (DTensor), and only whole ones can be checked: nothing was changed; patch a"
    " model first, then shard it"
)


def _sharded(model: nn.Module) -> bool:
    """Whether a parameter is a DTensor; where nobody has imported their module, none is."""
    home = sys.modules.get("torch.distributed.tensor")
    return home is not None and any(isinstance(p, home.DTensor) for p in model.parameters())


def _unloaded(model: nn.Module) -> int:
    """How many of a model's tensors wait on the meta device for their values."""
    return sum(tensor.is_meta for tensor in itertools.chain(model.parameters(), model.buffers()))


def report_of(model: nn.Module, patch: Patch) -> Report:
    """The report of a patch as it is now: attention may have been taken back since, by ``set_attn_implementation``."""

    def now(row: Row) -> Row:
        if row.kind not in ("attention", "cache") or row.status != REPLACED:
            return row
        module: Any = modules.get(row.module)
        config = getattr(module, "config", None)
        if row.kind == "cache" and config is not None:
            config = config.get_text_config(decoder=True)
        name = getattr(config, "_attn_implementation", None)
        if config is None or name == attention.NAME:
            return row
        reason = f"it was given back to transformers' {name!r} (set_attn_implementation)"
        if row.kind == "cache":
            reason = f"generate keeps its ordinary cache: attention was given back to transformers' {name!r}"
        return replace(row, status=LEFT, op="", reason=reason)

    if all(vars(config.made).get(_NAMED) == config.at_first.get(_NAMED) for config in patch.configs):
        return patch.report
    modules = dict(model.named_modules())
    return replace(patch.report, rows=[now(row) for row in patch.report.rows])


_NAMED = "_attn_implementation_internal"
"""The attribute of a configuration that names its attention."""


def unpatch_model(model: nn.Module) -> Report:
    """Put the very objects back; see `opmux_transformers.unpatch`."""
    patch = state_of(model)
    if patch is None:
        raise InvalidArgument(
            f"opmux_transformers.unpatch: `model` expected a model that patch(model) has patched, got"
            f" {type(model).__name__} without a patch; nothing needs to be undone"
        )
    patch.undo()
    vars(model).pop(STATE)
    return patch.report


def _apply(modules: dict[str, nn.Module], found: Found, patch: Patch) -> None:
    """Change the model: from here on nothing is judged any more."""
    for path, spec in found.norms.items():
        patch.set(modules[path], "forward", norm.forward_of(spec).__get__(modules[path]))
    for path, form in found.gates.items():
        patch.set(modules[path], "forward", gate.forward_of(form).__get__(modules[path]))
    for path, turning in found.ropes.items():
        forward = find_attention.rotating_function(modules[path], turning)
        if (decoding := found.decodings.get(path)) is not None:
            forward = decode.forward_of(forward, decoding)
        patch.set(modules[path], "forward", forward.__get__(modules[path]))
    for path, wired in found.blocks.items():
        patch.set(modules[path], "forward", block.forward_of(wired).__get__(modules[path]))
    for path, tables in found.tables.items():
        users = [a for a in found.attentions if nearest(a, found.tables) == tables]
        name = type(modules[path]).__name__
        alike = len({found.ropes[a].rotary_dim for a in users if a in found.ropes}) == 1
        if alike and all(a in found.ropes for a in users) and not found.strangers:
            turning = found.ropes[users[0]]
            maker = modules[path]
            patch.set(maker, "forward", rope.halving(maker, turning.rotary_dim).__get__(maker))
            patch.report.add("rope tables", path, "halved once", class_name=name)
        elif users:
            patch.report.add("rope tables", path, reason="not every layer that uses them was replaced", class_name=name)
    for path in _makers_of_masks(modules, found):
        patch.set(modules[path], "forward", masks.with_own_positions(modules[path]).__get__(modules[path]))
    for module in {id(owner): owner for owner, name, _ in patch.changes if name == "forward"}.values():
        follow_replicas(module, patch)
    _switch_attention(modules, found, patch)


def _makers_of_masks(modules: dict[str, nn.Module], found: Found) -> list[str]:
    """The models that make the masks of replaced attentions, and not one that only calls such a model."""
    above = {path for path in modules if any(a.startswith(f"{path}." if path else "") for a in found.attended)}
    makers = [p for p in above if masks.makes_masks(modules[p]) and whose_forward(modules[p]) is None]
    return [p for p in makers if not any(o != p and o.startswith(f"{p}." if p else "") for o in makers)]


def _switch_attention(modules: dict[str, nn.Module], found: Found, patch: Patch) -> None:
    """Name opmux's attention in the configuration: in copies, for other models may hold the same object."""
    switched = {id(modules[path].config) for path in found.attended}
    if not switched:
        return
    made: dict[int, Any] = {}

    def stand_in(config: Any) -> Any:
        if id(config) in made:
            return made[id(config)]
        inner = {k: getattr(config, k, None) for k in getattr(config, "sub_configs", {})}
        changed = {k: new for k, c in inner.items() if c is not None and (new := stand_in(c)) is not c}
        if id(config) not in switched and not changed:
            made[id(config)] = config
            return config
        new = copy.copy(config)
        vars(new).update(changed)
        if id(config) in switched:
            vars(new)[_NAMED] = attention.NAME
        made[id(config)] = new
        patch.configs.append(StandIn(config, new, dict(vars(new))))
        return new

    for module in modules.values():
        config = vars(module).get("config")
        if config is not None and hasattr(config, _NAMED):
            new = stand_in(config)
            if new is not config:
                patch.set(module, "config", new)


def _why_not_paged(model: nn.Module, modules: dict[str, nn.Module], found: Found) -> str | None:
    """Which attention of the model's text cannot read its keys and values from pages; None where all can."""
    config: Any = getattr(model, "config", None)
    if not found.attended or config is None:
        return "not all of its attention is opmux's"
    text = config.get_text_config(decoder=True)
    users = [path for path in found.attentions if modules[path].config is text]
    if not found.attended.issuperset(users):
        return "not all of its attention is opmux's"
    computing = next((path for path in users if not found.attentions[path].paged), None)
    return f"{computing} computes with the keys and values that a cache gives" if computing else None


def _notes(model: nn.Module, modules: dict[str, nn.Module], found: Found, patch: Patch) -> None:
    """What is to be known of the model as a whole."""
    config: Any = getattr(model, "config", None)
    report = patch.report
    before = {
        config.own._attn_implementation
        for config in patch.configs
        if config.made._attn_implementation == attention.NAME
    }
    if patch.unloaded:
        report.notes.append("some of its tensors are on the meta device: load them, and call patch(model) again")
    kinds = sorted({type(m).__name__ for p, m in modules.items() if _quantised(m)})
    if kinds or getattr(model, "is_quantized", False) or getattr(config, "quantization_config", None) is not None:
        for path, module in modules.items():
            if _quantised(module):
                reason = "quantised: it computes as before"
                report.add("linear", path, reason=reason, class_name=type(module).__name__)
        report.notes.append("the model is quantised: its linear layers are called as they are")
    if not isinstance(model, PreTrainedModel) and not found.attentions:
        report.notes.append("no attention of transformers was found in it")
    if getattr(config, "is_encoder_decoder", False):
        report.notes.append("an encoder and a decoder: attention is replaced only where it is causal")
    if "sdpa" in before and any("softcap" in found.attentions[p].ops for p in found.attended):
        report.notes.append("transformers' sdpa leaves the softcap out or refuses it; opmux's attention applies it")
    rates = [vars(m).get("attention_dropout") for m in modules.values()]
    dropout = max((rate for rate in rates if isinstance(rate, float)), default=0.0)
    if dropout and found.attended:
        report.notes.append(f"attention drops {dropout:g} of its probabilities in training: torch computes it there")
    if found.attended:
        report.notes.append(
            "padding becomes ragged attention; custom and packed masks, static caches, and padding under torch.compile"
            " are computed by torch under a whole mask; attention gives no probabilities (output_attentions)"
        )


def _quantised(module: nn.Module) -> bool:
    """Whether a linear holds its weight in something else than floating numbers of 16 bits or more."""
    if not gate.is_linear(module) or type(module) is nn.Linear:
        return False
    held = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return any(not t.is_floating_point() or t.element_size() < 2 for t in held)
