"""The workspace's sessions: ``nox -l`` lists them, ``nox -s tests`` runs one.

Each installs what it needs in one pip command, held to ``constraints.txt``. The sessions ``ci*`` do the work of several
others in one environment each, so that torch is installed four times and not eleven; docs/maintainers/sessions.md says
what they leave to the whole sessions.
"""

import functools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["tests", "lint", "types", "docs"]
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
CORE = "packages/core"
TEMPLATE = "examples/backend-template"
TRITON = "packages/plugins-triton"
VENDOR = "packages/plugins-vendor"
ASM = "packages/plugins-asm"
CK = "packages/plugins-ck"
DEEPGEMM = "packages/plugins-deepgemm"
CUTILE = "packages/plugins-cutile"
TRANSFORMERS = "packages/transformers"
EMULATOR = "packages/emulator"
JIT = "packages/jit"
PACKAGES = (CORE, TEMPLATE, JIT, TRITON, VENDOR, ASM, CK, DEEPGEMM, CUTILE, TRANSFORMERS, EMULATOR)
TESTED = (CORE, JIT, TRITON, VENDOR, ASM, CK, DEEPGEMM, CUTILE, TRANSFORMERS, EMULATOR)
"""Packages with tests of their own; the template's run in session ``build``."""
ARCHS = {"gfx942": "gfx942", "gfx90a": "gfx90a", "gfx950": "gfx950", "sm90": "sm_90"}
"""Sessions ``test-gfx942``, ``test-sm90``, ... and the arch that each is for."""
MYPY = "mypy==2.4.1"
SITE = ("mkdocs", "mkdocs-material", "mkdocstrings[python]")
EVERYTHING = (
    f"{CORE}[cli,plot,ray,testing]",
    TEMPLATE,
    TRITON,
    VENDOR,
    f"{ASM}[testing]",
    f"{CK}[testing]",
    f"{DEEPGEMM}[testing]",
    f"{CUTILE}[testing]",
    f"{TRANSFORMERS}[testing]",
    f"{EMULATOR}[compiler]",
    f"{JIT}[testing]",
    "pytest-xdist",
    MYPY,
)
"""All packages with what their tests and types need."""
GENERATORS = ("make_op_table", "make_module_map", "make_benchmark_page")
"""The programs under ``scripts`` that write committed pages."""
CONSTRAINTS = str(ROOT / "constraints.txt")
OLDEST = str(ROOT / "constraints-oldest.txt")
CORE_ALONE = (f"{CORE}[cli]", "numpy")
"""What the demo and the figures of the core are run with; without numpy torch warns when it is imported."""
COUNTS = ROOT / "build" / "test-counts.json"
WHEEL_LIMIT_BYTES = 1_000_000
CUBINS_LIMIT_BYTES = 4_000_000


def install(session: nox.Session, *what: str) -> None:
    """Install everything of a session at once, so that local packages satisfy each other."""
    session.install("--constraint", CONSTRAINTS, *what)


def say_counts(session: nox.Session, counts: dict[str, int]) -> None:
    """Say on a line of its own how many tests passed and failed."""
    session.log("tests: see the last line")
    print(f"{counts['passed']} passed, {counts['failed']} failed", flush=True)


DISTRIBUTED = ["-n", str(min(os.cpu_count() or 1, 8)), "--dist", "worksteal"]
"""pytest in as many processes as there are processors."""


@nox.session
def tests(session: nox.Session) -> None:
    """Run every test of every package; arguments go to pytest."""
    install(session, *EVERYTHING)
    run_tests(session)


def run_tests(session: nox.Session, *selected: str) -> None:
    """Run the tests of each package in its own process: the core's plant their plugins and load no installed one."""
    COUNTS.parent.mkdir(exist_ok=True)
    COUNTS.unlink(missing_ok=True)
    totals = {"passed": 0, "failed": 0}
    failed = []
    for tests_of in [session.posargs] if session.posargs else [[f"{package}/tests"] for package in TESTED]:
        part = COUNTS.with_suffix(f".{Path(tests_of[0]).parent.name}.json")
        part.unlink(missing_ok=True)
        distributed = [] if session.posargs else DISTRIBUTED
        environment = {"OPMUX_TEST_COUNTS": str(part), "OMP_NUM_THREADS": "1"}
        try:
            session.run("python", "-m", "pytest", *distributed, *selected, *tests_of, env=environment)
        except CommandFailed:  # the other packages' tests run all the same
            failed.append(tests_of[0])
        found = json.loads(part.read_text()) if part.exists() else {"passed": 0, "failed": 1}
        totals = {name: totals[name] + found[name] for name in totals}
    COUNTS.write_text(json.dumps(totals))
    say_counts(session, totals)
    if failed:
        raise CommandFailed(f"tests failed: {' '.join(failed)}")


