"""The whole of the benchmarks, part by part, each in a process of its own: a table, a plot, and JSON for the next run.

    python benchmarks/suite.py [--parts NAME …] [--short] [--out bench-results] [--against FILE] [--merge FILE …]

Nothing else should run on the machine: it takes about an hour on two cores. Every part runs alone too:
`python benchmarks/latency.py --help`. `--merge` takes the figures of parts that ran before (their `--json`) instead of
running any. `--against` names what has left the interval of an earlier run. It exits with 1 if a part failed or
anything is worse. Of one that is interrupted, by whatever, unfinished.json has the parts that are over, for `--merge`.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import figures
from figures import Figure
from workload import smollm2

HERE = Path(__file__).parent
FAILED = "the part came through"
UNFINISHED = "unfinished.json"
SMALL = {"scale", "emulated_gpu"}  #: parts that do without SmolLM2
CLOSES_S = 60  #: that an interrupted part gets to close its engines
#: The options with which a part runs here.
PARTS: dict[str, tuple[str, ...]] = {
    "start": (),
    "cost": ("--profile", "10"),
    "latency": (),
    "lag": (),
    "lateness": (),
    "scale": (),
    "throughput": (),
    "emulated_gpu": (),
}


def run(part: str, *, short: bool) -> list[Figure]:
    """What it prints is seen at once. One that fails costs its own figures only."""
    options = ("--short",) if short else PARTS[part]
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "figures.json")
        print(f"\n=== {part}", flush=True)
        command = [sys.executable, str(HERE / f"{part}.py"), *options, "--json", str(told)]
        status = _ended(subprocess.Popen(command))
        if status == 0:
            with contextlib.suppress(figures.NoRun):
                return figures.read(told)
        print(f"{part} failed with status {status}", file=sys.stderr, flush=True)
        note = f"exit status {status}" + ("" if status else ", but no figures")
        return [Figure(part, FAILED, 0, "of 1", target=">= 1", note=note)]


def _ended(part: subprocess.Popen[bytes]) -> int:
    """Its status. One that is interrupted gets time to close what it has opened; not after a second interrupt."""
    try:
        return part.wait()
    except KeyboardInterrupt as why:
        if why.args:  # a terminal tells all of the group, `kill` this process only
            part.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            part.wait(CLOSES_S)
        raise
    finally:
        part.kill()
        part.wait()


def _terminated(*_: object) -> None:
    raise KeyboardInterrupt("terminated")


def measured(parts: Sequence[str], folder: Path, *, short: bool) -> list[Figure]:
    """Of all parts. What there is after each is kept at once: an hour's figures are not lost with the last part."""
    found: list[Figure] = []
    for part in parts:
        found += run(part, short=short)
        figures.write(folder / UNFINISHED, found)
    return found


def page(found: Sequence[Figure], machine: dict[str, Any]) -> str:
    """The table with its machine, in Markdown."""
    where = ", ".join(f"{name} {value}" for name, value in machine.items())
    with_target = [one for one in found if one.reached is not None]
    missed = [one for one in with_target if not one.reached]
    unclear = sum(not one.clear for one in with_target)
    reached = f"{len(with_target) - len(missed)} of {len(with_target)} targets reached, {unclear} of all unclear."
    if not with_target:
        reached = "Nothing has a target: a short run is no measurement."
    lines = [where, "", figures.table(found), "", reached]
    lines += [f"Missed: {one.part}, {one.name}: {figures.short(one.value)} {one.unit}, {one.target}" for one in missed]
    return "\n".join(lines) + "\n"


def keep(found: Sequence[Figure], folder: Path, machine: dict[str, Any]) -> None:
    figures.write(folder / "suite.json", found, machine)
    (folder / "suite.md").write_text(page(found, machine))
    try:
        import suite_picture
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    suite_picture.draw(found, folder / "suite.png")


def changes(
    found: Sequence[Figure], here: dict[str, Any], before: Sequence[Figure], there: dict[str, Any]
) -> list[str]:
    """Lines about what differs from an earlier run, and where that one was."""
    other = [
        f"{name} {there.get(name)}, now {here.get(name)}" for name in {**there, **here} if differs(name, here, there)
    ]
    lines = [f"another machine: {', '.join(other)}"] if other else []
    lines += figures.against(found, before)
    many, changed = figures.compared(found, before), sum(": " in line and ", was " in line for line in lines)
    lines.append(
        f"{many} figure{'s' * (many != 1)} compared, {changed or 'none'} {'have' if changed > 1 else 'has'} changed"
    )
    return lines


def differs(name: str, here: dict[str, Any], there: dict[str, Any]) -> bool:
    return bool(here.get(name) != there.get(name))


def merged(files: Iterable[Path]) -> tuple[list[Figure], dict[str, Any]]:
    """Figures and their machine. NoRun: they are of several, and one table would say that they are of one."""
    files = list(files)
    machines = [figures.machine_of(file) for file in files]
    for file, machine in zip(files, machines, strict=True):
        if machine != machines[0]:
            differing = [name for name in {**machine, **machines[0]} if differs(name, machine, machines[0])]
            raise figures.NoRun(f"{files[0]} and {file} are not of one machine: {', '.join(differing)}")
    return [figure for file in files for figure in figures.read(file)], machines[0]


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--short", action="store_true", help="a little of each part, to see that it works")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder of the table, plot and JSON")
    parser.add_argument("--against", type=Path, help="JSON of an earlier run")
    parser.add_argument("--merge", nargs="+", type=Path, help="take the figures from there instead of running parts")
    return parser


def main() -> int:
    parser = options()
    given = parser.parse_args()
    if given.short and given.against:
        parser.error("a short run is no measurement: there is nothing to compare with --against")
    try:  # all that can be wrong is said before an hour of measuring
        before = (figures.read(given.against), figures.machine_of(given.against)) if given.against else None
        found, machine = merged(given.merge) if given.merge else ([], figures.machine())
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / UNFINISHED).touch()
    except (figures.NoRun, OSError) as why:
        parser.error(str(why))
    (given.out / UNFINISHED).unlink()
    if not (given.merge or given.short) and set(given.parts) - SMALL:
        smollm2()  # it is missed now, not in the last part
    signal.signal(signal.SIGTERM, _terminated)
    try:
        found = found or measured(given.parts, given.out, short=given.short)
    except KeyboardInterrupt:
        print(f"interrupted: {given.out / UNFINISHED} has the parts that are over, if any is", file=sys.stderr)
        return 130
    keep(found, given.out, machine)
    (given.out / UNFINISHED).unlink(missing_ok=True)
    print("\n" + page(found, machine), flush=True)
    lines = [] if before is None else changes(found, machine, *before)
    print(*lines, sep="\n", end="\n" if lines else "")
    failed = any(one.name == FAILED for one in found)
    return int(failed or any(line.startswith("WORSE") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
