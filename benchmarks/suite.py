"""The whole of the benchmarks, part by part, each in a process of its own: a table, a plot, and JSON for the next run.

    python benchmarks/suite.py [--parts NAME …] [--short] [--out bench-results] [--against FILE] [--merge FILE …]

Nothing else should run on the machine: it takes about an hour on two cores. Every part runs alone too:
`python benchmarks/latency.py --help`. `--merge` takes the figures of parts that ran before (their `--json`) instead of
running any. `--against` names what has left the interval of an earlier run; if anything is worse, this exits with 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import figures
from figures import Figure

HERE = Path(__file__).parent
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
        status = subprocess.run(command).returncode
        if status or not told.exists():
            print(f"{part} failed with status {status}", file=sys.stderr, flush=True)
            return [Figure(part, "the part itself", status, "exit status", target="<= 0")]
        return figures.read(told)


def page(found: Sequence[Figure]) -> str:
    """The table with its machine, in Markdown."""
    machine = ", ".join(f"{name} {value}" for name, value in figures.machine().items())
    with_target = [one for one in found if one.reached is not None]
    missed = [one for one in with_target if not one.reached]
    unclear = sum(not one.clear for one in with_target)
    reached = f"{len(with_target) - len(missed)} of {len(with_target)} targets reached, {unclear} of all unclear."
    lines = [machine, "", figures.table(found), "", reached]
    lines += [f"Missed: {one.part}, {one.name}: {figures.short(one.value)} {one.unit}, {one.target}" for one in missed]
    return "\n".join(lines) + "\n"


def keep(found: Sequence[Figure], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    figures.write(folder / "suite.json", found)
    (folder / "suite.md").write_text(page(found))
    try:
        import suite_picture
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    suite_picture.draw(found, folder / "suite.png")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--short", action="store_true", help="a little of each part, to see that it works")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder of the table, plot and JSON")
    parser.add_argument("--against", type=Path, help="JSON of an earlier run")
    parser.add_argument("--merge", nargs="+", type=Path, help="take the figures from there instead of running parts")
    given = parser.parse_args()
    before = figures.read(given.against) if given.against else None  # --out may be where it lies
    if given.merge:
        found = [figure for file in given.merge for figure in figures.read(file)]
    else:
        found = [figure for part in given.parts for figure in run(part, short=given.short)]
    keep(found, given.out)
    print("\n" + page(found), flush=True)
    changes = [] if before is None else figures.against(found, before)
    print(*changes, sep="\n", end="\n" if changes else "")
    return int(any(change.startswith("WORSE") for change in changes))


if __name__ == "__main__":
    sys.exit(main())