@nox.session(name="test-interpreter")
def interpreter(session: nox.Session) -> None:
    """Hold the Triton kernels to the references on the CPU, under Triton's interpreter, at tiny sizes."""
    install(session, f"{CORE}[cli,testing]", TRITON)
    interpret(session)


def interpret(session: nox.Session) -> None:
    """Run the conformance suite under Triton's interpreter."""
    environment = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    arguments = session.posargs or ["--profile", "interpreter", "--jobs", str(os.cpu_count() or 1)]
    session.run("opmux", "conformance", "triton", *arguments, env=environment)


def interpret_some(session: nox.Session) -> None:
    """A few cases of each op by pytest's processes: most of the time would go into starting one for each op."""
    suite = ["-p", "opmux.testing.plugin", "--pyargs", "opmux.testing.conformance", "--backend", "triton"]
    options = ["-q", "-W", "ignore::RuntimeWarning"]  # NumPy's, where infinities are added or multiplied
    environment = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    arguments = [*options, *DISTRIBUTED, *suite, "--profile", "interpreter-some"]
    session.run("python", "-m", "pytest", *arguments, env=environment)


def check_machine_code(session: nox.Session, arch: str, *arguments: str) -> None:
    """Compile for an arch and hold the machine code to its record; the session's arguments go to the command too."""
    folder = ROOT / TRITON / "machine-code"
    files = ["--expected", str(folder / f"{arch}.json"), "--known", str(folder / "known.toml")]
    session.run("opmux", "machine-code", arch, *files, *arguments, *session.posargs)


@nox.session(name="test-sm90-oldest")
def oldest(session: nox.Session) -> None:
    """Compile every kernel for sm_90 with the oldest Triton that is supported, and check the machine code."""
    session.install("--constraint", OLDEST, f"{CORE}[cli,testing]", TRITON)
    check_machine_code(session, "sm_90")


@nox.session(name="test-jit-faults")
def jit_faults(session: nox.Session) -> None:
    """Kill builders of the kernel cache at random points, 200 times, and have other processes take over."""
    install(session, f"{CORE}[cli,testing]", f"{JIT}[testing]")
    session.run("python", "-m", "pytest", f"{JIT}/tests/cache/test_processes.py", env={"JIT_KILLS": "200"})


@nox.session(name="test-transformers-oldest")
def transformers_oldest(session: nox.Session) -> None:
    """Run the tests of the transformers patches with the oldest transformers that is supported."""
    session.install("--constraint", OLDEST, f"{CORE}[cli,testing]", f"{TRANSFORMERS}[testing]", "pytest-xdist")
    arguments = session.posargs or [*DISTRIBUTED, f"{TRANSFORMERS}/tests"]
    session.run("python", "-m", "pytest", *arguments, env={"OMP_NUM_THREADS": "1"})


def test_arch(session: nox.Session, arch: str) -> None:
    """Check one arch in an environment of its own; ``-- --write`` records the machine code's facts again."""
    install(session, *ON_ARCHS)
    check_arch(session, arch)


def emulate_kernels(session: nox.Session, arch: str, profile: str) -> None:
    """Execute the Triton kernels as compiled for an AMD arch, on the emulator, and compare them with the references."""
    arguments = ["--profile", profile, "--within", f"opmux_emulator.triton_launches:on({arch})"]
    if profile == "emulator":  # of a few cases, most of the time would go into starting processes
        arguments += ["--jobs", str(os.cpu_count() or 1)]
    session.run("opmux", "conformance", "triton", *arguments, env={"OMP_NUM_THREADS": "1"})


