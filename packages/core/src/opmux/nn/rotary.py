"""Rotary position embedding with tables that stay float32."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

import opmux
from opmux.errors import invalid
from opmux.nn.linear import backend_repr
from opmux.nn.rope_config import keywords_of, parameters_of, rule_of
from opmux.nn.sizes import check_sizes


class RotaryEmbedding(nn.Module):
    """Rotates queries and keys by the angles of their positions, with the frequencies of any rule of `opmux.rope`.

    One module serves every layer with the same rule. Its tables, ``cos`` and ``sin``, are float32 buffers that are not
    in the state dict. They stay float32 and exact: ``.to(dtype)`` and ``.half()`` do not change their dtype. On a
    module from the meta device, ``to_empty`` fills them, and ``load_state_dict(..., assign=True)`` on a model that
    holds the module makes them on the CPU.

    Args:
        head_dim: The size of a head.
        max_positions: How many positions the tables hold, starting at 0.
        rope_theta: The base of the frequencies.
        rope_type: The rule: ``default``, ``linear``, ``dynamic``, ``yarn``, ``llama3`` or ``longrope``.
        interleaved: Whether a pair is two neighbouring dims (GPT-J) rather than one dim of each half (Llama).
        device: The device of the tables.
        backend: Passed to the op.
        parameters: The rule's other parameters, under Hugging Face's names: ``factor``, ``partial_rotary_factor``,
            ``original_max_position_embeddings``, ... ``seq_len`` is the sequence length for which
            ``dynamic`` and ``longrope`` compute the frequencies; `resize` changes it.

    Raises:
        InvalidArgument: If the rule is unknown, or a parameter is missing, unknown to the rule or out of range.

    Source:
        Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
        https://arxiv.org/abs/2104.09864; the rules: `opmux.rope`.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        head_dim: int,
        max_positions: int,
        rope_theta: float = 10_000.0,
        rope_type: str = "default",
        *,
        interleaved: bool = False,
        device: Any = None,
        backend: str | None = None,
        **parameters: Any,
    ) -> None:
        super().__init__()
        self.rope_type, self.interleaved, self.backend = rope_type, interleaved, backend
        self.head_dim, self.max_positions = head_dim, max_positions
        given = {"head_dim": head_dim, "rope_theta": rope_theta, **parameters}
        self.parameters_of_rule = keywords_of(rope_type, given)
        cos, sin = self._tables(self.parameters_of_rule, max_positions)
        where = torch.get_default_device() if device is None else device
        self.register_buffer("cos", cos.to(where), persistent=False)
        self.register_buffer("sin", sin.to(where), persistent=False)

    @classmethod
    def from_config(
        cls,
        config: Any,
        max_positions: int | None = None,
        *,
        layer_type: str | None = None,
        interleaved: bool = False,
        device: Any = None,
        backend: str | None = None,
        **overrides: Any,
    ) -> Self:
        """Make the module that a model's configuration describes.

        Args:
            config: A mapping or an object with the names of a Hugging Face configuration: ``head_dim`` (or
                ``hidden_size`` and ``num_attention_heads``), ``max_position_embeddings``, ``rope_theta``,
                ``rope_scaling`` or ``rope_parameters``.
            max_positions: How many positions the tables hold; None means the configuration's
                ``max_position_embeddings``.
            layer_type: Whose parameters to read, if each type of layer has its own.
            interleaved: As in the constructor.
            device: As in the constructor.
            backend: As in the constructor.
            overrides: Parameters that replace those of the configuration.

        Raises:
            InvalidArgument: If a parameter is missing, or as for the constructor.
        """
        given = parameters_of(config, layer_type) | overrides
        if max_positions is None:
            max_positions = given.get("max_position_embeddings")
        if max_positions is None:
            raise invalid(
                "RotaryEmbedding", "max_positions", "a number, or max_position_embeddings in the configuration",
                "neither", "pass the longest sequence, in positions",
            )  # fmt: skip
        return cls(max_positions=max_positions, interleaved=interleaved, device=device, backend=backend, **given)

    def resize(self, max_positions: int, seq_len: int | None = None) -> None:
        """Rebuild the tables for another number of positions and, for rules that depend on it, another sequence length.

        Call it outside compiled code and graph capture, which keep using the tables that they recorded.

        Args:
            max_positions: How many positions the tables hold from now on.
            seq_len: The sequence length, in positions, for which ``dynamic`` and ``longrope`` choose the frequencies;
                other rules do not depend on it.

        Raises:
            InvalidArgument: If a number is not a positive whole number, or the rule takes no length; the module is then
                unchanged.
        """
        given = self.parameters_of_rule
        if seq_len is not None:
            given = keywords_of(self.rope_type, given | {"seq_len": seq_len})
        cos, sin = self._tables(given, max_positions)
        self.parameters_of_rule, self.max_positions = given, max_positions
        self.cos, self.sin = cos.to(self.cos.device), sin.to(self.sin.device)

    def forward(self, q: Tensor, k: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Rotate ``q (*batch, seq, heads, head_dim)`` and ``k (*batch, seq, kv_heads, head_dim)``.

        ``positions (*batch, seq)`` are int32 or int64; None counts from 0 along seq.

        Raises:
            InvalidArgument: If the head size differs from the module's.
        """
        if q.shape[-1] != self.head_dim:
            raise invalid(
                "RotaryEmbedding", "q", f"heads of head_dim = {self.head_dim}", f"shape {tuple(q.shape)}",
                "make the module for this size; partial_rotary_factor rotates a part of a head",
            )  # fmt: skip
        return opmux.apply_rope(q, k, self.cos, self.sin, positions, interleaved=self.interleaved, backend=self.backend)

    def _tables(self, given: dict[str, Any], max_positions: int) -> tuple[Tensor, Tensor]:
        """The tables, computed on the CPU in float64 regardless of the default device."""
        check_sizes("RotaryEmbedding", max_positions=max_positions)
        with torch.device("cpu"):
            inv_freq, attention_factor = rule_of(self.rope_type)(**given)
            return opmux.rope.tables(inv_freq, max_positions, attention_factor)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the tables to another device, still float32; rebuild them when they leave the meta device."""
        before = self.cos, self.sin
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if not self.cos.is_meta:
            cos, sin = self._tables(self.parameters_of_rule, self.max_positions) if before[0].is_meta else before
            self.cos, self.sin = cos.to(self.cos.device), sin.to(self.sin.device)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, metadata: Any, *rest: Any) -> None:
        """Rebuild the tables on the CPU when weights are assigned to a model on the meta device."""
        super()._load_from_state_dict(state_dict, prefix, metadata, *rest)
        if self.cos.is_meta and metadata.get("assign_to_params_buffers", False):
            self.to_empty(device="cpu")

    def extra_repr(self) -> str:
        rule = "".join(f", {name}={value!r}" for name, value in self.parameters_of_rule.items())
        shown = f"rope_type={self.rope_type!r}, max_positions={self.max_positions}, interleaved={self.interleaved}"
        return shown + rule + backend_repr(self.backend)
