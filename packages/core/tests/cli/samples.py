"""Results of a demo and of a conformance run, as the commands get them."""

from opmux import demo
from opmux.demo.checks import Difference, TokenCheck
from opmux.demo.report import GeneratedText, OpUse, ServingReport, SpeedReport, TextReport, TrainingReport
from opmux.demo.scheduling import StepRecord

DEMO = demo.DemoResult(
    device="cpu",
    text=TextReport("a text", 9000, 60, 900, 900),
    training=TrainingReport(1234, 300, 4.5, 1.7, 4.4, 1.9, 2.4, 1.0, 9876.4, 30.0),
    serving=ServingReport(
        40, 50, 321.6, 0.5, (StepRecord(0, 32, 0, (0,), (), 0, 2),), 24, 24,
        (GeneratedText(0, "The [plan]\n", "is [/here]", 0, 0, 9),),
    ),
    tokens=TokenCheck(40, 39, 1, (), 3e-6),
    logits_difference=Difference(2.5e-6, 4e-7),
    gradients_difference=Difference(1e-7, 2e-6),
    speeds=SpeedReport(15000.0, 10000.0),
    ops=(OpUse("rms_norm", "cpu", "reference", 9, 0, 812.5, 0.0, "priority 0, the only candidate"),),
    seconds=41.6,
)  # fmt: skip

GOOD_OP = {
    "op": "rms_norm",
    "cases": 8,
    "claimed": 6,
    "coverage": 0.75,
    "max_error": {"global": 0.25, "row": 0.5, "element": None},
    "failures": [],
    "skips": {"not deterministic": 2},
    "not_run": {"repeat": "not deterministic"},
}
BAD_OP = {
    **GOOD_OP,
    "op": "linear",
    "failures": [{"case": "x=bf16[3,4]", "check": "row", "message": "row 2 is [off]", "repro": "run_case('x=[3,4]')"}],
}


ENVIRONMENT = {
    "opmux": "0.1.0",
    "torch": "2",
    "python": "3",
    "platform": "Linux",
    "device": "cpu",
    "arch": "cpu",
    "plugins": {"opmux-rows": "1.2"},
    "profile": "small",
    "within": "",
    "seconds": 1.5,
    "not_checked": {"graph capture": "needs a GPU"},
    "constraints_not_broken": ["rms_norm: AtMost('hidden', 4)"],
}


def result(*ops: dict, passed: int = 6) -> dict:
    return {
        "backend": "rows",
        "version": "1.2",
        "passed": passed,
        "failed": sum(len(op["failures"]) for op in ops),
        "skipped": 2,
        "ops": list(ops),
        "not_loaded": [],
        "environment": ENVIRONMENT,
    }
