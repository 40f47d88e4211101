"""End-to-end figures: whole models of two shapes, patched and unpatched, in one run.

Rows: transformers as it is (eager, SDPA), under torch.compile (static cache for decode), with Liger and with TileGym
where they are installed and patch the family, patched by opmux (eager; for training also with recompute=True), and
patched under torch.compile or captured as a CUDA graph. Where --rows names such rows, compiled models are captured too,
patched or not. Mixtures of experts decode with the first two once more with the experts function that transformers'
``generate`` takes for decoding (batched), where the others have the one it takes by default (grouped); with DeepGEMM's
they run where --rows names them, for inference. Rows with fp8 in their name are quantised models, for inference; they
too run where --rows names them. Those of transformers itself, and rows with DeepGEMM, need the kernels that it gets
from a hub. Where there is none, --hf-path names folders that these rows alone import from, and the variable
LOCAL_KERNELS of the package ``kernels`` the folders of the kernels.

Each row is a process of its own, since other libraries patch classes; the parent lets them work in turns, so that
every round has all kinds of work and all rows under the same clocks, and memory is freed after each turn: in training,
the models of the rows that wait are kept on the host. Before the first round every row warms up for all its work,
at its own pace beside the others: compilation needs the host more than the device. What a row selects by timing it
selects then, while the others run. A row that fails in it for want of memory has its turns nevertheless. Training,
which fills the device, has no such pass. With --warm it ends after so many seconds from the start: what a row is not
ready for by then is left out, the row's other work is not. With --turn a row that decodes slowly decodes no more tokens
than take so many seconds, and the file says how many. Weights are random, the same in all rows. A row that fails or
passes its limit stays in the table with the reason. Results are written after each turn. Results in the file that are
not measured again are kept; rows that are measured again are replaced. A file from another device or from other
versions is refused.

    python benchmarks/models.py --json results.json [--models llama-1b qwen3-4b] [--work prefill decode-8 ...]
    python benchmarks/models.py --json mixture.json --models qwen3-30b-a3b-6l --work prefill decode-1 decode-8 decode-64
    python benchmarks/models.py --json results.json --join decode.json training.json    # from several GPUs
    python benchmarks/models.py --tiny                  # small models on the CPU, to check that everything runs
"""

import argparse
import contextlib
import gc
import itertools
import json
import math
import multiprocessing
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

PLAIN_ROWS = (
    "eager", "compiled", "eager batched", "compiled batched", "liger", "tilegym", "opmux", "opmux recompute",
    "opmux compiled", "opmux graph",
)  # fmt: skip
EXPERTS = {"batched": "batched_mm", "deepgemm": "deepgemm"}
"""transformers' experts function of rows that are named so."""
GRAPH_ROWS = ("compiled graph", "opmux compiled graph")
"""Compiled models whose whole pass is captured in a CUDA graph, so that the host checks no guards in a step."""
HUB_ROWS = ("eager deepgemm", "compiled deepgemm", "compiled deepgemm graph")
"""Mixtures in 16 bits with kernels that transformers gets from a hub."""
FP8_ROWS = (
    "hf fp8", "hf fp8 compiled", "opmux fp8", "opmux fp8 compiled", "opmux fp8 graph", "opmux fp8 token",
    "opmux fp8 token compiled", "opmux fp8 token graph",
)  # fmt: skip
"""Models quantised as transformers' fine-grained fp8 (blocks of 128x128), called by transformers (``hf``) or patched;
and by `opmux.nn.quantize_`, per token and channel."""
CACHE_ROWS = ("opmux codes graph", "opmux fp8 codes graph")
"""Patched models, in 16 bits and as ``opmux fp8``, whose cache keeps codes of fp8."""
ROWS = (*PLAIN_ROWS, *GRAPH_ROWS, *HUB_ROWS, *FP8_ROWS, *CACHE_ROWS)
WORK = ("prefill", "decode-1", "decode-8", "decode-64", "training")
PROMPT = 128
"""Tokens that are in the cache before decoding starts."""
WARM_UP = 16
"""Tokens decoded before timing starts, in every turn but the first, which decodes all of them: SDPA makes a plan once
for each cache length."""
PACED = 8
"""Tokens decoded to see how many fit into a turn."""


