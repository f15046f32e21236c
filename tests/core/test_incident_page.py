"""An incident's folder, read again by somebody on call: the page, the list, and what cannot be read."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from core.hand_engine import HandEngine, lane, until

import boundedgen as b
from boundedgen.__main__ import main
from boundedgen._blackbox._report import FILES, NoIncidentError, newest, report

NAME = "20260101T000000.000Z-7-1-step"
CRASH = """loading
terminate called after throwing an instance of 'ov::Exception'
  what():  Exception from src/plugins/intel_gpu/src/runtime/ocl/ocl_stream.cpp:
[GPU] clEnqueueNDRangeKernel, error code: -5 CL_OUT_OF_RESOURCES

Fatal Python error: Aborted

Thread 0x00007f094c3ff6c0 (most recent call first):
  File "thread.py", line 81 in _worker
  File "threading.py", line 982 in run
  File "threading.py", line 1045 in _bootstrap_inner
  File "threading.py", line 1002 in _bootstrap

Current thread 0x00007f095802ab80 (most recent call first):
  File "_genai.py", line 219 in step
  File "_child.py", line 180 in _step
  File "_child.py", line 100 in round
  File "_child.py", line 88 in run
  File "_child.py", line 289 in _live

Extension modules: numpy.linalg._umath_linalg (total: 1)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A black box with one incident."""
    where = tmp_path_factory.mktemp("box")
    with lane(HandEngine(running_max=1), black_box=where) as (pipeline, engine):
        g = pipeline.submit("x", max_new_tokens=8)
        engine.stay()
        engine.die()
        with pytest.raises(b.EngineLost):
            g.result(20)
        until(lambda: bool(list(where.glob("*-died"))))
    return where


def copy(whole: Path, to: Path) -> Path:
    folder = to / newest(whole).name
    folder.mkdir()
    for path in newest(whole).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_a_whole_incident_is_shown_with_status_0_and_without_any_one_file_with_status_1(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["incident", str(whole)]) == 0
    assert "missing" not in capsys.readouterr().out
    folder = copy(whole, tmp_path)
    for name in FILES[1:]:
        kept = (folder / name).read_bytes()
        (folder / name).unlink()
        assert main(["incident", str(folder)]) == 1
        assert f"missing: {name}" in capsys.readouterr().out
        (folder / name).write_bytes(kept)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no whole incident"),
        ("", "cannot be read"),
        ('{"schema": 1', "cannot be read"),
        ("[]", "not one of boundedgen's"),
        ('{"schema": 99}', "schema 99; this version knows up to 1"),
        ('{"schema": 1}', "not what this version writes"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, says: str
) -> None:
    folder = tmp_path / NAME
    folder.mkdir()
    if text is not None:
        (folder / "incident.json").write_text(text)
    assert main(["incident", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1


def test_a_folder_without_incidents_and_a_path_that_is_none_are_said_to_be_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong, says in [(tmp_path, "is no incident, and there is none in it"), (tmp_path / "x", "is not a folder")]:
        with pytest.raises(NoIncidentError, match=says):
            report(wrong)
        assert main(["incident", str(wrong)]) == 2
        assert says in capsys.readouterr().err


def test_the_newest_of_several_is_shown(whole: Path, tmp_path: Path) -> None:
    folder = copy(whole, tmp_path)
    (tmp_path / "20200101T000000.000Z-1-1-died").mkdir()
    assert newest(tmp_path) == folder
    assert newest(folder) == folder


def test_what_an_engine_printed_cannot_move_the_cursor_of_whoever_reads_it(whole: Path, tmp_path: Path) -> None:
    folder = copy(whole, tmp_path)
    (folder / "output.txt").write_bytes(b"\x1b[2J\x1b]0;title\x07 plain \xff\xfe\n")
    page, _ = report(folder)
    assert "plain" in page
    assert "\x1b" not in page
    assert "\x07" not in page


def changed(folder: Path, **fields: Any) -> None:
    """In its incident.json."""
    told = json.loads((folder / "incident.json").read_text()) | fields
    (folder / "incident.json").write_text(json.dumps(told))


def shown(folder: Path, title: str) -> list[str]:
    """A section of the page."""
    section = report(folder)[0].partition(f"\n{title}")[2].partition("\n\n")[0]
    return [line.strip() for line in section.splitlines()[1:]]


# --- why ---------------------------------------------------------------------------------------------------------


def test_what_was_thrown_is_shown_before_the_crash_and_the_thread_that_crashed_before_the_others_and_in_full(
    whole: Path, tmp_path: Path
) -> None:
    folder = copy(whole, tmp_path)
    (folder / "output.txt").write_text(CRASH)
    lines = shown(folder, "The last it said")
    assert lines[0] == "loading"
    assert lines[1].startswith("terminate called")
    assert "CL_OUT_OF_RESOURCES" in lines[3]
    assert lines[4] == "Fatal Python error: Aborted"
    assert lines[5].startswith("Current thread")
    assert lines[10] == 'File "_child.py", line 289 in _live'
    assert lines[11].startswith("Thread 0x")
    assert lines[12:] == [*(line.strip() for line in CRASH.splitlines()[8:11]), "… 1 more lines"]


def test_of_the_stacks_of_an_engine_that_hung_the_main_thread_which_comes_last_is_shown_first_and_in_full(
    whole: Path, tmp_path: Path
) -> None:
    folder = copy(whole, tmp_path)
    dump = CRASH[CRASH.index("Thread 0x") : CRASH.index("Extension")].replace("Current thread", "Thread")
    (folder / "stacks.txt").write_text(f"== Python stacks\n{dump}")
    lines = shown(folder, "Where the engine stood")
    assert lines[0].startswith("Thread 0x00007f095802ab80")
    assert lines[5] == 'File "_child.py", line 289 in _live'
    assert lines[6].startswith("Thread 0x00007f094c3ff6c0")


def test_a_long_text_of_what_was_thrown_is_shown_from_its_beginning(whole: Path, tmp_path: Path) -> None:
    folder = copy(whole, tmp_path)
    noise = "".join(f"noise {n}\n" for n in range(30))
    thrown = "terminate called after throwing\n" + "".join(f"reason {n}\n" for n in range(12))
    (folder / "output.txt").write_text(noise + thrown + CRASH[CRASH.index("Fatal") :])
    lines = shown(folder, "The last it said")
    assert lines[:14] == [*thrown.splitlines(), "Fatal Python error: Aborted"]
    (folder / "output.txt").write_text(noise)
    assert shown(folder, "The last it said") == [f"noise {n}" for n in range(22, 30)]


@pytest.mark.parametrize(
    ("before", "now", "log", "says"),
    [
        (2, 2, [], "not the kernel for want of memory: its counter of that, oom_kill, has stayed at 2"),
        (2, 3, [], "most likely the kernel, for want of memory: its counter of that, oom_kill, went from 2 to 3"),
        (2, 3, ["Memory cgroup out of memory: Killed process 7 (python)"], "the kernel did it, for want of memory"),
        (None, None, ["Out of memory: Killed process 7 (python)"], "the kernel did it, for want of memory"),
        (None, None, ["Out of memory: Killed process 77 (python)"], "whether it was the kernel is not known"),
    ],
)
def test_of_an_engine_killed_by_signal_9_the_page_says_whether_the_kernel_did_it(
    whole: Path, tmp_path: Path, before: int | None, now: int | None, log: list[str], says: str
) -> None:
    folder = copy(whole, tmp_path)
    memory = {"used": 5_000_000, "most": 99_000_000, "limit": 100_000_000}
    machine = {"oom_kills_before": before, "oom_kills": now, "memory": memory, "kernel_log": log}
    changed(folder, pid=7, exit_status=-9, machine=machine)
    page, _ = report(folder)
    assert says in page.partition("  inside")[0].partition("  why ")[2]
    assert shown(folder, "The machine (all of it: machine.txt)") == [
        "memory    of the control group: 5 MB used, 99 MB at most so far, limit 100 MB; it was at its limit",
        f"oom_kill  {'not known' if before is None else before} before, {'not known' if now is None else now} now",
        f"kernel    lines of its log since the engine started that name it: {len(log)}",
        *log,
    ]
    changed(folder, exit_status=-11)
    assert says not in report(folder)[0]


def test_an_incident_of_a_version_that_did_not_look_at_the_machine_is_shown_as_well(
    whole: Path, tmp_path: Path
) -> None:
    folder = copy(whole, tmp_path)
    told = json.loads((folder / "incident.json").read_text())
    for name in ("machine", "exit_status", "first_of_row"):
        del told[name]
    (folder / "incident.json").write_text(json.dumps(told))
    assert shown(folder, "The machine") == ["not told here by the version that wrote this"]


def test_the_head_of_the_page_names_process_incarnation_model_and_device_and_the_first_of_the_row(
    whole: Path, tmp_path: Path
) -> None:
    folder = copy(whole, tmp_path)
    head = report(folder)[0].splitlines()
    assert "engine 1 (process 0) died" in head[1]
    assert head[2] == "  model     an engine of the caller's own on HAND"
    assert not any("the first:" in line for line in head)
    changed(folder, configuration={"models_path": "/models/m", "device": "GPU"}, facts=None, first_of_row=NAME)
    page, _ = report(folder)
    assert "  model     /models/m on GPU: it was never ready\n" in page
    assert f"1 failures in a row, the first: {NAME}\n" in page


# --- several, and those of others ------------------------------------------------------------------------------------


def test_several_are_shown_one_after_the_other_and_the_worst_status_counts(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(whole, tmp_path)
    assert main(["incident", str(whole), str(folder)]) == 0
    assert capsys.readouterr().out.count(f"Incident {folder.name}\n") == 2
    (folder / "steps.jsonl").unlink()
    assert main(["incident", str(folder), str(tmp_path / "none"), str(whole)]) == 2
    out, err = capsys.readouterr()
    assert out.count(f"Incident {folder.name}\n") == 2
    assert err.count("\n") == 1


def test_the_list_has_a_line_for_each_incident_the_oldest_first(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(whole, tmp_path)
    other = folder.rename(tmp_path / NAME)
    changed(other, at="2026-01-01T00:00:00.000+00:00", cause="step", step_in_flight={"step": 20})
    folder = copy(whole, tmp_path)
    assert main(["incident", str(tmp_path), "--list"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[:4] == ["2026-01-01T00:00:00Z", "step", "step", "20"]
    assert first.endswith(f"1 running, 0 stopping, 0 waiting; failure 1 in a row  {NAME}")
    assert second.split()[1:4] == ["died", "no", "step"]
    assert second.endswith(folder.name)
    (other / "incident.json").write_text("{")
    assert main(["incident", str(tmp_path), "--list"]) == 1
    assert f"{NAME}: " in capsys.readouterr().out.splitlines()[0]


@contextlib.contextmanager
def as_somebody_else(mine: Path) -> Iterator[None]:
    """Without the right to read `mine`, which is of mode 700."""
    if os.geteuid() != 0:
        mine.chmod(0)
        yield
        mine.chmod(0o700)
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("inner", [False, True])
def test_of_a_folder_that_belongs_to_somebody_else_the_folder_and_the_owner_are_named(
    whole: Path, capsys: pytest.CaptureFixture[str], inner: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:  # not tmp_path: nobody else gets there at all
        box = Path(name)
        box.chmod(0o755)
        folder = copy(whole, box)
        closed = folder if inner else box
        closed.chmod(0o700)
        owner = closed.owner()
        with as_somebody_else(closed):
            assert main(["incident", str(box)]) == 2
            said = capsys.readouterr().err
    assert said.startswith(f"boundedgen incident: {closed} cannot be read by user ")
    assert said.rstrip().endswith(f"(Permission denied); it belongs to user {owner}")
