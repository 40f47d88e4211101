"""The command ``opmux models check``: whether a patched model agrees with the original."""

from typing import Literal


def models(
    action: Literal["check"], name: str, device: str | None = None, quantize: str | None = None, json: bool = False
) -> None:
    """Check a Hugging Face model against its patched self: `opmux models check llama`.

    NAME is a family, any model_type of transformers, or a config.json: its architecture at a small size, with random
    weights; nothing is downloaded. It runs on a GPU where there is one, or on --device cpu. The model is patched, and
    its logits, greedy tokens and gradients are compared with the unpatched one's in float32 and bfloat16; the report
    says what was replaced, what was left, and why. --quantize fp8, or int8, also compares the quantised model with one
    of the same codes that is not patched. Exits with 1 if a comparison fails.
    """
    import typer

    from opmux.cli import output
    from opmux_transformers.model_check import run

    result = run(name, device, quantize)
    report = result.pop("report_object")
    if json:
        output.emit_json(result)
    else:
        console = output.console()
        console.print(report)
        rows = []
        for c in result["comparisons"]:
            state = output.state("passed" if c["passed"] else "failed")
            rows.append((c["what"], c["dtype"], f"{c['error']:.2g}", f"{c['bound']:.2g}", state))
        console.print(output.table("patched against unpatched", ("what", "dtype", "error", "at most", ""), rows))
    if not result["passed"]:
        raise typer.Exit(1)