def llama_1b() -> Any:
    """Llama 3.2 1B: the published shape."""
    import transformers

    return transformers.LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=131072, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    )  # fmt: skip


def llama_8b(layers: int = 32) -> Any:
    """Llama 3.1 8B: the published shape, or with fewer of its 32 layers, for rows that take long to compile."""
    import transformers

    return transformers.LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=131072, rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    )  # fmt: skip


def qwen3_4b() -> Any:
    """Qwen3 4B: the published shape."""
    import transformers

    return transformers.Qwen3Config(
        vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=40960, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    )  # fmt: skip


def qwen3_30b_a3b() -> Any:
    """Qwen3 30B-A3B: the published shape with 6 of its 48 layers, so that the rows' models fit beside each other."""
    import transformers

    return transformers.Qwen3MoeConfig(
        vocab_size=151936, hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_experts=128,
        num_experts_per_tok=8, norm_topk_prob=True, num_hidden_layers=6, num_attention_heads=32, num_key_value_heads=4,
        head_dim=128, max_position_embeddings=40960, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    )  # fmt: skip


MIXTURE = "qwen3-30b-a3b-6l"
MODELS: dict[str, Callable[[], Any]] = {
    "llama-1b": llama_1b, "qwen3-4b": qwen3_4b, "llama-8b": llama_8b, "llama-8b-8l": lambda: llama_8b(8),
    MIXTURE: qwen3_30b_a3b,
}  # fmt: skip
DEFAULT_MODELS = ("llama-1b", "qwen3-4b")
PREFILL = {MIXTURE: 4096}
"""Tokens of a prompt where they are not 2048."""


def shrink(config: Any) -> Any:
    """The same family, small enough for a CPU."""
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": None}
    kept = {key: value for key, value in config.to_dict().items() if key != "layer_types"}
    sizes |= {key: value for key, value in {"moe_intermediate_size": 48, "num_experts": 8}.items() if key in kept}
    return type(config)(**{**kept, **sizes, **heads})


def fits_work(name: str, model_name: str, work: str) -> bool:
    """Whether a row does such work: transformers' batched experts copy a weight for every token, which is for decoding
    and needs a mixture; training is not captured, and models in fp8 are for inference; only training keeps anything
    that could be computed again; and only decoding reads a cache."""
    if name in CACHE_ROWS:
        return work.startswith("decode")
    if name.endswith("batched"):
        return model_name == MIXTURE and work.startswith("decode")
    if name in HUB_ROWS:  # no gradients
        return model_name == MIXTURE and work != "training"
    if name.endswith("recompute"):
        return work == "training"
    return work != "training" or not ("graph" in name or "fp8" in name)


SAME_GRADIENT = 0.05
"""The allowed relative difference between a row's gradient norm and the unpatched model's; bfloat16 stays well below
it."""
UNTIMED = "untimed "
"""What precedes work whose warm-up alone is asked for."""
GRACE = 15.0
"""Seconds that a row may take to break off what it is not ready for; then it is left out."""
LATE = "late"
"""The answer of a row that was not ready in time."""
PARK = "park"
"""Tells a row to free the device for the others; it sends no answer."""


class Settings:
    """What is the same for all rows of a run."""

    def __init__(self, tiny: bool, steps: int, model_name: str = "", turn: float = math.inf) -> None:
        self.tiny, self.steps, self.turn = tiny, steps, turn
        self.prefill = 64 if tiny else PREFILL.get(model_name, 2048)
        self.new = 4 if tiny else steps
        self.training = (2, 32) if tiny else (4, 2048)
        self.device = "cpu" if tiny else "cuda"


