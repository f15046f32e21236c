"""One bug at a time, planted in a copy of the sources; the tests that have to notice run against that copy."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attrs import field, frozen

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"
PYTEST = ("-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-p", "mutants.counting", "--hypothesis-seed=0")
ONE_FAILED = 1  #: pytest's exit code; those above mean that nothing was tested: the sources cannot be imported


@frozen
class Selection:
    """Some tests, and how long they may take."""

    name: str
    arguments: tuple[str, ...]  #: of pytest
    seconds: float  #: after which they count as hung
    environment: Mapping[str, str] = field(factory=dict)


@frozen
class Mutant:
    """One planted bug: `old` stands once in `file` (below src/boundedgen), and `new` stands there instead."""

    name: str
    file: str
    old: str
    new: str
    breaks: str
    sees: Selection
    blind: bool = False  #: written before the tests were read

    def applied(self, text: str) -> str:
        """`text` with the bug. ValueError if `old` is not there exactly once: the list has rotted."""
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.name!r}: its old text stands {found} times in {self.file}")
        return text.replace(self.old, self.new)


@frozen
class Verdict:
    """What became of a mutant. `killed_by`: "test", "timeout" or "import"; empty: it survived."""

    mutant: Mutant
    killed_by: str
    seconds: float
    told: str  #: the line of pytest that says which test, or how many examples


def planted(path: Path) -> list[Mutant]:
    """The list in `path`. ValueError for a name that stands twice."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    selections = {name: _selection(name, row) for name, row in table["selections"].items()}
    mutants = [Mutant(**{**row, "sees": selections[row["sees"]]}) for row in table["mutant"]]
    names = [mutant.name for mutant in mutants]
    if len(set(names)) < len(names):
        raise ValueError(f"a name stands twice in {path}")
    return mutants


def _selection(name: str, row: Mapping[str, object]) -> Selection:
    return Selection(
        name,
        tuple(str(row["tests"]).split()),
        float(str(row["seconds"])),
        {k: v for k, v in row.items() if k.isupper() and isinstance(v, str)},
    )


def rotten(mutants: Iterable[Mutant]) -> list[str]:
    """What the sources no longer have, in words."""
    found = []
    for mutant in mutants:
        try:
            mutant.applied((SOURCES / "boundedgen" / mutant.file).read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            found.append(str(error))
    return found


@contextlib.contextmanager
def copied(mutant: Mutant | None) -> Iterator[Path]:
    """A copy of the sources with the bug in it; None: without any."""
    with tempfile.TemporaryDirectory(prefix="boundedgen-mutant-") as folder:
        sources = Path(folder) / "src"
        shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            path = sources / "boundedgen" / mutant.file
            path.write_text(mutant.applied(path.read_text(encoding="utf-8")), encoding="utf-8")
        yield sources


def run(selection: Selection, sources: Path) -> tuple[str, str]:
    """The selection against `sources`: what killed them, if anything did, and what pytest said last."""
    environment = {
        **os.environ,
        **selection.environment,
        "PYTHONPATH": os.pathsep.join((str(sources), str(ROOT))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(sources.parent / "hypothesis"),  # what a mutant fails on is nobody else's
        "BOUNDEDGEN_SHRINK": "0",
    }
    command = [sys.executable, "-m", "pytest", *PYTEST, f"--timeout={selection.seconds:g}", *selection.arguments]
    with (sources.parent / "output").open("w+b") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        code = _wait(process, selection.seconds + 30.0)
        output.seek(0)
        lines = output.read().decode("utf-8", "replace").splitlines()
    if code is None or any("Timeout >" in line or "+ Timeout +" in line for line in lines):
        return "timeout", _told(lines)
    if code > ONE_FAILED:
        return "import", " | ".join(lines[-3:])
    return "test" if code else "", _told(lines)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Its exit code; None: it had to be killed. Its own children, engines, end with it."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()
        process.wait()


def _told(lines: Sequence[str]) -> str:
    said = [line for line in lines if line.startswith(("FAILED", "ERROR", "examples:"))]
    return " | ".join(line.removeprefix("FAILED ").removeprefix("tests/")[:110] for line in said[:2])


def judged(mutant: Mutant) -> Verdict:
    """Plant it and see."""
    began = time.monotonic()
    with copied(mutant) as sources:
        killed_by, told = run(mutant.sees, sources)
    return Verdict(mutant, killed_by, time.monotonic() - began, told)


def judge_all(mutants: Sequence[Mutant], jobs: int, tell: Callable[[Verdict], None]) -> list[Verdict]:
    """All of them, `jobs` at a time, `tell` after each."""
    verdicts = []
    with ThreadPoolExecutor(jobs) as pool:
        for verdict in pool.map(judged, mutants):
            tell(verdict)
            verdicts.append(verdict)
    return verdicts


def check_soundness(selections: Iterable[Selection], jobs: int) -> list[str]:
    """Selections that fail without any bug, in words: what they say of mutants would mean nothing."""

    def check(selection: Selection) -> str:
        began = time.monotonic()
        with copied(None) as sources:
            killed_by, told = run(selection, sources)
        print(f"  sound {selection.name:10} {time.monotonic() - began:5.1f} s", flush=True)
        return f"{selection.name} fails without any bug: {killed_by} {told}" if killed_by else ""

    with ThreadPoolExecutor(jobs) as pool:
        return [words for words in pool.map(check, selections) if words]
