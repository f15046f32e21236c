"""The tests that concern the engine, on its last releases, and the table of what came of it: `nox -s compat`.

Each release has an environment and a copy of the tests of its own. Tokenizers that a newer release converted are
converted anew there.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from attrs import field, frozen

ROOT = Path(__file__).resolve().parents[2]
MODELS_OF = "2026.4"  #: release that converted tests/models
MINORS = 3  #: the newest build of each, and every build of the newest
PATIENCE_S = 1200

SUITES = {
    "conformance: the simulated engine says what the real one says": ("tests/conformance",),
    "adapter": ("tests/genai/test_engine_adapter.py",),
    "facts that the design rests on": ("tests/genai/test_engine_facts.py",),
    "pools and models, in a real process": (
        "tests/process/test_engine_models.py",
        "tests/process/test_engine_releases.py",
    ),
    "every field of the configurations": (
        "tests/genai/test_every_field.py",
        "tests/genai/test_every_scheduler_field.py",
    ),
    "prompt lookup and draft models": ("tests/genai/test_kind_facts.py", "tests/genai/test_pipeline_kinds.py"),
    "pipelines: full caches, orphans, hybrid traffic": (
        "tests/genai/test_pipeline_cache.py",
        "tests/genai/test_pipeline_orphans.py",
        "tests/hybrid",
    ),
}

_TOKENIZERS = (
    "A tokenizer that 2026.4 converted crashes the process that loads it (SIGSEGV). It is refused before it is loaded: "
    "convert it with the `openvino_tokenizers` of this release, as was done for this table."
)
_PROOF_BY_COUNT = (
    "A handle has no `get_perf_metrics`, so release is proved by the count of requests: one step later than there for "
    "a stop, two for a request that finished by itself. `stats().reclaim.proof` and `health().findings` say so."
)
_KINDS = (
    "A draft model is refused: its metrics count no requests, so there is no proof. Prompt lookup on a hybrid is "
    "refused: it shows other tokens than plain decoding there, silently."
)
_LA_POOL = (
    "Metrics do not tell the linear-attention pool (`la_peak_pool_blocks`): whether a model is a hybrid is taken from "
    "the names of its inputs, the size of the pool from the scheduler's settings. `health().findings` says so."
)
#: What was looked into, by the beginning of a release's number.
KNOWN = {
    "2026.3": (_TOKENIZERS, _PROOF_BY_COUNT, _LA_POOL, _KINDS),
    "2026.2": (
        _TOKENIZERS,
        _PROOF_BY_COUNT,
        _LA_POOL,
        _KINDS,
        "A repeated prompt does not poison a hybrid with prefix caching here. It gives other tokens: off as well.",
        "`branching_factor`, `tree_depth` and `return_omni_outputs` are no fields of a configuration yet.",
    ),
}

PAGE = """\
# Releases of openvino-genai

Written by `nox -s compat`, which runs the tests that concern the engine on its last releases, on CPU, each with
the openvino of its number and in an environment of its own. The package asks for the oldest of them or newer;
`health()` names any other one as untested. What a release has not is a table (`_engine/_releases.py`), and a test that
asks for it is skipped there, with the reason. This is how they did (passed of run):

{table}

`perf_metrics`: the engine itself says of each request, in the step that did it, that it let go of it.
`request_count`: it only says how many requests it holds; an end is proved by the counts of the steps after it.
{findings}"""

_PROOF = "from boundedgen._engine._genai import proof_in_use; print(proof_in_use())"
_CONVERT = """
import sys
import openvino, openvino_tokenizers
from transformers import AutoTokenizer
for folder in sys.argv[1:]:
    models = openvino_tokenizers.convert_tokenizer(AutoTokenizer.from_pretrained(folder), with_detokenizer=True)
    for name, model in zip(("tokenizer", "detokenizer"), models):
        openvino.save_model(model, f"{folder}/openvino_{name}.xml")
"""


@frozen
class Outcome:
    """Of one suite on one release."""

    passed: int = 0
    failed: dict[str, str] = field(factory=dict)  #: test -> the first words of why
    skipped: dict[str, int] = field(factory=dict)  #: reason -> how many
    unfinished: bool = False

    def __str__(self) -> str:
        skipped = f", {sum(self.skipped.values())} skipped" if self.skipped else ""
        cut = ", then it was cut short" if self.unfinished else ""
        return f"{self.passed} of {self.passed + len(self.failed)}{skipped}{cut}"


@frozen
class Column:
    """One release."""

    release: str
    proof: str
    outcomes: dict[str, Outcome]


def newest() -> list[str]:
    """The last releases that pip offers, newest first."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "openvino-genai"], capture_output=True, text=True, check=True
    )
    found = re.search(r"Available versions: (.*)", told.stdout)
    assert found is not None, told.stdout
    builds = [version.rpartition(".")[0] for version in found[1].split(", ")]
    minors = list(dict.fromkeys(build.rpartition(".")[0] for build in builds))[:MINORS]
    first = {minor: next(build for build in builds if build.startswith(f"{minor}.")) for minor in minors}
    return [build for build in builds if build.startswith(f"{minors[0]}.") or build in first.values()]


