"""All contestants on the emulated GPU: do they work there? It says nothing about speed.

    python benchmarks/emulated_gpu.py [--json FILE]

What the emulation needs, and how it is built, is in tests/gpu/emulation.py; where it is absent there is no figure.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import figures
from contest import Contest
from figures import Figure
from throughput import Rates, rounds
from workload import on_small

import boundedgen

PART = "emulated_gpu"
INSIDE = "inside"  #: argument of the process that sees the GPU


def emulation() -> ModuleType:
    path = Path(__file__).parent.parent / "tests" / "gpu" / "emulation.py"
    spec = importlib.util.spec_from_file_location("emulation", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["emulation"] = module
    spec.loader.exec_module(module)
    return module


def inside(properties: dict[str, str]) -> int:
    """How many contestants came through."""
    work = on_small(2, 16, 8)
    scheduler, limits = work.scheduler(), boundedgen.Limits(running_max=2)
    rates = Rates()
    with contextlib.closing(Contest(work.model, scheduler, limits, device="GPU", properties=properties)) as contest:
        rounds(contest, work, stream=True, seed=1, turn=0, into=rates)
    return sum(map(len, (rates.raw, rates.in_process, rates.bounded)))


def measure(given: argparse.Namespace) -> list[Figure]:
    found: Any = emulation()
    try:
        gpu = found.prepare()
    except found.Absent as why:
        print(f"no emulated GPU: {why}", file=sys.stderr)
        return []
    command = [sys.executable, __file__, INSIDE, json.dumps(gpu.properties())]
    environment = {**os.environ, **gpu.environment(os.environ)}
    said = subprocess.check_output(command, env=environment, text=True, timeout=300)
    came = int(said.split()[-1])
    return [Figure(PART, "contestants that work on the emulated GPU", came, "of 3", target=">= 3")]


if __name__ == "__main__":
    if sys.argv[1:2] == [INSIDE]:
        print(inside(json.loads(sys.argv[2])))
    else:
        figures.alone(__doc__, measure)
