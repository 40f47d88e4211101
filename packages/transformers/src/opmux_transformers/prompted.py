"""How a check calls a model: with prompts, and where it has an encoder, with something for that to read.

An encoder reads the prompts themselves, or numbers in the place of sound; the decoder goes on from the same prompts.
"""

from typing import Any

import torch
import transformers
from torch import Tensor, nn

NEW_TOKENS = 8


def class_for(config: Any) -> Any:
    """The class of transformers that makes a model of a configuration: for text after text, else for masks.

    Raises:
        ValueError: If it is of an encoder that reads neither tokens nor the bands of a spectrum.
    """
    if encodes(config):
        if reads_text(config):
            return transformers.AutoModelForSeq2SeqLM
        sizes = all(hasattr(config, name) for name in ("num_mel_bins", "max_source_positions"))
        if type(config) not in transformers.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING or not sizes:
            raise ValueError("its encoder reads neither tokens nor a spectrum of sound, which a check could make")
        return transformers.AutoModelForSpeechSeq2Seq
    return transformers.AutoModelForMaskedLM if fills_masks(config) else transformers.AutoModelForCausalLM


def encodes(config: Any) -> bool:
    """Whether a configuration is of an encoder with a decoder."""
    return bool(getattr(config, "is_encoder_decoder", False))


def reads_text(config: Any) -> bool:
    """Whether the encoder of such a configuration reads tokens; otherwise it reads sound."""
    return type(config) in transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING


def fills_masks(config: Any) -> bool:
    """Whether transformers has a model of a configuration that fills masks, and none that generates text.

    Some encoders have a class that generates too (RoBERTa), which is for those that were made a decoder.
    """
    kind = type(config)
    generates = kind in transformers.MODEL_FOR_CAUSAL_LM_MAPPING and getattr(config, "is_decoder", True)
    return kind in transformers.MODEL_FOR_MASKED_LM_MAPPING and not generates and not encodes(config)


def source(config: Any, ids: Tensor) -> dict[str, Tensor]:
    """What a model reads before its first own token: the prompts, or sound that is the same for the same prompts."""
    if not encodes(config) or reads_text(config):
        return {"input_ids": ids}
    generator = torch.Generator().manual_seed(int(ids.sum()))
    shape = (len(ids), config.num_mel_bins, 2 * config.max_source_positions)
    return {"input_features": torch.randn(shape, generator=generator).to(ids.device)}


def call(model: Any, ids: Tensor, **given: Any) -> Any:
    """What a model gives for prompts; of an encoder and a decoder, the decoder's part."""
    config = model.config
    if encodes(config) and "labels" not in given:
        given = {"decoder_input_ids": ids, **given}
    return model(**_in_dtype(model, source(config, ids)), **given)


def logits_after(model: Any, ids: Tensor, tokens: Tensor) -> Tensor:
    """The logits that chose each new token of what `generated` gave for prompts, ``(batch, new, vocabulary)``.

    Those of the tokens that end a text are minus infinity: `generated` asks for so many tokens that none may be chosen.
    """
    if encodes(model.config):
        found: Tensor = call(model, ids, decoder_input_ids=tokens).logits[:, :-1]
    else:
        found = model(tokens).logits[:, ids.shape[1] - 1 : -1]
    ends = model.generation_config.eos_token_id
    places = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return found.index_fill(-1, torch.tensor(places, dtype=torch.int64, device=found.device), float("-inf"))


def begin_of_new(model: Any, ids: Tensor) -> int:
    """Where the new tokens begin in what `generated` gives: after the prompts, or after a decoder's first token."""
    return 1 if encodes(model.config) else ids.shape[1]


def generated(model: Any, ids: Tensor) -> Tensor:
    """Prompts and the greedy tokens after them; of an encoder and a decoder, the decoder's tokens."""
    settings: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
    given = _in_dtype(model, source(model.config, ids))
    if "input_ids" in given:
        settings["attention_mask"] = torch.ones_like(ids)
    # speech models wrap it in steps of their own, which split sound and look for languages
    generate: Any = transformers.GenerationMixin.generate if encodes(model.config) else type(model).generate
    with torch.no_grad():
        tokens: Tensor = generate(model, **given, **settings)
    return tokens


def _in_dtype(model: nn.Module, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Numbers in a model's dtype."""
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in given.items()}