def check_arch(session: nox.Session, arch: str) -> None:
    """Run what can be run for an arch: on its device where there is one, else its machine code is checked.

    Fails where no backend claims the arch.
    """
    check_machine_code(session, arch)
    here = session.run("python", "-c", PRESENT_ARCHS, silent=True)
    if arch.startswith("gfx"):
        emulate_kernels(session, arch, "emulator")
    if arch in str(here).split():
        for backend in ("triton", "asm") if arch in ASSEMBLY_ARCHS else ("triton",):
            session.run("opmux", "conformance", backend, "--profile", "model", "--jobs", "8")
        session.log(f"{arch}: compiled, its machine code checked, and run on the device of this machine")
    elif arch.startswith("gfx"):
        session.log(f"{arch}: compiled, its machine code checked, and run on the emulator: no such device is present")
    else:
        session.log(
            f"{arch}: compiled, and its machine code checked; no such device is present, so nothing was run. "
            "The kernels' numerics are those of session test-interpreter"
        )


ON_ARCHS = (f"{CORE}[cli,testing]", TRITON, f"{JIT}[native]", ASM, EMULATOR)
"""What the sessions of archs install."""
PRESENT_ARCHS = "from opmux.arch import present_archs; print(*(a for _, a, _ in present_archs()))"

for session_name, arch_name in ARCHS.items():
    arch_session = functools.partial(test_arch, arch=arch_name)
    arch_session.__doc__ = (
        f"Compile every kernel for {arch_name}, check the machine code, run on it or on the emulator."
    )
    nox.session(arch_session, name=f"test-{session_name}")


@nox.session(name="test-kernels")
def kernels(session: nox.Session) -> None:
    """Run the interpreter's session and those of all archs, one after the other, in one environment."""
    install(session, *ON_ARCHS)
    interpret(session)
    for arch in ARCHS.values():
        check_arch(session, arch)


@nox.session(name="test-asm")
def asm(session: nox.Session) -> None:
    """Run the assembly kernels on the emulator, for each arch, against the references; arguments go to the command."""
    install(session, f"{CORE}[cli,testing]", f"{JIT}[native]", f"{ASM}[toolchain]", EMULATOR)
    emulate_assembly(session, "small")


ASSEMBLY_ARCHS = ("gfx942", "gfx950")
"""The archs that the assembly kernels are for."""


def emulate_assembly(session: nox.Session, profile: str, archs: tuple[str, ...] = ASSEMBLY_ARCHS) -> None:
    """Launch the assembly kernels through the native launcher on the emulator's HIP library, zero judgements."""
    environment = {"OMP_NUM_THREADS": "1", "OPMUX_PLUGINS": "asm"}
    for arch in archs:
        arguments = ["--profile", profile, *session.posargs]
        if profile != "emulator-some":  # of a few cases, most of the time would go into starting processes
            arguments += ["--jobs", str(os.cpu_count() or 1)]
        within = ["--within", f"opmux_emulator.jit_launches:on({arch})"]
        session.run("opmux", "conformance", "asm", *arguments, *within, env=environment)


@nox.session(name="test-ck")
def ck(session: nox.Session) -> None:
    """Build Composable Kernel's instances from its sources (fetches 40 MB) and run them on the emulator."""
    environment = prepare_ck(session)
    session.run("python", "-m", "pytest", f"{CK}/with_ck", env=environment)
    emulate_ck(session, environment, "--profile", "small", "--jobs", "2", *session.posargs)


@nox.session(name="test-ck-oldest")
def ck_oldest(session: nox.Session) -> None:
    """Build one instance of each family that the oldest supported Composable Kernel has (fetches 8 MB), and run it."""
    environment = prepare_ck(session, "older")
    session.run("python", "-m", "pytest", f"{CK}/with_ck/test_covering.py", env=environment)
    emulate_ck(session, environment, "--profile", "emulator-some", *NORMS_OF_CK)


@nox.session(name="ci-ck")
def ci_ck(session: nox.Session) -> None:
    """Build one instance of each family from Composable Kernel's sources (fetches 40 MB), and run it."""
    check_some_instances(session, prepare_ck(session))


