"""The demo, with this backend installed: the libraries run what they can, and the model learns and serves as before."""

from opmux.demo import DemoSettings, run
from opmux.demo.serving import ServingSettings
from opmux.demo.training import TrainingSettings

BY_LIBRARIES = {
    "linear": "vendor:blas",
    "linear_backward": "vendor:blas",
    "attention": "vendor:cpu_flash",
    "attention_lse": "vendor:cpu_flash",
    "attention_backward": "vendor:cpu_flash",
}


def test_the_demo_runs_on_the_libraries(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six seven eight nine ten eleven twelve\n" * 60)
    sizes = {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "intermediate": 48}
    settings = DemoSettings(
        model=sizes,
        training=TrainingSettings(steps=60, batch=8, seq=32, learning_rate=1e-2, warmup=5),
        serving=ServingSettings(pages=6, chunk=8, tokens_per_step=12),
        requests=2,
    )
    result = run(text, device="cpu", settings=settings)
    assert result.passed, result.failures
    ran = {(use.op, use.backend) for use in result.ops}
    assert set(BY_LIBRARIES.items()) <= ran
    assert not any(op in BY_LIBRARIES and backend == "reference" for op, backend in ran)