class Row:
    """One row's model and the work done on it, in a process of its own."""

    def __init__(self, name: str, model_name: str, settings: Settings) -> None:
        import torch
        import transformers

        self.torch, self.transformers, self.name, self.settings = torch, transformers, name, settings
        config = MODELS[model_name]()
        config = shrink(config) if settings.tiny else config
        for experts in EXPERTS.keys() & name.split():
            config._experts_implementation = EXPERTS[experts]
        dtype = torch.float32 if settings.tiny else torch.bfloat16
        self.patch_classes(config.model_type)
        torch.manual_seed(0)
        with torch.device(settings.device):
            self.model: Any = transformers.AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation="sdpa"
            )
        self.model.eval()
        self.static = "compiled" in name and not name.startswith("opmux")
        """Whether it decodes with transformers' static cache."""
        self.quantise()
        self.patch_model()
        self.decoded: set[int] = set()
        """Batch sizes that were decoded before."""
        self.fitting: dict[int, int] = {}
        """How many tokens are decoded at a batch size where not all fit into a turn."""
        self.gradient = 0.0
        """The norm of all gradients of the last warm-up in training."""

    def patch_classes(self, family: str) -> None:
        """Apply the other libraries that patch before a model is made."""
        if self.name == "liger":
            import liger_kernel.transformers as liger

            patch = getattr(liger, f"apply_liger_kernel_to_{family}", None)
            if patch is None:
                raise LookupError(f"Liger does not patch {family}")
            patch()
        elif self.name == "tilegym":
            from tilegym.transformers import monkey_patch

            # by the type of model: its function of the name qwen3 is for Qwen3.5
            patch = monkey_patch.MODEL_TYPE_TO_APPLY_TILEGYM_FN.get(family)
            if patch is None:
                raise LookupError(f"TileGym does not patch {family}")
            patch(use_cutile=True)

    def quantise(self) -> None:
        """Quantise the model, in a row that wants it; the head stays as it is."""
        if "fp8" not in self.name:
            return
        import opmux.nn

        if "token" in self.name:
            opmux.nn.quantize_(self.model)
            return
        from transformers.integrations.finegrained_fp8 import FP8Linear

        torch = self.torch
        linears = [(path, m) for path, m in self.model.named_modules() if type(m) is torch.nn.Linear]
        for path, linear in linears:
            if path == "lm_head":
                continue
            with torch.device("meta"):
                made = FP8Linear(
                    linear.in_features, linear.out_features, block_size=(128, 128), has_bias=linear.bias is not None
                )
            q, scale = opmux.quantize(linear.weight.detach(), dtype=torch.float8_e4m3fn, block=(128, 128))
            made.weight = torch.nn.Parameter(q, requires_grad=False)
            made.weight_scale_inv = torch.nn.Parameter(scale, requires_grad=False)
            made.bias = linear.bias
            parent, _, name = path.rpartition(".")
            setattr(self.model.get_submodule(parent), name, made)

    def patch_model(self) -> None:
        """Patch the model with opmux."""
        if not self.name.startswith("opmux"):
            return
        import opmux_transformers

        report = opmux_transformers.patch(self.model, recompute=self.name.endswith("recompute"))
        left = {row.kind for row in report.left()} - {"residual"}
        if left:
            raise RuntimeError(f"opmux left {sorted(left)} alone:\n{report}")

    def tokens(self, batch: int, seq: int) -> Any:
        """Random tokens, the same in every row."""
        generator = self.torch.Generator().manual_seed(batch * 7919 + seq)
        made = self.torch.randint(3, self.model.config.vocab_size, (batch, seq), generator=generator)
        return made.to(self.settings.device)

    def wait(self) -> None:
        """Wait for the device."""
        if self.settings.device == "cuda":
            self.torch.cuda.synchronize()

    def run(self, asked: str) -> dict[str, float]:
        """One turn: warm up, then measure unless `UNTIMED`. `leave` frees what it leaves on the device."""
        torch, on_gpu = self.torch, self.settings.device == "cuda"
        work = asked.removeprefix(UNTIMED)
        self.model.to(self.settings.device)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        make = {"prefill": self.prefill, "training": self.train}.get(work) or self.decode(int(work.rpartition("-")[2]))
        with contextlib.ExitStack() as stack:
            warm_up, step, counted, repeats = stack.enter_context(make())
            warm_up()  # compiles, plans, captures
            self.wait()
            if work != asked:
                return {}
            times = []
            for _ in range(repeats):
                started = time.perf_counter()
                step()
                self.wait()
                times.append(time.perf_counter() - started)
            peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
            tokens, steps = counted()
        result = {"tokens_per_second": tokens / statistics.median(times), "peak_gib": peak}
        if steps is not None and steps < self.settings.new:
            result["steps"] = steps
        return {**result, "gradient": self.gradient} if work == "training" else result

    def leave(self, work: str) -> None:
        """Free the memory of a turn, also of one that failed; in training the model's too.

        This is separate from `run`, in which the turn's optimiser is still alive.
        """
        gc.collect()
        self.model.zero_grad(set_to_none=True)
        if work in ("training", PARK):
            self.model.to("cpu")
        if self.settings.device == "cuda":
            self.torch.cuda.empty_cache()

    def compiled(self, mode: str | None) -> Any:
        """The model, under torch.compile if the row is compiled."""
        if "compiled" not in self.name:
            return self.model
        key = mode or "default"
        made = self.__dict__.setdefault("_compiled", {})
        if key not in made:
            backend = "eager" if self.settings.tiny else "inductor"
            # Each batch size is compiled for itself: shapes that change would be compiled again, for all at once.
            options: dict[str, Any] = {"dynamic": False} | ({} if self.settings.tiny else {"mode": mode})
            made[key] = self.torch.compile(self.model, backend=backend, **options)
        return made[key]

    @contextlib.contextmanager
    def prefill(self) -> Iterator[Any]:
        """Logits of the last token of one long prompt."""
        model, ids = self.compiled(None), self.tokens(1, self.settings.prefill)

        def step() -> None:
            with self.torch.no_grad():
                model(ids, use_cache=False, logits_to_keep=1)

        captured = self.name.endswith("graph") and self.settings.device == "cuda"
        run = self.capture(step) if captured else step
        yield run, run, lambda: (ids.numel(), None), 2 if self.settings.tiny else 7

    @contextlib.contextmanager
    def train(self) -> Iterator[Any]:
        """Forward, backward and a step of AdamW."""
        torch = self.torch
        model, ids = self.compiled(None), self.tokens(*self.settings.training)
        optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=self.settings.device == "cuda")
        self.model.train()

        def step() -> None:
            model(ids, labels=ids, use_cache=False).loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

        def warm_up() -> None:
            model(ids, labels=ids, use_cache=False).loss.backward()
            norms = [p.grad.float().norm() for p in self.model.parameters() if p.grad is not None]
            self.gradient = float(torch.stack(norms).norm())
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

        try:
            yield warm_up, step, lambda: (ids.numel(), None), 2 if self.settings.tiny else 3
        finally:
            self.model.eval()

    def decode(self, batch: int) -> Callable[[], Any]:
        """Greedy decoding, one token for every sequence at a time."""

        @contextlib.contextmanager
        def made() -> Iterator[Any]:
            torch, new, bounded = self.torch, self.settings.new, self.settings.turn < math.inf
            ids = self.tokens(batch, PROMPT)
            length = PROMPT + new + 16
            cache = self.cache(batch, length)
            with torch.no_grad():
                first = self.model(ids, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)
            run = self.stepper(batch, cache, first)

            def step(new: int) -> None:
                if hasattr(cache, "crop") and not self.static:
                    seen = cache.get_seq_length()
                    cache.crop(-(int(seen) - PROMPT))
                elif self.static:
                    for layer in cache.layers:
                        layer.cumulative_length.fill_(PROMPT)
                token = first
                for _ in range(new):
                    token = run(token)

            # A static cache, or a paged one, has the same shapes at every step.
            known = batch in self.decoded or self.static or self.name.startswith("opmux")
            self.decoded.add(batch)

            def warm_up() -> None:
                step(min(WARM_UP, new) if known or bounded else new)
                if bounded and batch not in self.fitting:
                    self.fitting[batch] = self.fitted(step)
                if bounded and not known:
                    step(steps())

            def steps() -> int:
                return self.fitting.get(batch, new)

            yield warm_up, lambda: step(steps()), lambda: (batch * steps(), steps()), 1

        return made

    def fitted(self, step: Callable[[int], None]) -> int:
        """How many tokens are decoded in a turn, by the time of the first ones."""
        new = self.settings.new
        first = min(PACED, new)
        self.wait()
        began = time.perf_counter()
        step(first)
        self.wait()
        each = (time.perf_counter() - began) / first
        return min(new, max(first, int(self.settings.turn / each)))

    def cache(self, batch: int, length: int) -> Any:
        """The cache of a row's decoding."""
        if self.static:
            return self.transformers.StaticCache(config=self.model.config, max_cache_len=length)
        if self.name.startswith("opmux"):
            import opmux_transformers

            codes = "fp8" if self.name in CACHE_ROWS else None
            return opmux_transformers.PagedCache(self.model, max_length=length, dtype=codes)
        return self.transformers.DynamicCache(config=self.model.config)

    def stepper(self, batch: int, cache: Any, first: Any) -> Callable[[Any], Any]:
        """The function that turns the current token of every sequence into the next one."""
        torch = self.torch
        if self.name.endswith("graph") and self.settings.device == "cuda":
            return self.captured(cache, first)
        model = self.compiled("reduce-overhead" if self.settings.device == "cuda" else None)

        def run(token: Any) -> Any:
            with torch.no_grad():
                if "compiled" in self.name and self.settings.device == "cuda":
                    torch.compiler.cudagraph_mark_step_begin()
                return model(token, past_key_values=cache).logits[:, -1:].argmax(-1).clone()

        return run

    def captured(self, cache: Any, first: Any) -> Callable[[Any], Any]:
        """The step as a CUDA graph. What is captured has run before, as opmux's ops and compiled models require."""
        torch, model = self.torch, self.compiled(None)
        token = first.clone()

        def forward() -> None:
            with torch.no_grad():
                token.copy_(model(token, past_key_values=cache).logits[:, -1:].argmax(-1))

        replay = self.capture(forward)

        def run(given: Any) -> Any:
            if given is not token:
                token.copy_(given)
            replay()
            return token

        return run

    def capture(self, forward: Callable[[], None]) -> Callable[[], None]:
        """What replays a function as a CUDA graph; it runs three times before."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                forward()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            forward()
        replay: Callable[[], None] = graph.replay
        return replay


def say(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def work_in_turns(
    name: str, model_name: str, tiny: bool, steps: int, pipe: Any, folders: Sequence[str] = (),
    turn: float = math.inf, ready: float = math.inf,
) -> None:  # fmt: skip
    """A row's process: make the model, then measure what is asked for.

    Folders come first in the path of imports. ``turn`` bounds the seconds of decoding; ``ready`` is when the row must
    be ready for its work, by the monotonic clock.
    """
    sys.path[:0] = folders
    try:
        row = Row(name, model_name, Settings(tiny, steps, model_name, turn))
        pipe.send(("ready", None))
    except Exception as error:
        pipe.send(("left out", say(error)))
        return
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent's time is over
        while (work := pipe.recv()) is not None:
            by = ready if work.startswith(UNTIMED) else math.inf
            answer = None if work == PARK else in_time(row.run, work, by)
            left = attempt(row.leave, work)
            if answer is not None:
                pipe.send(left if left[0] == "failed" and answer[0] != "failed" else answer)


def in_time(do: Callable[[str], Any], work: str, by: float) -> tuple[str, Any]:
    """A row's answer, which is `LATE` where the work was not done by that time; then it is broken off."""
    if by == math.inf:
        return attempt(do, work)
    late = (LATE, "it was not ready when the turns began")
    if (left := by - time.monotonic()) <= 0:
        return late

    def stop(*_: Any) -> None:
        raise TimeoutError(late[1])

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, left, 1.0)  # again each second: what compiles may go on after an exception
    try:
        answer = attempt(do, work)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    return late if answer[0] == "failed" and time.monotonic() >= by else answer


