"""How long it takes to import boundedgen, to be ready beside the raw engine, and to be ready again.

    python benchmarks/start.py [--imports 20] [--boots 5] [--short] [--json FILE]

Each import and each boot is a fresh process, and counts from its start. Ready is who has answered a request of one
token. The raw loop loads the same model with the same settings, in turn. Ready again: from the engine being killed
until the next one has answered. Without a compile cache, and with one (CACHE_DIR) that an earlier start has filled.
All of Python is compiled before, into a folder of its own, as it is where it was installed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import figures
from attrs import define, field
from figures import Figure
from workload import Workload, on_small, on_smollm2

PART = "start"
IMPORT = """
import sys, time
began = time.perf_counter()
import boundedgen
imported = time.perf_counter()
boundedgen.BoundedPipeline
named = time.perf_counter()
print(imported - began, named - imported, sum(name.split(".")[0].startswith("openvino") for name in sys.modules))
"""


def compiled(folder: str) -> dict[str, str]:
    """The environment of processes that keep there what they have compiled, and find it."""
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}


def imports(runs: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        command, environment = [sys.executable, "-c", IMPORT], compiled(folder)
        said = [subprocess.check_output(command, text=True, env=environment).split() for _ in range(runs + 1)]
    imported, named = ([1000 * float(words[n]) for words in said[1:]] for n in (0, 1))  # the first has compiled it
    modules = max(int(words[2]) for words in said)
    return [
        figures.sampled(PART, "import boundedgen", imported, "ms", target="<= 60"),
        figures.sampled(PART, "boundedgen.BoundedPipeline, for the first time", named, "ms"),
        Figure(PART, "modules of openvino that both import", modules, "modules", target="<= 0"),
    ]


# --- boots -------------------------------------------------------------------------------------------------------


@define
class Boots:
    """Seconds."""

    raw: list[float] = field(factory=list)
    bounded: list[float] = field(factory=list)
    again: list[float] = field(factory=list)

    def add(self, spec: Mapping[str, Any], folder: str) -> None:
        self.raw += started("raw", spec, folder)
        ready, again = started("bounded", spec, folder)
        self.bounded.append(ready)
        self.again.append(again)


def started(contestant: str, spec: Mapping[str, Any], folder: str) -> list[float]:
    """The instants at which it was ready, as seconds since it was started, or since its engine was killed."""
    began = time.monotonic()
    command = [sys.executable, __file__, contestant, json.dumps(spec)]
    first, *others = json.loads(subprocess.check_output(command, text=True, timeout=300, env=compiled(folder)))
    return [first - began, *others]


def raw(spec: Mapping[str, Any]) -> list[float]:
    from raw_loop import RawLoop, load

    loop = RawLoop(load(spec["model"], spec["scheduler"], properties=spec["properties"]))
    loop.round([[5, 6, 7, 8]], 1)
    return [time.monotonic()]


def bounded(spec: Mapping[str, Any]) -> list[float]:
    import boundedgen as b

    with b.BoundedPipeline(spec["model"], spec["scheduler"], "CPU", spec["properties"]) as pipeline:
        pipeline.generate([5, 6, 7, 8], max_new_tokens=1)
        ready, pid = time.monotonic(), pipeline.stats().engine_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        while pipeline.stats().incarnation == 1:
            time.sleep(0.001)
        pipeline.generate([5, 6, 7, 8], max_new_tokens=1)
        return [ready, time.monotonic() - ready]


def boots(work: Workload, rounds: int, *, cached: bool) -> list[Figure]:
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as folder:
        properties = {"CACHE_DIR": cache} if cached else {}
        spec = {"model": work.model, "scheduler": work.scheduler(), "properties": properties}
        found = Boots()
        if rounds > 1:  # one is no measurement
            Boots().add(spec, folder)  # this one fills both
        for _ in range(rounds):
            found.add(spec, folder)
        files = sum(1 for file in Path(cache).rglob("*") if file.is_file())
    how = f"{work.name.rsplit('-', 1)[0]}, {f'CACHE_DIR ({files} files)' if cached else 'no CACHE_DIR'}"
    return [
        figures.sampled(PART, f"{how}: raw, ready", found.raw, "s"),
        figures.sampled(PART, f"{how}: boundedgen, ready", found.bounded, "s"),
        figures.sampled(PART, f"{how}: boundedgen, ready again", found.again, "s"),
    ]


def measure(given: argparse.Namespace) -> list[Figure]:
    if given.short:
        return imports(2) + boots(on_small(1), 1, cached=False)
    found = imports(given.imports)
    for work in (on_small(1), on_smollm2(1)):
        for cached in (False, True):
            found += boots(work, given.boots, cached=cached)
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--imports", type=figures.count, default=20)
    parser.add_argument("--boots", type=figures.count, default=6)


if __name__ == "__main__":
    if sys.argv[1:2] == ["raw"] or sys.argv[1:2] == ["bounded"]:
        print(json.dumps({"raw": raw, "bounded": bounded}[sys.argv[1]](json.loads(sys.argv[2]))))
    else:
        figures.alone(__doc__, measure, options)
