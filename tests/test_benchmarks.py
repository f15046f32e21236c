"""The benchmarks, a little of each: they work on the day that somebody wants figures. Nothing timed is asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import suite
from gpu import emulation

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
PARTS = ("start", "cost", "latency", "lag", "lateness", "scale", "scrapes", "throughput")


def run(name: str, *arguments: str) -> str:
    places = [str(BENCHMARKS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_a_short_run_of_each_part_has_figures_of_all_it_measures(part: str, tmp_path: Path) -> None:
    said = run(part, "--short", "--json", str(tmp_path / "part.json"))
    told = json.loads((tmp_path / "part.json").read_text())
    assert {row["part"] for row in told["figures"]} == {part}
    assert len(told["figures"]) >= 3
    assert all(row["name"] in said for row in told["figures"])
    assert not any(row["target"] for row in told["figures"])  # it was no measurement
    assert {"processor", "cores", "python", "openvino_genai", "boundedgen"} <= told["machine"].keys()


@pytest.mark.slow
def test_the_table_of_the_policies_is_what_their_command_says_today() -> None:
    """Whoever changes how sequences are let in writes it anew: `python benchmarks/policies.py`."""
    page = (BENCHMARKS.parent / "docs" / "overload.md").read_text()
    assert run("policies") in page


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(300)  # it may be the one that compiles the kernels
def test_all_contestants_work_on_the_emulated_gpu() -> None:
    try:
        emulation.prepare()
    except emulation.Absent as why:
        pytest.skip(f"no emulated GPU: {why}")
    assert "| 3 of 3 |" in run("emulated_gpu", "--short")


def test_every_part_of_the_suite_is_there_and_says_how_it_runs_alone() -> None:
    assert {*PARTS, "emulated_gpu"} - {
        "scrapes"
    } == suite.PARTS.keys()  # which wants more, and has a session of its own
    for part in suite.PARTS:
        assert f"python benchmarks/{part}.py" in (BENCHMARKS / f"{part}.py").read_text()