def check_some_instances(session: nox.Session, environment: dict[str, str] | None = None) -> None:
    """The same in the environment of another session."""
    environment = environment or sources_of_ck(session)
    session.run("python", "-m", "pytest", f"{CK}/with_ck/test_covering.py", env=environment)
    emulate_ck(session, environment, "--profile", "emulator-some", *NORMS_OF_CK)


NORMS_OF_CK = [word for op in ("rms_norm", "add_rms_norm_quantize", "layer_norm") for word in ("--op", op)]
"""What the conformance suite runs where time is short: an instance of a norm compiles in seconds."""


def prepare_ck(session: nox.Session, *release: str) -> dict[str, str]:
    """Install the backend and fetch the sources of a release; returns the environment that its tests run in."""
    build_tools = ["setuptools", "wheel", "packaging", "psutil"] if release else []  # for a source distribution
    install(session, f"{CORE}[cli,testing]", JIT, f"{CK}[testing]", EMULATOR, *build_tools)
    return sources_of_ck(session, *release)


def sources_of_ck(session: nox.Session, *release: str) -> dict[str, str]:
    """Fetch the sources of a release; returns the environment that its tests run in."""
    archive = session.run("python", f"{CK}/with_ck/fetching.py", *release, silent=True)
    return {"OMP_NUM_THREADS": "1", "OPMUX_PLUGINS": "ck", "OPMUX_CK_DIR": str(archive).strip().splitlines()[-1]}


def emulate_ck(session: nox.Session, environment: dict[str, str], *arguments: str) -> None:
    """Run the conformance suite through the native launcher on the emulator's HIP library."""
    within = ["--within", "opmux_emulator.jit_launches:on(gfx942)"]
    session.run("opmux", "conformance", "ck", *arguments, *within, env=environment)


