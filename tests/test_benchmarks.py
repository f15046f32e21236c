"""The benchmarks, a little of each: they work on the day that somebody wants figures. Nothing timed is asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import figures
import pytest
import suite
from attrs import evolve
from figures import Figure
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


def lag(value: float, *interval: float) -> Figure:
    return Figure("lag", "p99", value, "ms", (interval[0], interval[1]) if interval else None, "<= 5")


def test_a_figure_knows_whether_its_target_is_reached() -> None:
    assert lag(5.0).reached
    assert not lag(5.1).reached
    assert evolve(lag(1.0), target="").reached is None
    assert [lag(5.1, *edges).clear for edges in ((), (4.0, 6.0), (5.1, 6.0), (4.0, 5.0))] == [1, 0, 1, 1]
    assert [evolve(lag(1.0), target=t).reached for t in ("> 1.0", ">= 1.0", "< 1.0", "<= 1.0")] == [0, 1, 0, 1]


def test_an_interval_holds_the_figure_and_becomes_narrow_with_many_samples() -> None:
    few = figures.sampled("lag", "p50", [1.0, 2.0, 3.0, 4.0, 5.0], "ms")
    many = figures.sampled("lag", "p50", [1.0, 2.0, 3.0, 4.0, 5.0] * 100, "ms")
    more = figures.added("lag", "p50", [11.0, 12.0, 13.0], [1.0, 2.0, 3.0], "ms", 0.5)
    for one in (few, many, more):
        assert one.interval is not None
        assert one.interval[0] <= one.value <= one.interval[1]
    assert (few.value, many.value, more.value) == (3.0, 3.0, 10.0)
    assert few.interval == (1.0, 5.0)
    assert many.interval == (3.0, 3.0)


def test_what_left_the_interval_of_an_earlier_run_is_named_and_what_did_not_is_not() -> None:
    before = [lag(3.0, 2.0, 4.0)]
    assert figures.against([lag(3.5, 3.0, 4.5)], before) == []
    assert figures.against([lag(6.0, 5.0, 7.0)], before) == ["WORSE: lag, p99: 6 ms, was 3"]
    assert figures.against([lag(1.0, 0.5, 1.5)], before) == ["better: lag, p99: 1 ms, was 3"]
    assert figures.against([lag(3.2)], [lag(3.0)]) == []
    assert figures.against([lag(3.4)], [lag(3.0)]) == ["WORSE: lag, p99: 3.4 ms, was 3"]
    ratio = Figure("lag", "p99", 0.9, "ratio", (0.85, 0.95), ">= 0.99")
    assert figures.against([evolve(ratio, value=0.8, interval=(0.75, 0.84))], [ratio])[0].startswith("WORSE")
    assert figures.against([evolve(lag(1.0), name="p50")], before) == ["new: lag, p50: 1 ms", "gone: lag, p99"]


def test_a_table_a_plot_and_json_are_kept_and_the_json_is_read_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = [figures.sampled("lag", "p99", [1.0, 2.0, 9.0], "ms", 0.99, target="<= 5"), lag(1.0)]
    found.append(figures.ratios("throughput", "boundedgen / raw", [98.0, 99.0], [100.0, 100.0], target=">= 0.99"))
    suite.keep(found, tmp_path)
    assert figures.read(tmp_path / "suite.json") == found
    assert "1 of 3 targets reached, 2 of all unclear" in (tmp_path / "suite.md").read_text()
    assert (tmp_path / "suite.png").read_bytes()[1:4] == b"PNG"


def test_every_part_of_the_suite_is_there_and_says_how_it_runs_alone() -> None:
    assert {*PARTS, "emulated_gpu"} - {
        "scrapes"
    } == suite.PARTS.keys()  # which wants more, and has a session of its own
    for part in suite.PARTS:
        assert f"python benchmarks/{part}.py" in (BENCHMARKS / f"{part}.py").read_text()


def test_parts_that_ran_before_are_merged_and_compared_and_what_is_worse_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures.write(tmp_path / "old.json", [lag(3.0, 2.0, 4.0)])
    figures.write(tmp_path / "new.json", [lag(6.0, 5.0, 7.0)])
    out = ("--out", str(tmp_path / "out"))

    def told(merged: str) -> int:
        files = ("--merge", str(tmp_path / merged), "--against", str(tmp_path / "old.json"))
        monkeypatch.setattr(sys, "argv", ["suite.py", *files, *out])
        return suite.main()

    assert told("old.json") == 0
    assert told("new.json") == 1
    assert "WORSE: lag, p99: 6 ms, was 3" in capsys.readouterr().out
    assert figures.read(tmp_path / "out" / "suite.json") == [lag(6.0, 5.0, 7.0)]