def attempt(do: Callable[[str], Any], work: str) -> tuple[str, Any]:
    """A row's answer: its measurement, or the reason why it failed."""
    try:
        return "measured", do(work)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return "failed", say(error)


class Workers:
    """The processes of all rows of one model."""

    def __init__(self, model_name: str, rows: list[str], arguments: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self.limit = arguments.limit
        self.running: dict[str, tuple[Any, Any]] = {}
        self.left_out: dict[str, str] = {}
        asked = time.monotonic()
        self.ready = asked + arguments.warm
        """When the rows must be ready, by the monotonic clock."""
        for name in rows:
            here, there = context.Pipe()
            folders = arguments.hf_path if name.startswith("hf") or name in HUB_ROWS else ()
            within = (arguments.turn, self.ready)
            given = (name, model_name, arguments.tiny, arguments.steps, there, folders, *within)
            process = context.Process(target=work_in_turns, args=given, daemon=True)
            process.start()
            self.running[name] = (process, here)
        for name in rows:  # they start at the same time
            state, reason = self._answer(name, asked, self.limit)
            if state == "left out":
                self.left_out[name] = reason
                self.stop(name)

    def _answer(self, name: str, asked: float, limit: float) -> tuple[str, Any]:
        process, pipe = self.running[name]
        reason = f"took longer than {limit:.0f} s"
        try:
            if pipe.poll(max(0.0, asked + limit - time.monotonic())):
                answer: tuple[str, Any] = pipe.recv()
                return answer
        except (EOFError, OSError):
            process.join(5)
            reason = f"the process ended with {process.exitcode}"
        self.left_out[name] = reason
        self.stop(name)
        return "failed", reason

    def tell(self, what: str) -> None:
        """Send every row a command that has no answer."""
        for _, pipe in self.running.values():
            with contextlib.suppress(OSError):  # a process that has ended is noticed at its next answer
                pipe.send(what)

    def ask(self, work: str, names: Sequence[str]) -> dict[str, tuple[str, Any]]:
        """Have rows do some work at the same time; a row that is late is left out from then on."""
        return {name: answer for (name, _), answer in self.ask_all([(name, work) for name in names]).items()}

    def ask_all(self, asked: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, Any]]:
        """The same for several kinds of work: a row goes on to its next one without waiting for others."""
        began = time.monotonic()
        for name, work in asked:
            with contextlib.suppress(OSError):  # a process that has ended is noticed at its answer
                self.running[name][1].send(work)
        limit = self.limit
        if any(work.startswith(UNTIMED) for _, work in asked):
            limit = min(limit, max(0.0, self.ready + GRACE - began))
        return {
            (name, work): self._answer(name, began, limit) if name in self.running else ("failed", self.left_out[name])
            for name, work in asked
        }

    def stop(self, name: str) -> None:
        """End a row's process."""
        process, pipe = self.running.pop(name)
        with contextlib.suppress(OSError):
            pipe.send(None)
        process.join(5)
        if process.is_alive():
            process.terminate()