@nox.session(name="test-cutile")
def cutile(session: nox.Session) -> None:
    """Compile every CUDA Tile kernel that calls of models get, for four archs, check it, and build the wheel."""
    install(session, f"{CORE}[cli,testing]", JIT, f"{CUTILE}[testing]", "pytest-xdist", "build", "hatchling")
    wheels = ROOT / "build" / "cutile"
    shutil.rmtree(wheels, ignore_errors=True)
    env = {
        "OMP_NUM_THREADS": "1",
        "OPMUX_CACHE": os.environ.get("OPMUX_CACHE", str(Path(session.create_tmp()) / "jit")),
    }
    session.run("python", "-m", "pytest", *DISTRIBUTED, f"{CUTILE}/every_kernel", env=env)
    session.run("python", "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), CUTILE, env=env)
    (wheel,) = wheels.glob("*.whl")
    size = wheel.stat().st_size
    session.log(f"{wheel.name}: {size / 1e6:.3f} MB")
    if not 100_000 < size < CUBINS_LIMIT_BYTES:
        session.error(f"{wheel.name} is {size} bytes; with cubins it has 100000 to {CUBINS_LIMIT_BYTES}")


@nox.session(name="test-foreign")
def foreign(session: nox.Session) -> None:
    """Run AMD's hand-written code objects on the emulator (fetches 40 MB); ``-- --write`` writes the page."""
    install(session, EMULATOR)
    session.run("python", f"{EMULATOR}/foreign", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format, and that CI runs every session."""
    session.install("ruff==0.17.6", "clang-format==21.1.8")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("clang-format", "--dry-run", "--Werror", *c_sources())
    session.run("python", "scripts/check_ci.py", *sorted(nox.registry.get()))


def c_sources() -> list[str]:
    """C++ and CUDA of the packages; CK's templates are laid out by hand, since their types outgrow a line."""
    found = (file for file in (ROOT / "packages").rglob("*.[ch]*") if file.suffix in (".cpp", ".cuh", ".h"))
    return sorted(str(file.relative_to(ROOT)) for file in found if not file.is_relative_to(ROOT / CK))


@nox.session
def types(session: nox.Session) -> None:
    """Check types, one run per package."""
    install(session, *EVERYTHING)
    check_types(session)


def check_types(session: nox.Session) -> None:
    """Compare the generated types of the ops with their signatures, and run mypy on each package."""
    session.run("python", "scripts/make_stubs.py", "--check")
    for package in PACKAGES:
        session.run("mypy", "--config-file", "pyproject.toml", f"{package}/src")


@nox.session
def docs(session: nox.Session) -> None:
    """Check the generated pages and build the site; every warning is an error."""
    install(session, f"{CORE}[cli,plot,ray,testing]", *SITE)
    build_docs(session)


def build_docs(session: nox.Session) -> None:
    """Compare the generated pages with what they are made from, and build the site."""
    for script in GENERATORS:
        session.run("python", f"scripts/{script}.py", "--check")
    session.run("mkdocs", "build", "--strict", "--site-dir", str(ROOT / "build" / "site"))


@nox.session
def generate(session: nox.Session) -> None:
    """Write what is generated: types and table of the ops, the map of modules, the figures and their pictures."""
    install(session, f"{CORE}[cli,plot,testing]")
    for script in ("make_stubs", *GENERATORS):
        session.run("python", f"scripts/{script}.py")


@nox.session
def demo(session: nox.Session) -> None:
    """Train and serve a small Llama through opmux; arguments go to ``opmux demo``."""
    install(session, *CORE_ALONE)
    run_demo(session)


def run_demo(session: nox.Session) -> None:
    """Run the main job."""
    session.run("opmux", "demo", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Print the figures of the core: call budget, with gradients too, plan miss, import time."""
    install(session, *CORE_ALONE)
    run_bench(session)


def run_bench(session: nox.Session) -> None:
    """Print the figures of the core."""
    for program in ("call_budget", "gradient_budget", "plan_miss", "import_time"):
        session.run("python", f"{CORE}/benchmarks/{program}.py")


def run_parts(session: nox.Session, parts: Mapping[str, Callable[[nox.Session], None]]) -> None:
    """Run each part whether or not the others fail, say how long it took, and fail with the names of those that did."""
    failed = []
    for name, part in parts.items():
        started = time.monotonic()
        try:
            part(session)
        except CommandFailed:
            failed.append(name)
        session.log(f"part {name} took {time.monotonic() - started:.0f} s")
    if failed:
        session.error(f"parts that failed: {' '.join(failed)}")


@nox.session
def ci(session: nox.Session) -> None:
    """Run all tests but the long ones, check types, docs and a covering part of the kernels, in one environment."""
    install(session, *EVERYTHING, *SITE)
    parts = {
        "tests": run_most_tests, "types": check_types, "docs": build_docs, "kernels": check_some_kernels,
        "instances": check_some_instances,
    }  # fmt: skip
    run_parts(session, parts)


SHORT = ("-m", "not long")
"""What pytest is told where time is short."""

SOME = {
    f"{CORE}/tests/testing/test_large.py": 8,
    f"{ASM}/tests/attention/test_dense.py": 6,
    f"{ASM}/tests/products/test_loops.py": 4,
    f"{ASM}/tests/row_ops/test_kernels.py": 6,
    f"{CUTILE}/tests/test_attention_backward.py": 2,
    f"{CUTILE}/tests/test_grouped.py": 2,
    f"{CUTILE}/tests/test_machine_code.py": 2,
    f"{DEEPGEMM}/tests/test_grouped_kernels.py": 3,
    f"{DEEPGEMM}/tests/test_kernels.py": 4,
    f"{DEEPGEMM}/tests/test_scaled_gradient_kernels.py": 3,
    f"{VENDOR}/tests/test_conformance.py": 1000,
}
"""Files of tests that compile, emulate or play a kernel for each set of parameters, or have thousands, and how many CI
takes."""


def run_most_tests(session: nox.Session) -> None:
    """Run the tests that are not marked as long, and some sets of parameters of those that take a second for each."""
    run_tests(session, *SHORT, *(word for file, sets in SOME.items() for word in ("--some", f"{file}={sets}")))


def check_some_kernels(session: nox.Session) -> None:
    """Each op under the interpreter, some machine code of one arch of each vendor, and some of it emulated."""
    interpret_some(session)
    check_machine_code(session, "gfx942", "--sample")
    check_machine_code(session, "sm_90", "--sample")
    parts: list[Callable[[], object]] = [lambda: emulate_kernels(session, "gfx942", "emulator-some")]
    parts += [functools.partial(emulate_assembly, session, "emulator-some", (arch,)) for arch in ASSEMBLY_ARCHS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each of them is one process
        running = [pool.submit(part) for part in parts]
    for part in running:
        part.result()


@nox.session(name="ci-oldest")
def ci_oldest(session: nox.Session) -> None:
    """Check a covering part with the oldest Triton and transformers, in one environment."""
    session.install("--constraint", OLDEST, f"{CORE}[cli,testing]", TRITON, f"{TRANSFORMERS}[testing]", "pytest-xdist")

    def machine_code(session: nox.Session) -> None:
        check_machine_code(session, "sm_90", "--sample")

    def patches(session: nox.Session) -> None:
        others = [f"--ignore={TRANSFORMERS}/tests/test_{name}.py" for name in ("benchmark", "perplexity")]
        some = ["--some", f"{TRANSFORMERS}/tests=3"]
        tests = [*DISTRIBUTED, *SHORT, "-k", "not compile", *others, *some, f"{TRANSFORMERS}/tests"]
        session.run("python", "-m", "pytest", *tests, env={"OMP_NUM_THREADS": "1"})

    run_parts(session, {"machine code, oldest Triton": machine_code, "patches, oldest transformers": patches})


@nox.session(name="ci-core")
def ci_core(session: nox.Session) -> None:
    """Run the demo and print the figures of the core, with the core alone installed."""
    install(session, *CORE_ALONE)
    run_parts(session, {"bench": run_bench, "demo": run_demo})


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheels, install them in a clean environment away from the tree, and use them there."""
    wheels = ROOT / "build" / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    install(session, "build", "hatchling", "pybind11", "virtualenv", "ziglang")
    for package in PACKAGES:
        session.run("python", "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), package, silent=True)
    for wheel in sorted(wheels.glob("*.whl")):
        size = wheel.stat().st_size
        session.log(f"{wheel.name}: {size / 1e6:.3f} MB")
        if wheel.name.startswith("opmux-") and size > WHEEL_LIMIT_BYTES:
            session.error(f"{wheel.name} is {size} bytes, more than {WHEEL_LIMIT_BYTES}")
    with tempfile.TemporaryDirectory() as folder:
        use_wheels(session, wheels, Path(folder))


def use_wheels(session: nox.Session, wheels: Path, folder: Path) -> None:
    """A clean environment that sees the wheels only; the template's tests run in it, and explain names the template."""
    session.run("python", "-m", "virtualenv", "--quiet", str(folder / "venv"))
    scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    python, opmux = str(scripts / "python"), str(scripts / "opmux")
    packages = ["opmux[cli,testing,triton,asm,ck,deepgemm,cutile]", "opmux-template"]
    find = ["--find-links", str(wheels)]
    run = {"external": True}
    session.run(python, "-m", "pip", "install", "--quiet", "--constraint", CONSTRAINTS, *find, *packages, **run)
    shutil.copytree(ROOT / TEMPLATE / "tests", folder / "tests")
    session.chdir(folder)
    session.run(python, "-m", "pytest", "-q", "tests", **run)
    call = ["explain", "rms_norm", "x=f32[4,64]", "weight=f32[64]", "--arch", "cpu"]
    session.run(opmux, *call, **run)
    explained = session.run(opmux, *call, "--json", silent=True, **run)
    if json.loads(str(explained))["chosen"] != "template":
        session.error("the template was not chosen")
    on_amd = ["explain", "rms_norm", "x=bf16[4096,8192]", "weight=bf16[8192]", "--arch", "gfx942", "--json"]
    explained = session.run(opmux, *on_amd, silent=True, **run)
    if json.loads(str(explained))["chosen"] != "triton":
        session.error("the Triton backend was not chosen for gfx942")
    on_hopper = ["explain", "linear", "x=bf16[777,3072]", "w=bf16[5120,3072]", "--arch", "sm_90", "--json"]
    explained = session.run(opmux, *on_hopper, silent=True, **run)
    sources = [candidate["time_source"] or "" for candidate in json.loads(str(explained))["candidates"]]
    if not any(source.startswith("predicted") for source in sources):
        session.error("the rows that the Triton backend ships for sm_90 are not in force")
    session.run(python, "-m", "opmux_asm.objects", **run)
    session.run(opmux, "doctor", **run)
    session.run(opmux, "conformance", "template", "--profile", "small", **run)