def older(release: str) -> bool:
    """Than the one that converted the models of the tests."""
    return [*map(int, release.split("."))] < [*map(int, MODELS_OF.split("."))]


def environment(folder: Path, release: str) -> Path:
    """Python with this release, the project and its test dependencies."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needs = [need for need in project["project"]["dependencies"] if not need.startswith("openvino")]
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = [f"openvino=={release}", f"openvino-genai=={release}.*"]
    converter = ["transformers", "jinja2"] if older(release) else []
    subprocess.run([*pip, *wanted, *converter, *needs, *project["dependency-groups"]["test"]], check=True)
    subprocess.run([*pip, "--no-deps", "--force-reinstall", str(ROOT)], check=True)
    return python


def copy_of_the_tests(folder: Path, python: Path, release: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("tests", "docs"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    if older(release):
        models = [str(path.parent) for path in (folder / "tests" / "models").glob("*/tokenizer.json")]
        subprocess.run([str(python), "-c", _CONVERT, *models], check=True)


def outcome(python: Path, folder: Path, paths: Sequence[str]) -> Outcome:
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *paths]
    try:
        done = subprocess.run(command, cwd=folder, timeout=PATIENCE_S, check=False)
        unfinished = done.returncode not in (0, 1)
    except subprocess.TimeoutExpired:
        unfinished = True
    if not report.exists():
        return Outcome(unfinished=True)
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = {_name(case): _why(case) for case in cases if case.find("failure") is not None or _broke(case)}
    skipped = Counter(why.get("message") or "" for case in cases if (why := case.find("skipped")) is not None)
    return Outcome(len(cases) - len(failed) - skipped.total(), failed, dict(skipped), unfinished)


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"


def _broke(case: ElementTree.Element) -> bool:
    return case.find("error") is not None


def _why(case: ElementTree.Element) -> str:
    part = case.find("failure") if not _broke(case) else case.find("error")
    assert part is not None
    return brief(part.get("message") or "")


def brief(message: str) -> str:
    """What an assertion or an exception in another process says, without the way there."""
    words = " ".join(message.partition("Traceback")[0].split()).replace("|", "/")
    return words.removeprefix("AssertionError: ").strip()[:140]


def column(work: Path, release: str) -> Column:
    python = environment(work / release, release)
    folder = work / f"{release}-tests"
    copy_of_the_tests(folder, python, release)
    proof = subprocess.run([str(python), "-c", _PROOF], capture_output=True, text=True, check=True).stdout.strip()
    return Column(release, proof, {name: outcome(python, folder, paths) for name, paths in SUITES.items()})


# --- the page --------------------------------------------------------------------------------------------------------


def page(columns: Sequence[Column]) -> str:
    rows = [
        ["", *(one.release for one in columns)],
        ["---"] * (1 + len(columns)),
        ["proof of release", *(f"`{one.proof}`" for one in columns)],
        *([name, *(str(one.outcomes[name]) for one in columns)] for name in SUITES),
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return PAGE.format(table=table, findings="".join(map(findings, columns)))


def findings(one: Column) -> str:
    known = [line for start, lines in KNOWN.items() if one.release.startswith(start) for line in lines]
    skipped = sum((Counter(outcome.skipped) for outcome in one.outcomes.values()), Counter[str]())
    known += [f"Skipped ({count}): {why}" for why, count in sorted(skipped.items())]
    failed: dict[tuple[str, str], int] = {}
    for outcome in one.outcomes.values():
        for name, why in outcome.failed.items():
            test = name.partition("[")[0]
            failed[test, why] = failed.get((test, why), 0) + 1
    told = known + [f"`{test}` fails{_times(count)}: {why}" for (test, why), count in sorted(failed.items())]
    return f"\n## {one.release}\n\n" + "".join(f"- {line}\n" for line in told) if told else ""


def _times(count: int) -> str:
    return f" ({count} of its cases)" if count > 1 else ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, default=ROOT / ".nox" / "compat-releases")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "compatibility.md")
    parser.add_argument("--jobs", type=int, default=1, help="releases at a time")
    parser.add_argument("releases", nargs="*", help="instead of the last ones")
    arguments = parser.parse_args()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        columns = list(pool.map(partial(column, arguments.work), arguments.releases or newest()))
    arguments.page.write_text(page(columns), encoding="utf-8")
    print(page(columns))


if __name__ == "__main__":
    main()