def environment(arguments: argparse.Namespace) -> dict[str, Any]:
    """Versions, the device, and how many tokens are decoded."""
    import importlib.metadata

    import torch

    versions = {}
    for name in (
        "torch",
        "transformers",
        "triton",
        "opmux",
        "opmux-triton",
        "opmux-transformers",
        "liger-kernel",
        "tilegym",
    ):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    versions |= {found.name: found.version for found in importlib.metadata.distributions(path=arguments.hf_path)}
    device, dtype = ("cpu", "float32") if arguments.tiny else (torch.cuda.get_device_name(), "bfloat16")
    steps = Settings(arguments.tiny, arguments.steps).new
    return {"versions": versions, "device": device, "dtype": dtype, "steps": steps}


def differences(before: dict[str, Any], run: dict[str, Any]) -> list[str]:
    """How the conditions of a file's results differ from this run's; such results do not belong in one table."""
    there, here = ({**r["versions"], **{k: r[k] for k in ("device", "dtype", "steps")}} for r in (before, run))
    return [f"{key} {there[key]}, not {here[key]}" for key in there if key in here and there[key] != here[key]]


def merged(before: dict[str, Any], run: dict[str, Any], rows: Sequence[str]) -> dict[str, Any]:
    """Merge the results of a run of these rows into a file's.

    Results that were not measured again are kept.
    """
    models = {name: {**found} for name, found in before["models"].items()}
    for name, found in run["models"].items():
        for work, table in found.items():
            old = models.setdefault(name, {}).get(work, {})
            models[name][work] = {**{row: entry for row, entry in old.items() if row not in rows}, **table}
    return {**run, "versions": {**before["versions"], **run["versions"]}, "models": models}


