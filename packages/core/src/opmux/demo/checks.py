"""What the run proves: paged serving gives the tokens of the full pass, and opmux the numbers of plain PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from opmux.demo import plain
from opmux.demo.model import Llama
from opmux.demo.serving import Served
from opmux.demo.training import next_character_loss

TIE = 1e-4
"""Two logits this close are a tie, in nats.

Float32 sums in another order move a logit of this model by some 1e-6 to 1e-5; which of two tokens wins that are
equally likely to within 0.01 % is then left to rounding.
"""


@dataclass(frozen=True)
class TokenCheck:
    """Paged serving against the full forward pass."""

    tokens: int
    """Tokens compared."""
    equal: int
    """Tokens that the full pass chooses too."""
    ties: int
    """Tokens that are not, and whose logit in the full pass is within `TIE` of the largest."""
    different: tuple[str, ...]
    """The other tokens, each described."""
    max_logit_difference: float
    """The largest difference between the logits of both, over all tokens."""


@dataclass(frozen=True)
class Difference:
    """The distance between two computations of the same numbers."""

    largest: float
    """The largest absolute difference; infinite where either is NaN."""
    relative: float
    """The same, divided by the largest absolute value."""

    @classmethod
    def between(cls, ours: list[Tensor], theirs: list[Tensor]) -> "Difference":
        """Compare tensors pairwise; the relative difference is that of the worst pair."""
        largest, relative = 0.0, 0.0
        for a, b in zip(ours, theirs, strict=True):
            difference = torch.nan_to_num((a - b).abs(), nan=float("inf")).max().item()
            largest = max(largest, difference)
            scale = b.abs().max().item()
            if difference > 0:
                relative = max(relative, difference / scale if scale > 0 else float("inf"))
        return cls(largest, relative)


@torch.no_grad()
def compare_with_full_pass(
    model: Llama, served: Served, on_token: Callable[[int, int], None] = lambda _done, _total: None
) -> TokenCheck:
    """Compute each served token again from all tokens before it, without a cache.

    Each is compared with the choice that the full pass makes after the *served* tokens before it. If every one
    is equal, the served text is, by induction, that of the full pass; and after a tie the rest still counts.

    Args:
        model: The model.
        served: What was served.
        on_token: Called after each token with the number of tokens compared, and of all.
    """
    total = sum(len(request.generated) for request in served.requests)
    done = equal = ties = 0
    different: list[str] = []
    largest = 0.0
    for request in served.requests:
        for index, (token, row) in enumerate(zip(request.generated, served.logits[request.number], strict=True)):
            before = request.tokens[: len(request.prompt) + index]
            logits = model(torch.tensor([before], device=model.embedding.device))[0, -1].cpu()
            largest = max(largest, torch.nan_to_num((logits - row).abs(), nan=float("inf")).max().item())
            choice = int(logits.argmax())
            gap = (logits[choice] - logits[token]).item()
            if token == choice:
                equal += 1
            elif gap <= TIE:
                ties += 1
            else:
                different.append(
                    f"request {request.number}, token {index}: paged serving gives id {token}, "
                    f"the full pass id {choice} by {gap:.3g} nats"
                )
            done += 1
            on_token(done, total)
    return TokenCheck(done, equal, ties, tuple(different), largest)


def compare_with_plain(model: Llama, windows: Tensor) -> tuple[Difference, Difference]:
    """Run the model forward and backward with opmux and with plain PyTorch.

    Args:
        model: The model.
        windows: int64[batch, seq + 1], on the model's device.

    Returns:
        The difference of the logits, and that of the gradients of the weights.
    """
    weights = list(model.parameters())

    def plain_model(ids: Tensor) -> Tensor:
        return plain.forward(model, ids)

    ours = torch.autograd.grad(next_character_loss(model, windows), weights)
    theirs = torch.autograd.grad(next_character_loss(plain_model, windows), weights)
    with torch.no_grad():
        logits = Difference.between([model(windows[:, :-1])], [plain_model(windows[:, :-1])])
    return logits, Difference.between(list(ours), list(theirs))
