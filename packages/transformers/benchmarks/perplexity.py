"""What 8 bits cost in perplexity: a small Llama is trained on the docstrings of opmux's ops, and quantised.

The last tenth of the text is held out. For each form the program prints the perplexity per character of the held-out
part, its difference to the model that was trained, and how often the most probable character is the same one.

    python benchmarks/perplexity.py [--steps 400] [--hidden 128] [--text FILE]
"""

import argparse
import copy
import math
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import opmux.nn
import opmux_transformers
from opmux.demo.corpus import Corpus, load

SEQ = 128
"""Characters of a window."""
BATCH = 8
FORMS: dict[str, dict[str, Any]] = {
    "fp8, token x channel": {"codes": "fp8"},
    "fp8, 1x128 x 128x128": {"codes": "fp8", "activations": "block", "weights": "block"},
    "fp8, static x channel": {"codes": "fp8", "activations": "static"},
    "int8, token x channel": {"codes": "int8"},
    "int8, 1x128 x 128x128": {"codes": "int8", "activations": "block", "weights": "block"},
    "int8, static x channel": {"codes": "int8", "activations": "static"},
}
"""How the linears are quantised: keywords of `opmux.nn.quantize_`."""


def trained(corpus: Corpus, steps: int, hidden: int) -> Any:
    """A small Llama, trained on the first nine tenths of a text, in float32 on the CPU."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(corpus.vocabulary), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=SEQ, bos_token_id=None, eos_token_id=None,
        pad_token_id=None,
    )  # fmt: skip
    model: Any = transformers.LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
    for windows in corpus.batches(steps, BATCH, SEQ, torch.Generator().manual_seed(1)):
        model(windows[:, :-1], labels=windows[:, :-1]).loss.backward()
        optimiser.step()
        schedule.step()
        optimiser.zero_grad(set_to_none=True)
    return model.eval()


def windows_of(ids: Tensor) -> Tensor:
    """The held-out text in windows."""
    return ids[: len(ids) // SEQ * SEQ].view(-1, SEQ)


def judged(model: Any, ids: Tensor) -> tuple[float, Tensor]:
    """The perplexity per character of windows, and the most probable characters."""
    with torch.no_grad():
        logits = torch.cat([model(window).logits for window in windows_of(ids).split(16)])
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), windows_of(ids)[:, 1:].flatten())
    return math.exp(float(loss)), logits.argmax(-1)


def measure(text: Path | None, steps: int, hidden: int) -> dict[str, tuple[float, float]]:
    """Train, quantise, patch and judge: each form's perplexity, and the share of equal first choices."""
    corpus = load(text, SEQ)
    plain = trained(corpus, steps, hidden)
    perplexity, chosen = judged(plain, corpus.held_out)
    found = {"float32": (perplexity, 1.0)}
    calibration = windows_of(corpus.train)[:16]
    for name, how in FORMS.items():
        model = copy.deepcopy(plain)
        opmux.nn.quantize_(model, **how, calibration=calibration if how.get("activations") == "static" else None)
        opmux_transformers.patch(model)
        perplexity, own = judged(model, corpus.held_out)
        found[name] = perplexity, float((own == chosen).float().mean())
    return found


def show(found: dict[str, tuple[float, float]]) -> None:
    """The table."""
    first = found["float32"][0]
    print(f"{'form':<24}{'perplexity':>12}{'difference':>12}{'same choice':>13}")
    for name, (perplexity, same) in found.items():
        print(f"{name:<24}{perplexity:>12.4f}{perplexity / first - 1:>+12.3%}{same:>13.2%}")


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--text", type=Path, help="a UTF-8 text; by default the docstrings of opmux's ops")
    arguments = parser.parse_args()
    show(measure(arguments.text, arguments.steps, arguments.hidden))


if __name__ == "__main__":
    main()