def other_gradients(table: dict[str, Any], answer: dict[str, float]) -> str | None:
    """Why a row's training does not count: its gradients differ from the unpatched model's. None if they agree."""
    first = next(iter(table.get("eager", {}).get("rounds", ())), {})
    own, right = answer.get("gradient"), first.get("gradient")
    if own is None or not right or abs(own / right - 1) < SAME_GRADIENT:
        return None
    return f"its gradients have the norm {own:.4g}, those of the unpatched model {right:.4g}"


def measure(arguments: argparse.Namespace, results: dict[str, Any], save: Callable[[], None]) -> None:
    """Measure every model and every kind of work, in rounds over all rows."""
    started = time.monotonic()

    def late() -> bool:
        if time.monotonic() - started > arguments.total:
            results["stopped"] = f"after {arguments.total:.0f} s"
            save()
            return True
        return False

    for model_name in arguments.models:
        found = results["models"].setdefault(model_name, {})
        if not measure_model(model_name, arguments, found, late, save):
            return


def measure_model(
    model_name: str,
    arguments: argparse.Namespace,
    found: dict[str, Any],
    late: Callable[[], bool],
    save: Callable[[], None],
) -> bool:
    """Measure one model; False if the time is over before all rounds are done."""
    began, works = time.monotonic(), arguments.work
    rows = [name for name in arguments.rows if any(fits_work(name, model_name, work) for work in works)]
    workers = Workers(model_name, rows, arguments)
    for name, reason in workers.left_out.items():
        print(f"{model_name}: {name} is left out: {reason}", flush=True)
    print(f"{model_name}: the rows are made after {time.monotonic() - began:.0f} s", flush=True)
    tables: dict[str, Any] = {
        work: {name: {"left_out": why} for name, why in workers.left_out.items() if fits_work(name, model_name, work)}
        for work in works
    }
    if late():
        return False
    groups = [work for work in works if work != "training"], [work for work in works if work == "training"]
    before = {f"{UNTIMED}{work}": work for work in groups[0]}
    asked = [(name, what) for what in before for name in workers.running if fits_work(name, model_name, before[what])]
    for (name, what), (state, answer) in workers.ask_all(asked).items():
        work = before[what]
        if state != "measured":
            print(f"{model_name} {work}, before the rounds: {name}: {answer}", flush=True)
        if state == LATE:
            tables[work][name] = {"rounds": [], "failed": answer}
        if name in workers.left_out:  # a row that failed while others ran still gets its turn
            tables[work][name] = {"rounds": [], "failed": workers.left_out[name]}  # also what it did in time
    print(f"{model_name}: all ran after {time.monotonic() - began:.0f} s", flush=True)
    for group in groups:
        if group == ["training"]:
            workers.tell(PARK)
        for number, work in itertools.product(range(arguments.rounds), group):
            table = tables[work]
            names = [name for name in workers.running if fits_work(name, model_name, work)]
            for name in [name for name in names if "failed" not in table.get(name, {})]:
                if late():
                    return False
                found[work] = table  # from the first turn on, it replaces the file's results
                said = turn(workers, table, work, name)
                print(f"{model_name} {work} round {number + 1}: {name}: {said}", flush=True)
                save()
    found.update(tables)  # even if no row got a turn
    for name in [*workers.running]:
        workers.stop(name)
    return True


