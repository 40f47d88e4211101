"""`patch` and `unpatch` of a model: every kind judged, then replaced, then reported; undone in reverse."""

import itertools
import sys
from dataclasses import replace
from typing import Any

import transformers
from torch import nn

from opmux.errors import InvalidArgument, invalid
from opmux_transformers.attention import NAME, NAMED
from opmux_transformers.coded import Kept
from opmux_transformers.experts import NAME as NAME_OF_EXPERTS
from opmux_transformers.joint import Joint, joined_again
from opmux_transformers.kinds import KINDS
from opmux_transformers.kinds import attention as attention_kind
from opmux_transformers.kinds import experts as experts_kind
from opmux_transformers.kinds.attention import ATTENTION
from opmux_transformers.kinds.cache import CACHE
from opmux_transformers.kinds.experts import EXPERTS
from opmux_transformers.kinds.gate import is_linear
from opmux_transformers.pickled import survive_pickle
from opmux_transformers.registries import NAMED as NAMED_EXPERTS
from opmux_transformers.replicas import follow_replicas
from opmux_transformers.reporting import LEFT, REPLACED, Report, Row
from opmux_transformers.survey import Survey
from opmux_transformers.undo import STATE, Patch, options_apart, state_of
from opmux_transformers.versions import check_transformers


def patch_model(model: nn.Module, options: dict[str, Any]) -> Report:
    """Replace what can be proved equal in one model; see `opmux_transformers.patch`."""
    check_transformers()
    if (before := state_of(model)) is not None and before.options == options:
        sharded = _sharded(model)
        # sharding gives linears classes of its own, and what is sharded cannot be checked again
        if _unloaded(model) >= before.unloaded and (sharded or _linears(model) == before.linears):
            if not sharded:
                _quantize_again(before)
            return report_of(model, before)
        unpatch_model(model)  # more weights have been loaded since, or linears replaced: check them now
    elif before is not None:
        expected, got = options_apart(before.options, options)
        raise invalid(
            "opmux_transformers.patch", "model", f"the options of the patch in force ({expected})", got,
            "unpatch(model) first, or leave the options as they were",
        )  # fmt: skip
    attention_kind.register()
    experts_kind.register()
    config = getattr(model, "config", None)
    report = Report(type(model).__name__, str(getattr(config, "model_type", "?")), transformers.__version__)
    patch = Patch(report, options, unloaded=_unloaded(model), linears=_linears(model))
    if _sharded(model):
        report.add("model", "", reason=_SHARDED, class_name=type(model).__name__)
        vars(model)[STATE] = patch
        return report
    _note(model, patch)
    try:
        _replace(Survey(model, options), patch)
    except BaseException:
        _undo(patch)
        raise
    vars(model)[STATE] = patch
    return report


def _replace(survey: Survey, patch: Patch) -> None:
    """Judge every kind before others than those of ``at_once`` change the model; then change it, and report."""
    for kind in KINDS:
        survey.judge(kind)
        if kind.at_once:
            kind.replace(survey, patch)
    for kind in KINDS:
        if not kind.at_once:
            kind.replace(survey, patch)
    bound = (c.owner for c in patch.changes if c.name == "forward" or isinstance(vars(c.owner).get(c.name), Kept))
    for module in {id(owner): owner for owner in bound}.values():
        follow_replicas(module, patch)
    survive_pickle(survey.model, patch)
    for kind in KINDS:
        kind.report(survey, patch)


def _quantize_again(patch: Patch) -> None:
    """Make the codes that are kept beside weights again, which may have been written through ``.data``; join them."""
    for change in patch.changes:
        kept = vars(change.owner).get(change.name)
        if isinstance(kept, Kept):
            kept.made_again(getattr(change.owner, kept.name))
    for change in patch.changes:
        joint = vars(change.owner).get(change.name)
        if isinstance(joint, Joint):
            vars(change.owner)[change.name] = joined_again(change.owner, joint)


def _undo(patch: Patch) -> None:
    """Put everything back."""
    patch.put_back()
    for kind in reversed(KINDS):
        kind.undo(patch)
    patch.report.active = False


_SHARDED = (
    "its parameters are sharded already (DTensor), and only whole ones can be checked: nothing was changed; patch a"
    " model first, then shard it"
)


def _sharded(model: nn.Module) -> bool:
    """Whether a parameter is a DTensor; none is if their module was never imported."""
    home = sys.modules.get("torch.distributed.tensor")
    return home is not None and any(isinstance(p, home.DTensor) for p in model.parameters())


def _unloaded(model: nn.Module) -> int:
    """How many of a model's tensors are on the meta device, without values."""
    return sum(tensor.is_meta for tensor in itertools.chain(model.parameters(), model.buffers()))


def _linears(model: nn.Module) -> dict[str, str]:
    """The classes of a model's linear layers, by path."""
    kinds = ((path, type(module)) for path, module in model.named_modules() if is_linear(module))
    return {path: f"{kind.__module__}.{kind.__qualname__}" for path, kind in kinds}


def _note(model: nn.Module, patch: Patch) -> None:
    """Notes on the model before anything is judged."""
    configs = (vars(module).get("config") for module in model.modules())
    if any(getattr(config, "_attn_implementation", None) == NAME for config in configs):
        patch.report.notes.append(
            "its configuration is that of a patched model and names opmux's attention already, which unpatch leaves;"
            " set_attn_implementation takes another"
        )
    if patch.unloaded:
        patch.report.notes.append("some of its tensors are on the meta device: load them, and call patch(model) again")


def report_of(model: nn.Module, patch: Patch) -> Report:
    """The current report of a patch: ``set_attn_implementation`` and its like may have changed the model since."""

    def now(row: Row) -> Row:
        if row.kind == EXPERTS.name and row.status == REPLACED:
            named = vars(vars(modules[row.module])["config"]).get(NAMED_EXPERTS)
            reason = f"it was given back to transformers' {named!r} (set_experts_implementation)"
            return row if named == NAME_OF_EXPERTS else replace(row, status=LEFT, op="", reason=reason)
        if row.kind not in (ATTENTION.name, CACHE.name) or row.status != REPLACED:
            return row
        module: Any = modules.get(row.module)
        config = getattr(module, "config", None)
        if row.kind == CACHE.name and config is not None:
            config = config.get_text_config(decoder=True)
        name = getattr(config, "_attn_implementation", None)
        if config is None or name == NAME:
            return row
        reason = f"it was given back to transformers' {name!r} (set_attn_implementation)"
        if row.kind == CACHE.name:
            reason = f"generate keeps its ordinary cache: attention was given back to transformers' {name!r}"
        return replace(row, status=LEFT, op="", reason=reason)

    named = (NAMED, NAMED_EXPERTS)
    if all(vars(config.made).get(key) == config.at_first.get(key) for config in patch.configs for key in named):
        return patch.report
    modules = dict(model.named_modules())
    return replace(patch.report, rows=[now(row) for row in patch.report.rows])


def unpatch_model(model: nn.Module) -> Report:
    """Put the original objects back; see `opmux_transformers.unpatch`."""
    patch = state_of(model)
    if patch is None:
        raise InvalidArgument(
            f"opmux_transformers.unpatch: `model` expected a model that patch(model) has patched, got"
            f" {type(model).__name__}, which is not patched; there is nothing to undo"
        )
    _undo(patch)
    vars(model).pop(STATE)
    return patch.report
