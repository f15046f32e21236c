"""Traffic that the raw engine dies of: a bare loop, and boundedgen with either admission policy, beside each other.

    python -m deep.crashing_traffic [--minutes 10] [--seed N] [--lanes raw,engine,reserve] [--together] [--json FILE]

Each lane serves deep/traffic.py, sixteen requests at a time, for so many minutes: "raw", a bare `step()` loop in a
process of its own, started again each time that it dies; "engine", boundedgen that leaves overflow of the cache to the
engine; "reserve", boundedgen as it is. One after the other, or at once in processes of their own. Exits with 1 if one
of boundedgen's callers was answered later than its deadline and 100 ms, on top of what the machine itself was late by,
if "reserve" lost an engine, or if something is left behind.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import asdict

from deep.lane_figures import Figures, table
from deep.lanes import bounded, raw

LANES = ("raw", "engine", "reserve")


def run(lane: str, seconds: float, seed: int) -> Figures:
    return raw(seconds, seed) if lane == "raw" else bounded(lane, seconds, seed)


def together(lanes: Sequence[str], minutes: float, seed: int) -> list[Figures]:
    """Each in a process of its own, at the same time."""
    with tempfile.TemporaryDirectory() as folder:
        files = {lane: Path(folder, lane) for lane in lanes}
        module = [sys.executable, "-m", "deep.crashing_traffic", "--minutes", str(minutes), "--seed", str(seed)]
        running = [
            subprocess.Popen([*module, "--lanes", lane, "--json", str(file)], stdout=subprocess.DEVNULL)
            for lane, file in files.items()
        ]
        for process in running:
            process.wait()
        return [
            Figures(**{**row, "died": Counter(row["died"]), "ends": Counter(row["ends"])})
            for file in files.values()
            for row in json.loads(file.read_text())
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="of each lane")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--lanes", default=",".join(LANES))
    parser.add_argument("--together", action="store_true", help="at the same time instead of one after the other")
    parser.add_argument("--json", help="write all figures there")
    arguments = parser.parse_args()
    lanes = arguments.lanes.split(",")
    print(f"seed {arguments.seed}", flush=True)
    if arguments.together:
        found = together(lanes, arguments.minutes, arguments.seed)
    else:
        found = [run(lane, 60 * arguments.minutes, arguments.seed) for lane in lanes]
    if arguments.json:
        rows: list[dict[str, Any]] = [asdict(figures) for figures in found]
        Path(arguments.json).write_text(json.dumps(rows, indent=1))
    print(table(found))
    broken = [f"{figures.lane}: {what}" for figures in found for what in figures.broken]
    print("broken: " + "; ".join(broken) if broken else "every promise was kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