def turn(workers: Workers, table: dict[str, Any], work: str, name: str) -> str:
    """Give a row a turn, and put what it measured into the table; returns it in words."""
    state, answer = workers.ask(work, [name])[name]
    entry = table.setdefault(name, {"rounds": []})
    if state == "measured" and (reason := other_gradients(table, answer)) is not None:
        state, answer = "failed", reason
    if state != "measured":
        entry["failed"] = answer
        return str(answer)
    entry["rounds"].append(answer)
    entry["tokens_per_second"] = statistics.median(r["tokens_per_second"] for r in entry["rounds"])
    entry["peak_gib"] = max(r["peak_gib"] for r in entry["rounds"])
    if "steps" in answer:
        entry["steps"] = min(r["steps"] for r in entry["rounds"])
    return f"{answer['tokens_per_second']:.1f} tokens/s{few(answer)}"


def few(entry: dict[str, Any]) -> str:
    """A remark on a row that decoded fewer tokens than others."""
    return f", {entry['steps']} tokens decoded" if "steps" in entry else ""


def show(results: dict[str, Any]) -> None:
    """The tables, with the ratio of each row's rate to the unpatched eager row's and to the best other row's."""
    for model_name, found in results["models"].items():
        for work, table in found.items():
            print(f"\n{model_name}, {work}")
            rates = {n: e["tokens_per_second"] for n, e in table.items() if "tokens_per_second" in e}
            others = [rate for name, rate in rates.items() if not name.startswith("opmux")]
            for name, entry in table.items():
                if name not in rates:
                    print(f"  {name:<16} {entry.get('left_out') or entry.get('failed')}")
                    continue
                to_eager = f"{rates[name] / rates['eager']:.2f} x eager" if "eager" in rates else ""
                to_best = f"{rates[name] / max(others):.2f} x best other" if others else ""
                print(
                    f"  {name:<16} {rates[name]:>12.1f} tokens/s  {entry['peak_gib']:6.1f} GiB  {to_eager}  {to_best}"
                    f"{few(entry)}"
                )


