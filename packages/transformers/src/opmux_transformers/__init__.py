"""Hugging Face transformers models on opmux's operators.

    import opmux_transformers

    report = opmux_transformers.patch(model)
    print(report)
    opmux_transformers.unpatch(model)

`patch` replaces what it can prove equal: RMS norms and layer norms, rotary embedding, gated activations, attention,
residual sums with the norm after them, mixtures of experts, the cache of ``generate``, and the loss in training. The
report says what was replaced, what was left, and why.
"""

from typing import Any

from torch import nn

from opmux_transformers.__about__ import __version__
from opmux_transformers.reporting import Report, Row

__all__ = ["PagedCache", "Report", "Row", "__version__", "families", "patch", "report", "unpatch"]


def patch(
    model: nn.Module | str,
    *,
    norm: bool = True,
    gate: bool = True,
    rope: bool = True,
    attention: bool = True,
    residual: bool = True,
    cache: bool | str = True,
    loss: bool = True,
    experts: bool = True,
    linear: bool = True,
    vector: bool = True,
    recompute: bool = False,
    quantize: str | None = None,
) -> Report:
    """Replace what opmux can prove equal in a model, or in every later model of a family.

    A copy of each module is compared with its replacement on random input. A module that does not agree is left
    unchanged, and the report names it with the reason. Only this model changes: other models of the same class, or with
    the same configuration object, do not. Patching again does nothing, unless the model was on the meta device and now
    has weights; with ``quantize``, it quantises the weights again. The names and values of its parameters do not
    change, nor does what ``save_pretrained`` and ``torch.save`` write.

    Args:
        model: A model; or a family's name (transformers' ``model_type``, such as ``"llama"``) before loading: every
            model of it that is loaded or constructed afterwards is patched.
        norm: Whether RMS norms and layer norms are replaced.
        gate: Whether gated activations are replaced.
        rope: Whether rotary embedding is replaced.
        attention: Whether attention is replaced.
        residual: Whether a residual sum and the norm after it become one op.
        cache: Whether ``generate`` makes a `PagedCache`; ``"fp8"`` or ``"int8"`` has it keep codes of 8 bits.
        loss: Whether a causal language model computes its loss in training without logits. Called with labels in
            training mode, it then returns no logits.
        experts: Whether the experts of mixtures are computed by grouped products.
        linear: Whether linears with an 8-bit weight, as quantisers and `opmux.nn.quantize_` make them, multiply it by
            opmux's ops.
        vector: Whether a plain linear in 16 bits computes a single row, as where one sequence is decoded, by
            `opmux.linear` on a GPU. (``linear`` is about linears with an 8-bit weight.)
        recompute: Whether gated MLPs compute the gate's result again in the backward pass instead of keeping it: less
            memory in training for a little time, and the same gradients.
        quantize: ``"fp8"`` or ``"int8"`` also quantises plain linears, per token and channel, except heads and
            routers. Their weights stay beside the codes, so that `unpatch` restores the model; gradients pass through
            the quantisation.

    Returns:
        What was replaced and what was left. For a family's name, a report without rows; call `report` for each model.

    Raises:
        InvalidArgument: if ``model`` is neither a model nor a known family, a flag is not a bool, ``quantize`` is
            unknown, or the model is already patched with other options.
        UnsupportedCall: if the version of transformers is not supported.
    """
    from opmux.errors import InvalidArgument
    from opmux_transformers.loading import patch_family
    from opmux_transformers.patching import patch_model

    options: dict[str, Any] = {
        "norm": norm, "gate": gate, "rope": rope, "attention": attention, "residual": residual, "cache": cache,
        "loss": loss, "experts": experts, "linear": linear, "vector": vector, "recompute": recompute,
    }  # fmt: skip
    for name, value in options.items():
        if name == "cache" and not isinstance(value, bool) and value not in ("fp8", "int8"):
            raise InvalidArgument(
                f"opmux_transformers.patch: `cache` expected True, False, 'fp8' or 'int8', got {value!r}; pass a"
                " PagedCache to generate for other dtypes"
            )
        if name != "cache" and not isinstance(value, bool):
            raise InvalidArgument(
                f"opmux_transformers.patch: `{name}` expected True or False, got {value!r}; pass False to skip it"
            )
    if quantize not in (None, "fp8", "int8"):
        raise InvalidArgument(
            f"opmux_transformers.patch: `quantize` expected 'fp8', 'int8' or None, got {quantize!r}; opmux.nn.quantize_"
            " before patch(model) takes other dtypes and blocks"
        )
    options["quantize"] = quantize
    if isinstance(model, str):
        return patch_family(model, options)
    return patch_model(_module("patch", model, " or a family's name"), options)


def unpatch(model: nn.Module | str) -> Report:
    """Undo a patch: put back the original objects.

    Args:
        model: A patched model; or a family's name, whose later models are then left alone (patched ones stay patched).

    Returns:
        The report of the patch that was undone.

    Raises:
        InvalidArgument: if there is no patch.
    """
    from opmux_transformers.loading import unpatch_family
    from opmux_transformers.patching import unpatch_model

    if isinstance(model, str):
        return unpatch_family(model)
    return unpatch_model(_module("unpatch", model, " or a family's name"))


def report(model: nn.Module) -> Report:
    """The current report of a patched model.

    Raises:
        InvalidArgument: if the model is not patched.
    """
    from opmux.errors import InvalidArgument
    from opmux_transformers.patching import report_of
    from opmux_transformers.undo import state_of

    patch = state_of(_module("report", model))
    if patch is None:
        raise InvalidArgument(
            f"opmux_transformers.report: `model` expected a patched model, got {type(model).__name__}, which is not"
            " patched; call opmux_transformers.patch(model) first"
        )
    return report_of(model, patch)


def _module(function: str, model: object, other: str = "") -> nn.Module:
    """The model.

    Raises:
        InvalidArgument: if it is not a module.
    """
    from opmux.errors import InvalidArgument

    if isinstance(model, nn.Module):
        return model
    got = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
    remedy = 'pass the model, or a family such as "llama"' if other else "pass the model"
    raise InvalidArgument(
        f"opmux_transformers.{function}: `model` expected a torch.nn.Module{other}, got {got}; {remedy}"
    )


def families() -> tuple[str, ...]:
    """The names of the tested families, in which every norm, rotation, gate and attention is replaced."""
    from opmux_transformers.configs import FAMILIES

    return tuple(FAMILIES)


def __getattr__(name: str) -> Any:
    """`PagedCache`, whose module imports transformers."""
    if name == "PagedCache":
        from opmux_transformers.paged_cache import PagedCache

        return PagedCache
    raise AttributeError(f"module 'opmux_transformers' has no attribute {name!r}")