def join(target: Path, parts: Sequence[Path], refuse: Callable[[str], None]) -> None:
    """Merge the results of files into one, later ones over earlier; ``refuse`` is called with what does not fit."""
    for part in parts:
        run = json.loads(part.read_text())
        before = json.loads(target.read_text()) if target.exists() else {**run, "models": {}}
        if found := differences(before, run):
            refuse(f"{part}: {target} has results of {'; '.join(found)}")
        rows = {row for found in run["models"].values() for table in found.values() for row in table}
        target.write_text(json.dumps(merged(before, run, [*rows]), indent=1))
    show(json.loads(target.read_text()))


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(DEFAULT_MODELS))
    parser.add_argument("--work", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(PLAIN_ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=256, help="tokens that are decoded")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that one turn of one row may take")
    parser.add_argument("--turn", type=float, default=math.inf, help="seconds of decoding in a turn")
    parser.add_argument("--warm", type=float, default=math.inf, help="seconds after which the turns begin")
    parser.add_argument("--total", type=float, default=3600.0, help="seconds after which no further turn begins")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--join", type=Path, nargs="+", default=[], help="measure nothing: add these files to --json")
    parser.add_argument("--tiny", action="store_true", help="small models on the CPU")
    parser.add_argument(
        "--hf-path",
        nargs="+",
        default=[],
        help="folders that only rows with a hub's kernels import from",
    )
    arguments = parser.parse_args()
    if arguments.join:
        if arguments.json is None:
            parser.error("--join adds to the file that --json names, and there is none")
        join(arguments.json, arguments.join, parser.error)
        return
    if arguments.tiny:
        arguments.rounds = min(arguments.rounds, 2)
    results: dict[str, Any] = {**environment(arguments), "models": {}}
    before: dict[str, Any] = {**results, "models": {}}
    if arguments.json is not None and arguments.json.exists():
        before = json.loads(arguments.json.read_text())
        if found := differences(before, results):
            parser.error(f"{arguments.json} has results of {'; '.join(found)}")

    def save() -> None:
        if arguments.json is not None:
            part = arguments.json.with_suffix(".part")  # the file stays complete if the process is killed
            part.write_text(json.dumps(merged(before, results, arguments.rows), indent=1))
            part.replace(arguments.json)

    measure(arguments, results, save)
    save()
    show(merged(before, results, arguments.rows))


if __name__ == "__main__":
    main()
